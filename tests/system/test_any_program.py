"""Any program of commits, clocks, compactions and reopenings against a plain model.

The model (`store.plain`) is a list of what each commit changed; it shares nothing with the
library. Each engine runs the same machine, with any ring.
"""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
import warnings

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from store.engines import ENGINES, START_MS, Place
from store.plain import Plain

import snapkv
from snapkv import (
    Absent,
    AtRevision,
    ClockSkewError,
    ClockWarning,
    CompactedError,
    ConflictError,
    HeadAt,
    ManualClock,
    Ops,
    SpaceOps,
    pack,
)
from snapkv.errors import KeyNotFoundError
from snapkv.times import physical_ms

from .effort import EFFORT, SERVER_EFFORT
from .neighbour import Neighbour

pytestmark = pytest.mark.long

RINGS = (1, 2, 7, 1_024)
KEEP_MS = 70_000
SKEW_MS = 5_000
SPACE = "s/%"

KEYS = st.sampled_from(["a", "a/1", "a/2", "ab", "b", "b/\u00e9"])
PREFIXES = st.sampled_from(["", "a", "a/", "b", "c"])
VALUES = st.sampled_from([b"", b"1", b"2", b"\0\xff"])
PUTS = st.dictionaries(KEYS, VALUES, max_size=3)
NOTES = st.sampled_from([None, "", "why"])
CLOCK_STEPS = st.sampled_from([0, 1, 500, 4_000, 60_000, 100_000, 3_600_000, -1, -1_000, -600_000])
WHICH = st.sampled_from([0, 1])


