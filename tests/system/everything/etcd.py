"""An etcd of the tour's own, on this machine alone, for as long as the tour lasts."""

from __future__ import annotations

import http.client
import shlex
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType

from snapkv.base.waiting import monotonic, pause
from snapkv.cli.exits import AdvisedError, Exit

READY_S, LOOK_S, END_S = 30.0, 0.05, 10.0
HOST = "127.0.0.1"


def etcd_program() -> str | None:
    """Return the path of etcd, None where it is not installed."""
    return shutil.which("etcd")


class LocalEtcd:
    """A node on free ports of the loopback address; it ends with the block, its data remains."""

    def __init__(self, program: str, folder: Path) -> None:
        self._folder = folder
        self._port, peers = _free_port(), _free_port()
        client, peer = f"http://{HOST}:{self._port}", f"http://{HOST}:{peers}"
        self.words = [program, "--data-dir", str(folder / "etcd"), "--log-level", "error"]
        self.words += ["--listen-client-urls", client, "--advertise-client-urls", client]
        self.words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self.words += ["--initial-cluster", f"default={peer}"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What `snapkv.open` takes."""
        return f"etcd://{HOST}:{self._port}"

    @property
    def command(self) -> str:
        """The shell's command that starts it again."""
        return shlex.join(self.words)

    def __enter__(self) -> LocalEtcd:
        """Start it, and wait until it answers. Raises `AdvisedError`."""
        log = self._folder / "etcd.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or monotonic() > deadline:
                self.__exit__(None, None, None)
                raise AdvisedError(
                    f"etcd did not start; its log is {log}",
                    "The tour needs no etcd: --embedded",
                    Exit.LATER,
                )
            pause(LOOK_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=1)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
