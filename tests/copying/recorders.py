"""Recorders in processes of their own, for tests that kill them."""

import json
import os
import signal
import subprocess
import sys
import time

from etcd_server import eventually

WAIT_S = 60
PAUSE_S = 0.05
"""Between two looks at what takes seconds."""


class Recorders:
    """Processes of `snapkv record`, one after the other, into the same place."""

    def __init__(self, words, folder, **environment):
        self._command = [sys.executable, "-m", "snapkv.cli", "record", "--json", *words]
        self._folder, self._environment, self._started = folder, environment, 0

    def start(self):
        self._log = self._folder / f"recorder-{self._started}"
        self._started += 1
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=os.environ | self._environment
            )

    def states(self):
        """The states that the reports of this process show."""
        return {report["state"] for report in self._reports()}

    def recorded(self):
        """The newest revision of the source that a report of this process shows."""
        return max((report["recorded_revision"] or 0 for report in self._reports()), default=0)

    def _reports(self):
        lines = self._log.read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.startswith("{") and line.endswith("\n")]
        return [json.loads(line) for line in whole]

    def reach(self, revision):
        def reached():
            time.sleep(PAUSE_S)
            assert self._process.poll() is None, self._log.read_text()[-2_000:]
            return self.recorded() >= revision

        eventually(reached, f"revision {revision} to be recorded", wait_s=WAIT_S)

    def end(self, number=signal.SIGKILL):
        self._process.send_signal(number)
        return self._process.wait(WAIT_S)