class Program(RuleBasedStateMachine):
    """Two openings of one store, with rings of different sizes, and a neighbour in the engine."""

    engine = ""
    neighbour: Neighbour | None = None

    @initialize(rings=st.permutations(RINGS), lead_ms=st.sampled_from([0, 3, -3]))
    def begin(self, rings, lead_ms):
        self.folder = tempfile.mkdtemp(prefix="snapkv-program-")
        self.place = Place(ENGINES[self.engine], self.folder)
        # the two openings have clocks of their own, which may differ a little
        self.clocks = [ManualClock(START_MS), ManualClock(START_MS + lead_ms)]
        self.highest_ms = [clock.now_ms() for clock in self.clocks]
        self.rings = rings[:2]
        self.plain = Plain()
        self.stores = [self.opened(0), self.opened(1)]
        self.other = self.place.open(name="other", clock=self.clocks[0])
        self.created = self.stores[0].at(0).revision
        self.watched = self.stores[1].watch(timeout=0)
        self.followed = []

    def opened(self, which):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClockWarning)
            return self.place.open(
                clock=self.clocks[which], ring_slots=self.rings[which], writer=f"w{which}"
            )

    def teardown(self):
        if not hasattr(self, "place"):
            return
        try:
            self.compare_everything()
        finally:
            self.place.__exit__()
            shutil.rmtree(self.folder)

    # --- what the model knows ---

    @property
    def newest(self):
        return self.plain.rows[-1].ts if self.plain.rows else 0

    @property
    def earliest(self):
        """The smallest time that can be asked for."""
        return self.plain.rows[self.plain.gone].ts if self.plain.gone >= 0 else 0

    def added(self, which, commit, changes, note=None, writer=None):
        wall = pack(max(0, self.clocks[which].now_ms()))
        assert commit.ts >= wall
        assert commit.ts > self.newest
        if wall > self.newest and wall == pack(self.highest_ms[which]):
            assert commit.ts - wall < 1_000, "the time of a commit is that of the clock"
        assert commit.revision > (self.plain.rows[-1].revision if self.plain.rows else 1)
        self.plain.add(commit.ts, commit.revision, changes, note, writer or f"w{which}")

    def effect_of(self, puts, deletes, prefixes, space_puts=(), space_prefixes=()):
        changes = self.plain.effect(puts, deletes, prefixes)
        byte_prefixes = [p.encode() for p in space_prefixes]
        space = {k.encode(): v for k, v in dict(space_puts).items()}
        return changes | self.plain.effect(space, (), byte_prefixes, space=SPACE)

    def moments(self, data):
        """Exact, between, below the first, above the last."""
        rows = self.plain.rows
        if not rows:
            return data.draw(st.sampled_from([0, 1, pack(START_MS)]))
        ts = data.draw(st.sampled_from([0, *(row.ts for row in rows[-40:]), rows[0].ts]))
        return ts and ts + data.draw(st.sampled_from([-1, 0, 0, 1, 1 << 30]))

    # --- what happens ---

    @rule(
        which=WHICH,
        puts=PUTS,
        deletes=st.lists(KEYS, max_size=2),
        prefixes=st.lists(PREFIXES, max_size=1),
        text=NOTES,
    )
    def commit(self, which, puts, deletes, prefixes, text):
        changes = self.effect_of(puts, deletes, prefixes)
        commit = self.stores[which].commit(
            puts=puts, deletes=deletes, delete_prefixes=prefixes, note=text
        )
        self.added(which, commit, changes, text)

    @rule(which=WHICH, puts=PUTS, space_puts=PUTS, prefixes=st.lists(PREFIXES, max_size=1))
    def commit_over_spaces(self, which, puts, space_puts, prefixes):
        changes = self.effect_of(puts, (), (), space_puts, prefixes)
        space = SpaceOps(
            puts={k.encode(): v for k, v in space_puts.items()},
            delete_prefixes=[p.encode() for p in prefixes],
        )
        commit = self.stores[which].commit(lambda _: Ops(puts=puts, spaces={SPACE: space}))
        self.added(which, commit, changes)

    @rule(
        which=WHICH, key=KEYS, value=VALUES, kind=st.sampled_from(["absent", "at", "head", "ahead"])
    )
    def guarded(self, which, key, value, kind):
        versions = self.plain.history(key)
        there = key in self.plain.state()
        head = self.plain.rows[-1].revision if self.plain.rows else self.created
        if kind == "absent":
            guard, holds = Absent(key), not there
        elif kind == "at":
            revision = versions[-1][1] if versions else 3
            guard, holds = AtRevision(key, revision), there
        elif kind == "head":
            guard, holds = HeadAt(head), True
        else:
            guard, holds = HeadAt(self.place.revision() + 1), False
        store = self.stores[which]
        if holds:
            commit = store.commit(puts={key: value}, guards=[guard], note="guarded")
            self.added(which, commit, {("", key): value}, "guarded")
            return
        with pytest.raises(ConflictError) as caught:
            store.commit(puts={key: value}, guards=[guard], note="guarded")
        found = versions[-1][1] if there else 0
        assert caught.value.failed == ((guard, head if kind == "ahead" else found),)
        assert list(store.commits(since=self.newest)) == []

    @rule(which=WHICH)
    def tick(self, which):
        wall = self.clocks[which].now_ms()
        if physical_ms(self.newest) - wall > SKEW_MS:
            with pytest.raises(ClockSkewError):
                self.stores[which].tick()
            return
        try:
            commit = self.stores[which].tick()
        except ClockSkewError:  # one was issued, and never stored, before the clock went back
            assert self.highest_ms[which] - wall > SKEW_MS
            return
        self.added(which, commit, {})

    @rule(count=st.integers(1, 30))
    def many(self, count):
        for n in range(count):
            which = n % 2 if count % 3 == 0 else 0
            commit = self.stores[which].commit(puts={"a": b"%d" % n})
            self.added(which, commit, {("", "a"): b"%d" % n})

    @rule(count=st.integers(1, 3))
    def foreign_commits(self, count):
        for _ in range(count):
            self.other.save("a", b"foreign")

    @rule(which=WHICH, step=CLOCK_STEPS)
    def clock_moves(self, which, step):
        self.clocks[which].advance(step)
        self.highest_ms[which] = max(self.highest_ms[which], self.clocks[which].now_ms())

    @rule(which=WHICH, ring=st.sampled_from(RINGS))
    def reopen(self, which, ring):
        self.stores[which].close()
        self.rings[which] = ring
        self.stores[which] = self.opened(which)
        if which == 1:
            self.resume()

    def resume(self):
        """Watch on from where the watch was, or from now when that was forgotten."""
        since = self.watched.timestamp
        if since < self.earliest:
            since = self.newest
            self.followed = [ts for ts, _ in self.plain.since(0)]
        self.watched = self.stores[1].watch(since=since, timeout=0)

    @rule(which=WHICH, data=st.data(), prefix=PREFIXES)
    def restore(self, which, data, prefix):
        when = self.moments(data)
        then, now = self.plain.state(when), self.plain.state()
        changes = {
            ("", key): then.get(key)
            for key in then.keys() | now.keys()
            if key.startswith(prefix) and then.get(key) != now.get(key)
        }
        try:
            store = self.stores[which]
            commit = store.restore(when, prefix, note="restored", before_first=True)
        except CompactedError:
            assert when < self.earliest
        except KeyNotFoundError:
            assert not [key for key in then.keys() | now.keys() if key.startswith(prefix)]
        else:
            self.added(which, commit, changes, "restored")

    @rule(which=WHICH, data=st.data(), replace=st.booleans())
    def dump_and_load(self, which, data, replace):
        when = self.moments(data)
        file = io.BytesIO()
        if when < self.earliest:
            with pytest.raises(CompactedError):
                self.stores[which].dump(file, when)
            return
        then = self.plain.state(when), self.plain.state(when, SPACE)
        assert self.stores[which].dump(file, when) == len(then[0]) + len(then[1])
        file.seek(0)
        if not replace:
            with snapkv.open("memory:") as fresh:
                fresh.load_dump(file)
                assert dict(fresh.at().items()) == then[0]
                assert dict(fresh.space(SPACE).at().items()) == then[1]
            return
        changes = self.plain.effect(then[0], (), [""])
        changes |= self.plain.effect(then[1], (), [b""], space=SPACE)
        commit = self.stores[which].load_dump(file, replace=True, note="loaded")
        self.added(which, commit, changes, "loaded")

    @rule(which=WHICH, data=st.data())
    def make_final(self, which, data):
        wall = self.clocks[which].now_ms()
        when = pack(wall + data.draw(st.sampled_from([-1_000, 0, SKEW_MS, SKEW_MS + 1])))
        if when < self.earliest:
            return
        if when > max(self.newest, pack(wall + SKEW_MS)):
            with pytest.raises(ClockSkewError):
                self.stores[which].at(when, final=True)
            return
        snap = self.stores[which].at(when, final=True)
        assert snap.final
        if when > self.newest:
            (commit,) = self.stores[which].commits(since=self.newest)
            assert commit.ts >= when
            self.plain.add(commit.ts, commit.revision, {}, None, f"w{which}")
        assert dict(snap.items()) == self.plain.state(when)

    # --- forgetting ---

    @rule(which=WHICH, data=st.data(), all_of_it=st.booleans())
    def compact(self, which, data, all_of_it):
        when = pack(2 * START_MS) if all_of_it else self.moments(data)
        done = self.stores[which].compact(when)
        limit_ms = self.clocks[which].now_ms() - KEEP_MS
        target = min(when, pack(limit_ms + 1) - 1)
        self.plain.gone = max(self.plain.gone, self.plain.row_at(target))
        assert done.earliest == self.earliest
        self.place_compacted()

    @rule()
    def compact_by_the_other_store(self):
        self.other.compact("-0s")
        self.place_compacted()

    def place_compacted(self):
        """What is forgotten follows from the engine's compacted revision, whoever moved it."""
        compacted = self.place.engine().compacted_revision()
        for at, row in enumerate(self.plain.rows):
            if row.revision <= compacted:
                self.plain.gone = max(self.plain.gone, at)
        if self.plain.gone >= 0:
            assert self.plain.rows[self.plain.gone].revision <= compacted

    # --- other processes ---

    def ask_neighbour(self, **request):
        cls = type(self)
        if cls.neighbour is None:
            cls.neighbour = Neighbour()
            atexit.register(cls.neighbour.close)
        kind = self.place.kind
        return cls.neighbour.ask(
            url=self.place.url, options=kind.options, now_ms=self.clocks[0].now_ms(), **request
        )

    @precondition(lambda self: ENGINES[self.engine].processes)
    @rule(
        puts=st.dictionaries(KEYS, st.sampled_from(["", "x"]), max_size=2),
        prefixes=st.lists(PREFIXES, max_size=1),
    )
    def another_process_commits(self, puts, prefixes):
        stored = {key: value.encode() for key, value in puts.items()}
        changes = self.plain.effect(stored, (), prefixes)
        done = self.ask_neighbour(puts=puts, deletes=[], prefixes=prefixes, note="from afar")
        assert done["ts"] > self.newest
        self.plain.add(done["ts"], done["revision"], changes, "from afar", "neighbour")

    @precondition(
        lambda self: ENGINES[self.engine].processes and b"\0\xff" not in self.plain.state().values()
    )
    @rule()
    def another_process_reads(self):
        expected = {key: value.decode() for key, value in self.plain.state().items()}
        assert self.ask_neighbour(load=self.newest) == expected

    # --- what is asked ---

    @rule(which=WHICH, data=st.data())
    def ask_a_moment(self, which, data):
        self.assert_moment(self.stores[which], self.moments(data))

    @rule(which=WHICH, data=st.data(), key=KEYS)
    def load(self, which, data, key):
        when = self.moments(data)
        if when < self.earliest:
            with pytest.raises(CompactedError):
                self.stores[which].load(key, when)
            return
        value = self.plain.state(when).get(key)
        try:
            assert self.stores[which].load(key, when) == value
        except KeyError:
            assert value is None

    @rule(which=WHICH, data=st.data(), prefix=PREFIXES)
    def diff(self, which, data, prefix):
        a, b = self.moments(data), self.moments(data)
        before, after = self.plain.state(a), self.plain.state(b)
        try:
            found = [(d.key, d.before, d.after) for d in self.stores[which].diff(a, b, prefix)]
        except CompactedError:
            assert min(a, b) < self.earliest
            return
        assert found == [
            (key, before.get(key), after.get(key))
            for key in sorted(before.keys() | after.keys())
            if key.startswith(prefix) and before.get(key) != after.get(key)
        ]

    @rule(which=WHICH, data=st.data(), newest_first=st.booleans())
    def log(self, which, data, newest_first):
        since, until = self.moments(data), self.moments(data)
        if min(since, until) < self.earliest:
            return
        found = [c.ts for c in self.stores[which].commits(since, until, newest_first=newest_first)]
        expected = [row.ts for row in self.plain.rows if since < row.ts <= until]
        assert found == (expected[::-1] if newest_first else expected)

    @rule(which=WHICH, data=st.data(), prefix=PREFIXES)
    def watch(self, which, data, prefix):
        since = self.moments(data)
        if since < self.earliest:
            return
        with self.stores[which].watch(prefix, since, timeout=0) as watch:
            found = [(c.commit.ts, [(x.key, x.value) for x in c]) for c in watch]
            assert watch.timestamp == max(since, self.newest)
        assert found == self.plain.since(since, prefix)

    @rule(which=WHICH, key=KEYS)
    def history(self, which, key):
        assert self.history_of(self.stores[which], key) == self.expected_history(key)

    @rule()
    def follow(self):
        """The watch that is open all the time goes on from where it was."""
        try:
            self.followed += [c.commit.ts for c in self.watched]
        except CompactedError:
            assert self.watched.timestamp < self.earliest
            self.watched.close()
            self.resume()
        until = self.watched.timestamp
        assert self.followed == [ts for ts, _ in self.plain.since(0) if ts <= until]

    @invariant()
    def the_newest_is_known_to_all(self):
        for store in getattr(self, "stores", []):
            assert store.resolved() == self.newest

    # --- comparing ---

    def assert_moment(self, store, when):
        snap = store.at(when) if when >= self.earliest else None
        if snap is None:
            with pytest.raises(CompactedError) as caught:
                store.at(when).count()
            assert caught.value.earliest == self.earliest
            return
        assert dict(snap.items()) == self.plain.state(when)
        assert len(snap) == len(self.plain.state(when))
        assert dict(store.space(SPACE).at(when).items()) == self.plain.state(when, SPACE)
        assert snap.final == (when <= self.newest)
        row = self.plain.row_at(when)
        assert snap.revision == (self.plain.rows[row].revision if row >= 0 else self.created)

    @staticmethod
    def history_of(store, key):
        return [(v.ts, v.revision, v.value) for v in store.history(key)]

    def expected_history(self, key):
        versions = self.plain.history(key)
        compacted = self.place.engine().compacted_revision()
        kept = [v for v in versions if v[1] >= compacted]
        stood = [v for v in versions if v[1] <= compacted][-1:]
        if stood and stood[0] not in kept and stood[0][2] is not None:
            on_record = stood[0][0] == self.earliest  # its commit is the oldest that is left
            kept.insert(0, stood[0] if on_record else (None, *stood[0][1:]))
        return kept

    def compare_everything(self):
        fresh = [self.opened(0)] if hasattr(self, "stores") else []
        for store in [*self.stores, *fresh]:
            for when in sorted({0, *(row.ts for row in self.plain.rows[-30:])}):
                self.assert_moment(store, when)
            kept = [
                (row.ts, row.revision, row.writer, row.note)
                for row in self.plain.rows[max(0, self.plain.gone) :]
            ]
            log = [(c.ts, c.revision, c.writer, c.note) for c in store.commits()]
            assert log == kept
            back = [c.ts for c in store.commits(newest_first=True)]
            assert back == [ts for ts, *_ in kept[::-1]]
            for key in ("a", "a/1", "ab", "b"):
                assert self.history_of(store, key) == self.expected_history(key)
            report = store.check()
            note(f"checked {report.commits} commits, {report.keys} keys")
            assert report.problems == ()
            assert report.keys == len(self.plain.state())
        self.follow()


@pytest.mark.parametrize("engine", ENGINES)
def test_any_program_gives_the_answers_of_the_model(engine):
    machine = type(f"Program_{engine}", (Program,), {"engine": engine})
    effort = EFFORT if ENGINES[engine].url else SERVER_EFFORT
    run_state_machine_as_test(machine, settings=effort)
