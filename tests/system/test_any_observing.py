"""Any program of foreign writes, ticks, commits and compactions, observed, against a plain model.

The model (`store.observed.Foreign`) is a list of what each revision changed, and a list of marks;
it shares nothing with the library.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import SOAK
from store.engines import ENGINES, START_MS, Place
from store.observed import Cluster, drained

from snapkv import CompactedError, KeyNotFoundError, ManualClock
from snapkv.errors import NotObservedError

from .effort import EFFORT

pytestmark = pytest.mark.long

RINGS = (1, 2, 7, 1_024)
PREFIXES = ("/r/", "default/data/")
"""Nobody's keys; and those of the store that ticks, to which others write, too."""

NAMES = ("a", "a/1", "ab", "b")
STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.integers(0, 9)),
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.integers(0, 9)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("tick"), st.sampled_from([0, 1, 1_000, -500]), st.none()),
    st.tuples(st.just("tick"), st.sampled_from([0, 1, 1_000, -500]), st.none()),
    st.tuples(st.just("commit"), st.sampled_from(NAMES), st.integers(0, 9)),
    st.tuples(st.just("noise"), st.none(), st.none()),
    st.tuples(st.just("burst"), st.integers(1, 12), st.sampled_from(NAMES)),
    st.tuples(st.just("compact"), st.integers(0, 40), st.sampled_from([-1, 0, 1])),
    st.tuples(st.just("look"), st.integers(0, 40), st.sampled_from([-1, 0, 1])),
    st.tuples(st.just("follow"), st.none(), st.none()),
    st.tuples(st.just("follow again"), st.integers(0, 40), st.none()),
    st.tuples(st.just("reopen"), st.none(), st.none()),
)


class Run:
    """A program on one engine, seen by one reader for each size of ring, and by a watch."""

    def __init__(self, place, prefix) -> None:
        self.cluster = Cluster(place, ManualClock(START_MS), prefix=prefix)
        self.model = self.cluster.model
        self.readers = {ring: self.cluster.observe(ring_slots=ring) for ring in RINGS}
        self.watch = self.readers[2].watch(since=0)
        self.seen: list | None = []  # what the watch has told since `begun`; None: not watching
        self.begun = 0
        self.followed = 0  # the mark's revision up to which the watch has surely come

    def step(self, what, a, b) -> None:
        getattr(self, what.replace(" ", "_"))(a, b)

    # --- what happens ---

    def write(self, name, n) -> None:
        self.cluster.write(**{name: b"%d" % n, "other": b"%d" % n} if n % 3 else {name: b"%d" % n})

    def remove(self, name, _) -> None:
        self.cluster.write(**{name: None})

    def tick(self, advance_ms, _) -> None:
        self.cluster.tick(advance_ms)

    def commit(self, name, n) -> None:
        if self.cluster.prefix == "default/data/":
            self.cluster.commit(name, b"own %d" % n)

    def noise(self, *_) -> None:
        self.cluster.noise()

    def burst(self, count, name) -> None:
        for n in range(count):
            self.write(name, n)
            self.cluster.tick(1)

    def compact(self, which, offset) -> None:
        revisions = [mark.revision for mark in self.model.marks] or [1]
        revision = revisions[which % len(revisions)] + offset
        revision = min(max(revision, self.model.compacted, 1), self.cluster.place.revision())
        self.cluster.compact(revision)

    def reopen(self, *_) -> None:
        for ring, reader in self.readers.items():
            reader.close()
            self.readers[ring] = self.cluster.observe(ring_slots=ring)
        if self.seen is not None:  # the watch was closed with its reader: it resumes
            self.resume(self.watch.timestamp)

    # --- what is seen ---

    def look(self, which, offset) -> None:
        marks = self.model.marks
        ts = marks[which % len(marks)].ts + offset if marks else which
        for reader in self.readers.values():
            self.check_moment(reader, max(0, ts))

    def follow(self, *_) -> None:
        if self.seen is None:
            return
        try:
            self.seen += drained(self.watch, self.cluster.newest())
        except CompactedError as e:
            error = e
        else:
            error = None
        if error is not None:
            assert self.model.compacted > self.followed + 1, "nothing was lost yet"
            assert error.earliest == self.model.earliest()
            self.seen = None
            return
        self.followed = self.model.marks[-1].revision if self.model.marks else 0
        assert self.seen == self.model.since(self.begun)

    def follow_again(self, which, _) -> None:
        marks = self.model.marks
        self.watch.close()
        self.seen, self.begun = [], marks[which % len(marks)].ts if marks else 0
        self.followed = 0
        self.resume(self.begun)

    def resume(self, since) -> None:
        at = self.model.mark_at(since)
        start = self.model.marks[at].revision + 1 if at >= 0 else 1
        error = None
        try:
            self.watch = self.readers[7].watch(since=since)
        except CompactedError as e:
            error = e
        if error is not None:
            # just behind a mark nothing is lost, but the mark may be on record no more
            assert start <= self.model.compacted, "nothing was lost yet"
            assert error.earliest == self.model.earliest()
            self.seen = None
        else:
            assert start >= self.model.compacted or self.model.compacted <= 1
            self.followed = max(self.followed, start - 1)

    def check_moment(self, reader, ts) -> None:
        at, marks, compacted = self.model.mark_at(ts), self.model.marks, self.model.compacted
        name = self.cluster.prefix + "a"
        try:
            snap = reader.at(ts)
            found = dict(snap.items())
            assert reader.load_with_prefix(self.cluster.prefix, ts) == (
                list(found), list(found.values()),
            )  # fmt: skip
            assert snap.count() == len(found)
        except NotObservedError as e:
            told = ("not observed", e.requested, e.first)
        except CompactedError as e:
            told = ("compacted", e.requested, e.earliest)
        else:
            told = (found, snap.revision, snap.timestamp, snap.final)
            try:
                assert reader.load(name, ts) == found[name]
            except KeyNotFoundError:
                assert name not in found
        gone = ("compacted", ts, self.model.earliest())
        if at < 0:
            unknown = ("not observed", ts, self.model.first())
            # with the first mark, the word that it was the first may be compacted, too
            assert told == unknown or (told == gone and compacted > marks[0].revision)
        elif marks[at].revision < compacted:
            assert told == gone
        else:
            revision = marks[at].revision
            assert told == (self.model.state(revision), revision, ts, ts <= marks[-1].ts)

    def check_everything(self) -> None:
        marks, model = self.model.marks, self.model
        times = {0, *(mark.ts + d for mark in marks for d in (-1, 0, 1))}
        for reader in self.readers.values():
            for ts in sorted(times):
                self.check_moment(reader, ts)
            assert reader.info()["earliest_timestamp"] == model.earliest()
            assert reader.resolved() == (marks[-1].ts if marks else 0)
            for name in (*NAMES, "other"):
                key = self.cluster.prefix + name
                try:
                    told = [(v.ts, v.revision, v.value, v.writer) for v in reader.history(key)]
                except NotObservedError:
                    assert not marks
                else:
                    assert told == model.history(key)
            self.check_differences(reader)
            reader._core.timeline.tracker.check()
        self.follow()

    def check_differences(self, reader) -> None:
        left = [mark for mark in self.model.marks if mark.revision >= self.model.compacted]
        for a, b in ((left[0], left[-1]), (left[-1], left[0])) if left else ():
            before, after = self.model.state(a.revision), self.model.state(b.revision)
            wanted = [
                (key, before.get(key), after.get(key))
                for key in sorted({*before, *after})
                if before.get(key) != after.get(key)
            ]
            assert [(d.key, d.before, d.after) for d in reader.diff(a.ts, b.ts)] == wanted


