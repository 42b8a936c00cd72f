"""Several etcd nodes that are one store."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from etcd_server.certificates import Certificates
from etcd_server.gateway import GatewayError
from etcd_server.node import PORT_TRIES_MAX, EtcdServer
from etcd_server.processes import WAIT_S, eventually


class EtcdCluster:
    """Nodes that elect a leader; as a context manager they run inside the block.

    Elections are slower than one node's, so that a busy machine does not call for new ones.
    """

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        *,
        flags: Sequence[str] = (),
        tls: Certificates | None = None,
        heartbeat_ms: int = 40,
        election_ms: int = 400,
    ) -> None:
        self.nodes = [
            EtcdServer(
                folder / f"node{number}",
                flags=flags,
                tls=tls,
                heartbeat_ms=heartbeat_ms,
                election_ms=election_ms,
            )
            for number in range(size)
        ]
        self._came_up = False

    @property
    def url(self) -> str:
        """What `snapkv.open` takes, with all nodes."""
        return "etcd://" + ",".join(node.endpoint for node in self.nodes)

    def __enter__(self) -> EtcdCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the nodes that do not run, and wait until all are healthy."""
        for _ in range(PORT_TRIES_MAX):
            if not self._came_up:
                members = {node.name: node.peer_port for node in self.nodes}
                for node in self.nodes:
                    node.join(members)
            for node in self.nodes:
                if node.pid is None:
                    node.start(wait=False)
            try:
                self.wait_healthy()
            except AssertionError:
                if self._came_up or not any(node.lost_port() for node in self.nodes):
                    raise
                for node in self.nodes:
                    node.close()
                    node.choose_ports()
            else:
                self._came_up = True
                return
        raise AssertionError(f"no free ports in {PORT_TRIES_MAX} tries")

    def close(self) -> None:
        """Kill all nodes and remove their data; twice is fine."""
        for node in self.nodes:
            node.close()

    def leader(self, *, wait_s: float = WAIT_S) -> EtcdServer:
        """Return the node that a majority of all nodes takes for its leader, once there is one."""
        return eventually(self._leader, "a leader", wait_s=wait_s)

    def followers(self) -> list[EtcdServer]:
        """Return the running nodes that do not lead."""
        leader = self.leader()
        return [node for node in self.nodes if node is not leader and node.pid is not None]

    def wait_healthy(self) -> None:
        """Wait until every node runs, serves, and follows one leader."""

        def healthy() -> bool:
            ended = [node.name for node in self.nodes if node.pid is None]
            assert not ended, f"ended: {ended}"
            if not all(node.is_ready() for node in self.nodes):
                return False
            votes = self._votes()
            return len(votes) == len(self.nodes) and len({vote for _, vote in votes.values()}) == 1

        eventually(healthy, "a healthy cluster")

    def restore_snapshot(self, snapshot: Path, *, token: str | None = None) -> None:
        """Set all nodes back to what the `gateway` of one of them saved, and restart them.

        Under another `token` they become another cluster.
        """
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            node.restore_snapshot(snapshot, token=token, wait=False)
        self.wait_healthy()

    def _votes(self) -> dict[EtcdServer, tuple[str, str]]:
        """Map the nodes that answer and know a leader to their ids and the leader's."""
        votes = {}
        for node in self.nodes:
            if node.pid is not None:
                with contextlib.suppress(OSError, GatewayError):
                    mine, leader = node.gateway.vote()
                    if leader is not None:
                        votes[node] = (mine, leader)
        return votes

    def _leader(self) -> EtcdServer | None:
        votes = self._votes()
        for node, (mine, leader) in votes.items():
            believers = sum(vote == mine for _, vote in votes.values())
            if leader == mine and believers > len(self.nodes) // 2:
                return node
        return None
