"""One etcd node in a process of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from etcd_server.certificates import Certificates
from etcd_server.gateway import Gateway, GatewayError
from etcd_server.processes import WAIT_S, eventually, free_port, keeper
from etcd_server.programs import TRUE_PROGRESS, etcd_binary, etcd_version, restorer

PORT_TRIES_MAX = 10
STOP_GRACE_S = 5.0
READY_S = 0.5
"""Whoever does not tell its version in this time is not ready; perhaps it is not our etcd."""

_numbers = itertools.count()


class EtcdServer:
    """One node on free ports of 127.0.0.1; as a context manager it runs inside the block.

    `folder` gets `data` and the log; leaving the block kills the node and removes `data` (128 MB).
    `flags` are more options of etcd, such as "--quota-backend-bytes=...". With `fsync` it
    survives a crash of the machine too, and is slow; a killed process loses nothing without it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        flags: Sequence[str] = (),
        tls: Certificates | None = None,
        fsync: bool = False,
        heartbeat_ms: int = 20,
        election_ms: int = 100,
    ) -> None:
        self.folder, self.tls = folder, tls
        self.data, self.log = folder / "data", folder / "etcd.log"
        self.name = f"n{next(_numbers)}"
        self._token = f"{os.getpid()}-{self.name}-{time.time_ns()}"
        self._members: dict[str, int] = {}
        self._flags = [*flags, *(["--unsafe-no-fsync"] if not fsync else [])]
        if etcd_version() < TRUE_PROGRESS:  # only what they tell by themselves can be believed
            self._flags.append("--experimental-watch-progress-notify-interval=100ms")
        self._flags += [f"--heartbeat-interval={heartbeat_ms}", f"--election-timeout={election_ms}"]
        self._child: subprocess.Popen[bytes] | None = None
        self._came_up = False
        self.choose_ports()

    # --- where it is ---

    @property
    def url(self) -> str:
        """What `snapkv.open` takes."""
        return f"etcd://{self.endpoint}"

    @property
    def endpoint(self) -> str:
        """Host and port for clients."""
        return f"127.0.0.1:{self.client_port}"

    @property
    def pid(self) -> int | None:
        """The process; None when it does not run."""
        return self._child.pid if self._child and self._child.poll() is None else None

    # --- its life ---

    def __enter__(self) -> EtcdServer:
        if self._child is None:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, *, wait: bool = True) -> None:
        """Start the node; on other ports when somebody took ours, the first time.

        Without `wait` the caller looks after readiness, and after ports that were taken.
        """
        assert self.pid is None, f"{self.name} runs already"
        for _ in range(PORT_TRIES_MAX):
            self._spawn()
            if not wait:
                return
            eventually(lambda: self.lost_port() or self.is_ready(), f"{self.name} to start")
            if not self.lost_port():
                return
            self.kill()
            if not self._came_up:
                self.choose_ports()
        raise AssertionError(f"no free ports in {PORT_TRIES_MAX} tries: {self._log_end()}")

    def stop(self) -> None:
        """End the node in order; kill it when that takes more than a few seconds."""
        if self.pid is not None:
            self._signal(signal.SIGCONT)
        self._end(STOP_GRACE_S)

    def kill(self) -> None:
        """Kill the process, also a paused one: no last word to anybody."""
        self._end(0)

    def restart(self, *, wait: bool = True) -> None:
        """Start again on the same ports and data, after a stop when it still runs."""
        self.stop()
        self.start(wait=wait)

    def pause(self) -> None:
        """Stop the process in its tracks: connections stay open, nobody answers."""
        self._signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "a pause")

    def resume(self) -> None:
        """Let a paused process go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the node and remove its data; the log stays. Twice is fine."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def wait_ready(self, *, wait_s: float = WAIT_S) -> None:
        """Wait until the node serves clients, which needs a quorum."""
        eventually(self.is_ready, f"{self.name} to be ready", wait_s=wait_s)

    def is_ready(self) -> bool:
        """Return whether the node serves clients now; AssertionError when it has ended."""
        assert self.pid is not None, f"{self.name} ended: {self._log_end()}"
        try:
            ready = self._asker.version()["etcdcluster"] != "not_decided"
        except (OSError, GatewayError):
            return False
        self._came_up |= ready
        return ready

    def lost_port(self) -> bool:
        """Return whether the node ended because somebody else took one of its ports."""
        return self.pid is None and "address already in use" in self._log_end()

    # --- its data ---

    def copy_data(self, to: Path) -> None:
        """Copy the data of a stopped node: a backup that keeps everything."""
        assert self.pid is None, "a running node's files are no backup: stop() it"
        shutil.copytree(self.data, to)

    def put_back_data(self, copied: Path) -> None:
        """Replace the data by what `copy_data` wrote, and restart: the past comes back."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(copied, self.data)
        self.start()

    def restore_snapshot(
        self, snapshot: Path, *flags: str, token: str | None = None, wait: bool = True
    ) -> None:
        """Replace the data by what `gateway.save_snapshot` wrote, and restart, as operators do.

        The members stay; leases, and all revisions after the snapshot, are gone. Under another
        `token` it becomes another cluster, and stays it at later restores.
        """
        self._token = token or self._token
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        command = [str(restorer()), "snapshot", "restore", str(snapshot), "--name", self.name]
        command += ["--data-dir", str(self.data), *self._cluster_flags(), *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        self.start(wait=wait)

    # --- inside ---

    def join(self, members: dict[str, int]) -> None:
        """Be one of several members (name to peer port) from the next start on."""
        self._members = members
        self._token = "-".join(f"{name}.{port}" for name, port in members.items())

    def choose_ports(self) -> None:
        """Take new ports, before the first start."""
        self.client_port, self.peer_port = free_port(), free_port()
        context = self.tls.context() if self.tls else None
        self.gateway = Gateway(self.client_port, tls=context)
        self._asker = Gateway(self.client_port, tls=context, timeout_s=READY_S)

    def _cluster_flags(self) -> list[str]:
        members = self._members or {self.name: self.peer_port}
        peers = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in members.items())
        return [
            f"--initial-advertise-peer-urls=http://127.0.0.1:{self.peer_port}",
            f"--initial-cluster={peers}",
            f"--initial-cluster-token={self._token}",
        ]

    def _spawn(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        client = f"{'https' if self.tls else 'http'}://{self.endpoint}"
        command = [
            str(etcd_binary()),
            f"--name={self.name}",
            f"--data-dir={self.data}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls=http://127.0.0.1:{self.peer_port}",
            *self._cluster_flags(),
            "--log-level=error",
            "--bcrypt-cost=4",
            *(self.tls.flags() if self.tls else ()),
            *self._flags,
        ]
        self._child = keeper.start(command, self.log)

    def _log_end(self) -> str:
        return self.log.read_bytes()[self._log_start :][-2000:].decode(errors="replace")

    def _signal(self, number: int) -> None:
        assert self.pid is not None, f"{self.name} does not run"
        os.kill(self.pid, number)

    def _end(self, grace_s: float) -> None:
        if self._child is not None:
            keeper.end(self._child, grace_s=grace_s)
            self._child = None