def run(engine, prefix, program) -> None:
    folder = tempfile.mkdtemp(prefix="snapkv-observing-")
    try:
        with Place(ENGINES[engine], folder) as place:
            done = Run(place, prefix)
            for what, a, b in program:
                done.step(what, a, b)
            done.check_everything()
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("prefix", PREFIXES)
@EFFORT
@given(st.lists(STEPS, max_size=25))
def test_any_program_on_memory(prefix, program) -> None:
    run("memory", prefix, program)


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "memory"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_long_programs_on_every_engine(engine, prefix) -> None:
    seed = int(os.environ.get("SNAPKV_SEED", random.SystemRandom().getrandbits(32)))
    print(f"SNAPKV_SEED={seed}")
    rng = random.Random(seed)
    for _ in range(2 if SOAK or ENGINES[engine].url else 1):
        run(engine, prefix, [random_step(rng) for _ in range(60)])


def random_step(rng):
    what = rng.choice(
        ("write",) * 6 + ("tick",) * 4 + ("look", "follow") * 2
        + ("remove", "commit", "noise", "burst", "compact", "follow again", "reopen")
    )  # fmt: skip
    match what:
        case "write" | "commit":
            return what, rng.choice(NAMES), rng.randrange(10)
        case "remove":
            return what, rng.choice(NAMES), None
        case "tick":
            return what, rng.choice((0, 1, 1_000, -500)), None
        case "burst":
            return what, rng.randrange(1, 5), rng.choice(NAMES)
        case "compact":  # mostly old, so that something is left to look at
            return what, rng.randrange(6), rng.choice((-1, 0, 1))
        case "look":
            return what, rng.randrange(41), rng.choice((-1, 0, 1))
        case _:
            return what, rng.randrange(41), None
