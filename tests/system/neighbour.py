"""Another process that uses the same store: a worker driven over pipes, one line a request.

Run as a program it answers requests; `Neighbour` is the end that the tests hold.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

ANSWER_S_MAX = 30


class Neighbour:
    """A process kept alive through the run; it opens the store anew for each request."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def ask(self, **request) -> dict:
        """Send a request and return the answer, within `ANSWER_S_MAX` seconds."""
        alarm = threading.Timer(ANSWER_S_MAX, self._process.kill)
        alarm.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        finally:
            alarm.cancel()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(ANSWER_S_MAX)
        self._process.stdout.close()


def answer(request: dict) -> dict:
    import snapkv

    clock = snapkv.ManualClock(request["now_ms"])
    with snapkv.open(
        request["url"], clock=clock, writer="neighbour", ring_slots=2, **request["options"]
    ) as store:
        if "load" in request:
            when = request["load"]
            return {k: v.decode() for k, v in store.at(when).items()}
        commit = store.commit(
            puts={k: v.encode() for k, v in request["puts"].items()},
            deletes=request["deletes"],
            delete_prefixes=request["prefixes"],
            note=request["note"],
        )
        return {"ts": commit.ts, "revision": commit.revision}


def main() -> None:
    import warnings

    from snapkv.engine.etcd.server import ServerClock

    warnings.simplefilter("ignore")
    # as in `store.engines`: the clocks of tests stand still
    ServerClock.time_ms = lambda self, *, fresh=False: None
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
