"""Another store as a sink: its keys, and in the same commits how far each table is.

The target's space `changefeed/<id>` has a record for each table, a msgpack array
`[token's owner, token's number, checkpoint, origin's place, origin's created]` (the last two only
if the sink has an origin), and each commit guards its revision. So a commit of an earlier
assignment, or a repeated one, changes nothing.

While an earlier assignment writes all the time, a record is old before its successor writes it. So
each commit guards the table's *fence*, too, a key that only `begin` writes.

The meta of each commit has the route of its changes (`loop_prevention.py`). Changes whose route has
the target are not written again. A batch of only such changes writes nothing: the checkpoint in the
target is then earlier than that of the captures, and what follows it is read and left out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import msgpack

import snapkv
from cdcmeta.errors import SinkError
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.executors import contracts, loop_prevention
from snapkv import AtRevision, Changes, Ops, SnapshotKV, SpaceOps, Stamp, format_time
from snapkv.base.waiting import monotonic

WRITE_S = 3.0
"""The longest that a call may take, in seconds."""
PAGE_KEYS = 100
"""The most keys that one read of commits looks up."""


def prefix_of(table: str) -> str:
    """Return what the keys of a table of a store begin with."""
    return "" if table == contracts.WHOLE else table


class StoreTableWriter(contracts.TableWriter):
    """Writes a table into a store, each change exactly once; the commits of a batch become one.

    Two round trips to begin, then one for each batch. Times in the target are the times of its own
    commits. `changefeed` names the records of tables, `origin` says which changefeed of that name
    it is, `source` names the store that is read, as `place_of` returns it.
    """

    def __init__(
        self,
        target: SnapshotKV,
        changefeed: str,
        table: str,
        token: Token,
        *,
        write_s: float = WRITE_S,
        origin: contracts.Origin | None = None,
        source: str | None = None,
    ) -> None:
        self._target, self._space = target, f"{loop_prevention.RECORDS}{changefeed}"
        self._claim, self._key = contracts.Claim(table, token, origin), table.encode()
        self._write_s, self._source = write_s, source
        self._fence_key = b"\xff" + self._key  # no table's: that is not UTF-8
        self._revision = self._fence_revision = self._reached = 0
        self._deadline = 0.0

    def begin(self, start: int) -> int:
        """Write the token into the table's record; return the checkpoint that counts in it."""
        self._deadline = monotonic() + self._write_s
        while True:
            reached = max(start, self._read().checkpoint)
            self._reached = 0
            if self._commit(Ops(), reached, sets_fence=True):
                return reached
            self._read()
            fence = SpaceOps(
                {self._fence_key: self._record(0)},
                guards=[_at(self._fence_key, self._fence_revision)],
            )
            self._sent(Ops(), fence)  # so that no earlier assignment writes any more

    def replace(self) -> Iterator[str]:
        """Yield the keys of the table whose newest value here came from the same source.

        What another program wrote remains, and what a commit wrote that is compacted here: nothing
        says any more who wrote it. A read for each `PAGE_KEYS` keys.
        """
        entries = self._target.at().entries(prefix_of(self._claim.table))
        while page := list(islice(entries, PAGE_KEYS)):
            metas = loop_prevention.metas_of(self._target, {entry.revision for _, entry in page})
            for key, entry in page:
                if loop_prevention.last_place(metas.get(entry.revision)) == self._source:
                    yield key

    def write(
        self, commits: Sequence[Changes[str]], checkpoint: int, *, deadline: float | None = None
    ) -> None:
        """Commit the last value of each key with the record; in halves, if that is too large.

        A single commit that is too large for the target is divided, too: that is better than to
        end the table. The checkpoint comes with its last part. `deadline` is a `monotonic()` of a
        call that has begun before.
        """
        self._deadline = monotonic() + self._write_s if deadline is None else deadline
        if checkpoint:  # an earlier try may have written a part
            commits = [each for each in commits if each.commit.ts > self._reached]
        if self._source is not None and commits:
            commits = loop_prevention.without_returning(
                commits, self._source, loop_prevention.place_of(self._target)
            )
            if not commits:
                return
        self._write_parts(commits, checkpoint)

    def _write_parts(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        if checkpoint and checkpoint <= self._reached:
            return  # an earlier try landed meanwhile
        at = loop_prevention.next_route(commits) if self._source is not None and commits else 0
        if at:
            self._write_halves((commits[:at], commits[at:]), checkpoint)
            return
        try:
            self._write(commits, checkpoint)
        except snapkv.CommitTooLargeError:
            halves = _halves(commits)
            if halves is None:
                raise
            self._write_halves(halves, checkpoint)

    def _write_halves(
        self, halves: tuple[Sequence[Changes[str]], Sequence[Changes[str]]], checkpoint: int
    ) -> None:
        first, second = halves
        is_whole = first[-1].commit.ts < second[0].commit.ts
        self._write_parts(first, first[-1].commit.ts if checkpoint and is_whole else 0)
        self._write_parts(second, checkpoint)

    def _left_s(self) -> float:
        """Return how long this call may still take. Raises `SinkError` if it took too long."""
        left_s = self._deadline - monotonic()
        if left_s <= 0:
            raise SinkError(f"the target did not take it within {self._write_s:g} s")
        return left_s

    def _write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        last = {each.key: each.value for commit in commits for each in commit.changes}
        puts = {key: value for key, value in last.items() if value is not None}
        deletes = [key for key, value in last.items() if value is None]
        said = Ops(puts, deletes)
        if commits and checkpoint:
            said = replace(said, note=f"replicated up to {format_time(checkpoint)}")
        if commits and self._source is not None:
            route = loop_prevention.route_of(commits[0].changes[0].commit)
            said = replace(said, meta=loop_prevention.meta_after(route, self._source))
        while not self._commit(said, checkpoint):
            before, found = self._revision, self._read()
            if found.token != self._claim.token:
                self._revision = before  # so that the next try fails, too
                raise SinkError("the target's record of the table was removed")
            if checkpoint and found.checkpoint >= checkpoint:
                self._reached = found.checkpoint
                return  # an earlier try landed

    def _read(self) -> contracts.SinkRecord:
        """Read record and fence, which the next commit guards; return what counts."""
        space, keys = self._target.space(self._space), [self._key, self._fence_key]
        entry, fence = space.entries_of(keys, timeout=self._left_s())
        counting = contracts.NOTHING
        for each in (fence, entry):  # the fence is never earlier than the record
            if each is not None:
                kept = self._claim.counting(reached_of(each.value))
                counting = kept if each is entry else contracts.NOTHING
        self._revision = entry.revision if entry is not None else 0
        self._fence_revision = fence.revision if fence is not None else 0
        return counting

    def _record(self, checkpoint: int) -> bytes:
        _, token, origin = self._claim
        packed: bytes = msgpack.packb([*token, checkpoint, *(origin or ())])
        return packed

    def _commit(self, ops: Ops, checkpoint: int, *, sets_fence: bool = False) -> bool:
        """Commit with the record; False if the record has changed. An unknown outcome is False."""
        reached = max(self._reached, checkpoint)
        record = self._record(reached)
        records = {self._key: record}
        if sets_fence:
            records[self._fence_key] = record
        guards = [_at(self._key, self._revision), _at(self._fence_key, self._fence_revision)]
        revision = self._sent(ops, SpaceOps(records, guards=guards))
        if revision:
            self._revision, self._reached = revision, reached
            self._fence_revision = revision if sets_fence else self._fence_revision
        return revision > 0

    def _sent(self, ops: Ops, records: SpaceOps) -> int:
        """Commit; return the revision, 0 if a guard does not hold or the outcome is unknown."""
        ops = replace(ops, spaces={self._space: records})

        def build(stamp: Stamp) -> Ops:
            return ops

        try:
            return self._target.commit(build, timeout=self._left_s()).revision
        except (snapkv.ConflictError, snapkv.CommitUnknownError):
            return 0


def _at(key: bytes, revision: int) -> AtRevision | snapkv.Absent:
    return AtRevision(key, revision) if revision else snapkv.Absent(key)


def _halves(
    commits: Sequence[Changes[str]],
) -> tuple[list[Changes[str]], list[Changes[str]]] | None:
    """Return the halves of commits, or of the changes of one; None for a single change."""
    if len(commits) > 1:
        half = len(commits) // 2
        return list(commits[:half]), list(commits[half:])
    head, changes = commits[0].commit, commits[0].changes
    if len(changes) < 2:
        return None
    half = len(changes) // 2
    return [Changes(head, changes[:half])], [Changes(head, changes[half:])]


def reached_of(raw: bytes) -> contracts.SinkRecord:
    """Return the record of a table. Raises `SinkError` if it is not one."""
    try:
        owner, number, checkpoint, *origin = msgpack.unpackb(raw)
        return contracts.SinkRecord.read((owner, number), checkpoint, tuple(origin))
    except (ValueError, TypeError, msgpack.UnpackException) as e:
        raise SinkError(f"the target has an invalid record of a table: {raw[:40]!r}") from e
