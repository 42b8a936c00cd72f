"""Finding the compacted revision: etcd has no call for it, but two whose answers show it."""

from __future__ import annotations

from snapkv.base.waiting import bounded, monotonic
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.connection import READ_TIMEOUT_S, TRY_S, Connection
from snapkv.engine.etcd.endpoint import AnyStream
from snapkv.engine.etcd.error_texts import COMPACTED
from snapkv.engine.etcd.grpc_client import RANGE, CallFailed, ended_watch
from snapkv.errors import EngineUnavailableError


class CompactionPoint:
    """The compacted revision, found without an administrator's rights.

    While the compacted revision stays the same, two reads confirm it: one at it, one before it.
    After it has moved, a watch from there finds the new one: the server cancels the watch with the
    answer. The reads come first, because a watch on readable history makes the server search it.

    A remembered revision is always confirmed: a cluster that was restored from a backup may have
    more history than before.
    """

    def __init__(self, connection: Connection, home: bytes) -> None:
        self._connection, self._home = connection, home
        self._known = 0

    def find(self, timeout: float | None = None) -> int:
        """Return the compacted revision, 0 when nothing ever was; 1 to 3 round trips.

        Raises `EngineUnavailableError` after `timeout` seconds.
        """
        bound_s = bounded(READ_TIMEOUT_S if timeout is None else timeout)
        deadline, point, confirmed = monotonic() + bound_s, self._known, False
        while True:
            if self._is_compacted(point or 1, deadline):
                point, confirmed = self._from_watch(point or 1, deadline), True
            elif point <= 1 or confirmed or self._is_compacted(point - 1, deadline):
                self._known = point
                return point
            else:
                point = 0  # the revision before it can be read: the engine went back in time
            if monotonic() >= deadline:
                raise EngineUnavailableError(
                    f"the compacted revision changed at each look for {bound_s:g} s"
                )

    def _is_compacted(self, revision: int, deadline: float) -> bool:
        """Return whether a revision was compacted; False for one in the future."""
        request = pb.RangeRequest(key=self._home, revision=revision, count_only=True)
        try:
            self._connection.read(RANGE, request, max(0.001, deadline - monotonic()))
        except CallFailed as e:
            return e.text.startswith(COMPACTED)
        return False

    def _from_watch(self, revision: int, deadline: float) -> int:
        """Return the compacted revision that the server sends when it cancels a watch."""
        create = pb.WatchCreateRequest(key=self._home, start_revision=revision)
        request, tries = pb.WatchRequest(create_request=create), 0
        while True:
            try:
                found = self._asked(request, min(TRY_S, max(0.001, deadline - monotonic())))
            except CallFailed as e:
                failure = e
            else:
                return found
            tries += 1
            self._connection.wait_before(tries, deadline)
            if monotonic() >= deadline:
                raise EngineUnavailableError(
                    f"the server did not return its compacted revision: {failure}"
                ) from failure

    def _asked(self, request: pb.WatchRequest, timeout: float) -> int:
        open_watch = self._connection.watch(request, timeout)
        try:
            found = _compacted_in(open_watch.stream)
        except CallFailed as e:
            self._connection.broken(open_watch, e, renew=False)
            open_watch.stream.cancel()
            raise
        except BaseException:  # to cancel takes a lock that this may have left taken
            open_watch.endpoint.interrupted(open_watch.stream)
            raise
        open_watch.stream.cancel()  # now: what gRPC's thread ends later may hang the process's end
        return found


def _compacted_in(stream: AnyStream) -> int:
    for answer in stream:
        if answer.compact_revision:
            return answer.compact_revision
        if answer.canceled:
            raise ended_watch(answer.cancel_reason)
    raise CallFailed("UNAVAILABLE", "the stream ended")
