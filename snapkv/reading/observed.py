"""Observing: read-only time travel over keys that other programs write into the same engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from snapkv.base.lifecycle import Closing
from snapkv.errors import (
    CompactedError,
)
from snapkv.layout import CREATION_ORDINAL, Mark
from snapkv.model import K, Version
from snapkv.reading import history as _history
from snapkv.reading.changes import first_after
from snapkv.reading.deadline import bounds, within
from snapkv.reading.observed_watch import ObservedWatch
from snapkv.reading.reader import Reader
from snapkv.reading.ticks import Ticks
from snapkv.reading.view import KeyspaceReads
from snapkv.reading.watch import Watch
from snapkv.timeline import RevisionPolicy
from snapkv.timeline.moment import compaction_error
from snapkv.times import When


@dataclass(slots=True, eq=False)
class Observer(Reader):
    """The parts of an open observed prefix."""

    def make_policy(self) -> RevisionPolicy:
        """Return the policy of keys that change between marks, too."""
        return Ticks(self.timeline)


class Observed(KeyspaceReads[K, bytes], Closing):
    """Keys that other programs write, as they were at each tick of a time line beside them.

    The reads of a store, with these differences:

    * Keys are the full keys of the engine, as text or bytes like the given prefix. In text, bytes
      that are not valid UTF-8 are escaped (`surrogateescape`).
    * A foreign write carries the timestamp of the first tick (or commit of the store that ticks)
      at or after it. So it happened later than the tick before that one, less skew, and earlier
      than that tick, plus skew and the tick's time of flight. Skew is how far the tickers' clocks
      may differ.
    * Writes that no tick has stamped yet are not seen: "now" is the newest tick. It costs two
      round trips, the tick and then its state.
    * Times before the first tick raise `NotObservedError`; they are not empty.
    * A moment ends when compaction passes its tick: `CompactedError`, whose `earliest` is the
      first tick that can still be read, None if there is none yet.
    * `at(revision=...)` reads exactly that revision, ticked or not; the timestamp is that of the
      newest tick at or before it, 0 if there is none. `at(final=True)` raises: it would have to
      tick.

    Safe for threads and usable as a context manager. Made by `snapkv.observe`.
    """

    _core: Observer

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __repr__(self) -> str:
        core = self._core
        return f"<Observed {core.url} prefix={self._space.whole!r} name={core.layout.name!r}>"

    def close(self) -> None:
        """Close it; watches in other threads end with `StoreClosedError`. May be repeated."""
        self._core.close()

    @bounds
    def history(
        self,
        key: K,
        *,
        since: When | None = None,
        until: When | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Version]:
        """Yield the observed versions of a key, oldest first, each with the tick that stamps it.

        A removal has the value None. Writer and note are None, because they are not known, unless
        the store that ticks made the version with a commit of its own. Versions newer than the
        newest tick are left out. History begins with the version in force
        at the compaction point, whose `ts` is None if its tick was compacted. One watch over the
        key, one round trip for each 128 versions, and 0 to 6 for each tick.

        `since` (exclusive), `until` (inclusive), `limit` and `newest_first` are as for
        `SnapshotKV.history`; several versions may have the time of one tick, so pages of a size
        may divide them. A time `since` before the first tick means the engine's beginning.

        Raises `NotObservedError` before the first tick, `CompactedError`,
        `EngineUnavailableError`, `ReadTimeoutError`.
        """
        span = _history.Span(since, until, limit, newest_first)
        return _history.observed_versions(self._core, self._space.encode(key), span)

    def watch(
        self, prefix: K | None = None, since: When | None = None, *, timeout: float | None = None
    ) -> Watch[K]:
        """Return an iterator of the ticks after `since` (None: after now) with what they stamp.

        Each `Changes` holds all writes since the tick before, in the order of their revisions.
        Each change has the commit that `history` shows: its own revision, the tick's timestamp,
        and neither writer nor note, unless the store that ticks wrote it with a commit. Changes
        wait for their tick; none twice, none missing; resumable from the last timestamp seen.
        `since` a time before the first tick means from the engine's beginning. Iteration ends
        if `timeout` seconds bring nothing (None: it waits); a tick that has arrived may take a
        second longer, until all its changes have. Holds the writes since the tick before in
        memory.

        Raises `CompactedError` when changes after `since` may be gone, `EngineUnavailableError`.
        """
        core = self._core
        core.check_open()
        with within(self._read_timeout):
            mark, first, after = self._watched_from(since)
        return ObservedWatch(core, self._space, prefix, mark, first, after, timeout)

    def _watched_from(self, since: When | None) -> tuple[Mark, int, int]:
        """Return the mark to follow from, the first revision, and the timestamp that was seen."""
        core = self._core
        if since is None:
            mark = core.timeline.head()
            return mark, core.policy.moment(mark).next_revision(), 0
        after = core.resolve(since)
        try:
            mark = core.timeline.at(after).mark
            return mark, first_after(core, mark), after
        except CompactedError as e:
            raise compaction_error(core.policy, after) from e

    @bounds
    def resolved(self, *, timeout: float | None = None) -> int:
        """Return the timestamp at or below which nothing changes any more: that of the newest tick.

        0 before the first one. One round trip. Raises `EngineUnavailableError`,
        `ReadTimeoutError`.
        """
        self._core.check_open()
        return self._core.timeline.head().timestamp

    @bounds
    def info(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return facts about what is observed and its engine, for people, without secrets.

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        core = self._core
        core.check_open()
        head = core.timeline.head()
        return {
            "url": core.url,
            "prefix": self._space.whole,
            "name": core.layout.name,
            "store_id": core.format.store_id.hex(),
            "ticks": head.ordinal - CREATION_ORDINAL,
            "newest_timestamp": head.timestamp,
            "newest_revision": head.revision,
            "earliest_timestamp": core.policy.earliest(),
            "ring": f"{len(core.timeline.tracker.ring)} of {core.timeline.tracker.ring.slots}",
            "engine": core.engine.info(),
        }
