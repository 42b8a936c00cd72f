"""The judge of a run: what callers were told against what happened; shares no code with either."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from protocol_remote import DATA, TS_KEY, Journal, Stamped

import snapkv
from snapkv import Absent, AtRevision, CommitUnknownError, ConflictError, HeadAt


@dataclass
class Told:
    """One call of commit and all that its caller learned."""

    token: str
    process: str
    guards: tuple[Any, ...] = ()
    stamps: list[snapkv.Stamp] = field(default_factory=list)
    commit: snapkv.Commit | None = None
    error: BaseException | None = None
    crashed: bool = False
    resolved: list[Any] = field(default_factory=list)

    def build(self, ops: dict[str, bytes], deletes: tuple[str, ...]) -> Any:
        """Return a build that writes the token twice, beside other operations."""

        def build(stamp: snapkv.Stamp) -> snapkv.Ops:
            self.stamps.append(stamp)
            mine = {f"{half}/{self.token}": b"%d/%d" % stamp for half in "tu"}
            return snapkv.Ops({**ops, **mine}, deletes=deletes, guards=self.guards)

        return build

    @property
    def outcome(self) -> str:
        """The kind of thing its caller was told, for counting."""
        return "Commit" if self.commit else "crash" if self.crashed else type(self.error).__name__

    @property
    def unknown(self) -> bool:
        """Whether nothing was claimed; an error that is not ours says so in a note."""
        notes = getattr(self.error, "__notes__", [])
        noted = any(f"({self.stamps[-1].ts}), nonce" in note for note in notes)
        return self.crashed or noted or isinstance(self.error, CommitUnknownError)


class Judge:
    """The truth of a run, and the sentences on what was told."""

    def __init__(self, journal: Journal, *, compacted: bool) -> None:
        self.journal, self.compacted = journal, compacted
        self.stamps = journal.stamps
        self.by_ts = {stamp.ts: stamp for stamp in self.stamps}
        self.by_revision = {stamp.revision: stamp for stamp in self.stamps}

    def judge(self, calls: list[Told]) -> None:
        """Raise AssertionError for the first thing that is not as it should be."""
        self._time_line()
        for told in calls:
            assert not isinstance(told.error, AssertionError), f"{told.token}: {told.error!r}"
            landed = self._landed(told)
            if told.commit is not None:
                self._acknowledged(told, landed)
            elif isinstance(told.error, ConflictError):
                assert landed is None, f"{told.token}: told a conflict, but it is there"
                self._conflict(told, told.error)
            elif told.unknown:
                self._unknown(told, landed)
            else:
                assert told.error is not None
                assert landed is None, f"{told.token}: told {told.error!r}, but it is there"

    def _time_line(self) -> None:
        for old, new in zip(self.stamps, self.stamps[1:], strict=False):
            assert old.ts < new.ts, f"{new} does not come after {old}"
        for revision, changes in self.journal.revisions.items():
            if any(key.startswith(DATA) for key in changes):
                assert TS_KEY in changes, f"revision {revision} has no timestamp"
                assert self.by_revision[revision].fence_of is None, f"{revision}: a fence writes"

    def _landed(self, told: Told) -> Stamped | None:
        """Return where a commit landed: once or never, whole, with the stamp it was built with."""
        halves = [self.journal.written(f"{half}/{told.token}") for half in "tu"]
        assert halves[0] == halves[1], f"{told.token} is half there: {halves}"
        assert len(halves[0]) <= 1, f"{told.token} is there more than once: {halves[0]}"
        if not halves[0]:
            return None
        ((revision, value),) = halves[0]
        stamp = self.by_revision[revision]
        ts, batch = map(int, value.split(b"/"))
        assert ts == stamp.ts, f"{told.token} was built for {ts}, committed at {stamp}"
        assert (ts, batch) in told.stamps
        assert not self._unheld(told, revision), f"{told.token} is there against its guards"
        return stamp

    def _unheld(self, told: Told, revision: int) -> list[tuple[Any, int]]:
        state = self.journal.before(revision)
        unheld = []
        for guard in told.guards:
            match guard:
                case Absent(key=key):
                    found, wanted = state.get(DATA + key.encode(), 0), 0
                case AtRevision(key=key, revision=wanted):
                    found = state.get(DATA + key.encode(), 0)
                case HeadAt(revision=wanted):
                    found = state.get(TS_KEY, 0)
            if found != wanted:
                unheld.append((guard, found))
        return unheld

    def _acknowledged(self, told: Told, landed: Stamped | None) -> None:
        commit = told.commit
        assert commit is not None
        assert landed is not None, f"{told.token}: acknowledged as {commit}, but not there"
        assert (commit.ts, commit.revision) == (landed.ts, landed.revision), f"{commit} is {landed}"
        assert told.stamps[-1] == (commit.ts, commit.batch), f"{told.token}: {commit}"

    def _conflict(self, told: Told, error: ConflictError) -> None:
        """Its request must have arrived in time, and its guards not have held just then."""
        head = self.journal.arrivals.get((told.stamps[-1].ts, told.process))
        assert head is not None, f"{told.token}: conflict in a request that never counted"
        unheld = self._unheld(told, head + 1)
        assert unheld, f"{told.token}: all guards held after {head}"
        assert list(error.failed) == unheld, f"{told.token}: told {error.failed}, true is {unheld}"

    def _unknown(self, told: Told, landed: Stamped | None) -> None:
        error = told.error
        if isinstance(error, CommitUnknownError):
            assert (error.timestamp, error.batch) == told.stamps[-1]
            assert [check.guard for check in error.guards] == list(told.guards)
            if landed is not None:
                assert landed.nonce == error.nonce
            if not error.may_still_land:
                assert self.compacted, f"{told.token}: undecidable without a compaction"
            for verdict in told.resolved:
                self._resolved(told, error, landed, verdict)

    def _resolved(
        self, told: Told, error: CommitUnknownError, landed: Stamped | None, verdict: Any
    ) -> None:
        what = f"{told.token}: resolved to {verdict!r}"
        stamp = self.by_ts.get(error.timestamp)
        group_landed = stamp is not None and stamp.nonce == error.nonce
        match verdict:
            case None:
                assert not group_landed, f"{what}, but {stamp} landed"
            case snapkv.Commit():
                assert landed is not None, f"{what}, but it is not there"
                assert (verdict.ts, verdict.revision) == (landed.ts, landed.revision), what
            case ConflictError():
                assert group_landed, f"{what}, but its group never landed"
                assert landed is None, f"{what}, but it is there"
                assert stamp is not None
                assert list(verdict.failed) == self._unheld(told, stamp.revision), what
            case CommitUnknownError(may_still_land=False):
                assert self.compacted, f"{what} without a compaction"
            case _:
                raise AssertionError(what)
