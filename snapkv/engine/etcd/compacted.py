"""Where compaction stands: etcd has no call for it, but two that give it away."""

from __future__ import annotations

from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.connection import TRY_S, Connection
from snapkv.engine.etcd.refusals import COMPACTED
from snapkv.engine.etcd.rpc import RANGE, CallFailed, ended_watch
from snapkv.errors import EngineUnavailableError

TRIES = 8


class CompactionPoint:
    """The compacted revision, found without an administrator's rights.

    The oldest revision that can be read is found by asking: one read while the point has not
    moved, and when it has, a watch from there, which the server cancels with the answer. A watch
    on history that is not compacted would make the server search it, so the read comes first.
    """

    def __init__(self, connection: Connection, home: bytes) -> None:
        self._connection, self._home = connection, home
        self._known = 0

    def find(self) -> int:
        """Return the compacted revision, 0 when nothing ever was; 1 to 3 round trips."""
        for _ in range(TRIES):
            known = self._known
            try:
                revision = known or 1
                request = pb.RangeRequest(key=self._home, revision=revision, count_only=True)
                self._connection.read(RANGE, request)
                return known
            except CallFailed as e:
                if e.text.startswith(COMPACTED):
                    self._known = self._from_watch(revision)
                else:  # the future: the engine went back in time
                    self._known = 0
        raise EngineUnavailableError("compaction runs away from who asks where it stands")

    def _from_watch(self, revision: int) -> int:
        create = pb.WatchCreateRequest(key=self._home, start_revision=revision)
        for _ in range(TRIES):
            watching = self._connection.watch(pb.WatchRequest(create_request=create), TRY_S)
            try:
                for answer in watching.stream:
                    if answer.compact_revision:
                        return answer.compact_revision
                    if answer.canceled:
                        raise ended_watch(answer.cancel_reason)
                failure = CallFailed("UNAVAILABLE", "the stream ended")
            except CallFailed as e:
                failure = e
            finally:
                watching.stream.cancel()
            self._connection.broken(watching, failure, renew=False)
        raise EngineUnavailableError(f"no answer where compaction stands: {failure}")
