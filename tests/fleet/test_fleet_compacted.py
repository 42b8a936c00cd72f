"""A member whose engine is compacted while the fleet is open: its archive answers from then on."""

from __future__ import annotations

import random
from bisect import bisect_right
from contextlib import suppress

import pytest
from sampling import some

from snapkv import CompactedError, MembersBehindError
from snapkv.engine import memory
from snapkv.engine.etcd import scan
from snapkv.engine.lmdb import walking
from snapkv.errors import EngineUnavailableError, HistoryGapError
from snapkv.fleet.members import HistorySpan
from snapkv.fleet.merged_logs import differences_in, logs
from snapkv.reading import history
from snapkv.timeline import moment as moments

KEYS = [f"k{n:02}" for n in range(24)]
KEPT_MS = 200_000
"""More than compaction keeps in any case."""


class Told:
    """A store "a" that is recorded and compacted, and what was true of it at each time."""

    def __init__(self, sites, kind: str, rng: random.Random) -> None:
        (self.store,) = sites.add("a", kind=kind)
        self.sites, self.rng = sites, rng
        self.stamps: list[int] = []
        self.states: list[dict[str, bytes]] = []
        self.recorded = 0
        self.lost: list[tuple[int, int]] = []
        """Times that were compacted before they were recorded: between two commits each."""
        self.write()
        self.record()

    def described(self) -> dict:
        return {"a": self.sites.described_as("a", archive=self.archive)}

    def write(self) -> None:
        """Commit some keys, and remove one at times."""
        state = dict(self.states[-1]) if self.states else {}
        keys = self.rng.sample(KEYS, self.rng.randrange(1, 12))
        puts = {key: b"%d" % self.rng.randrange(1 << 30) for key in keys}
        gone = [key for key in state if key not in puts and self.rng.random() < 0.1]
        self.sites.later(self.rng.choice([1, 1_000, 90_000]))
        self.stamps.append(self.store.commit(puts=puts, deletes=gone).ts)
        self.states.append({key: v for key, v in (state | puts).items() if key not in gone})

    def record(self) -> None:
        self.archive = self.sites.archive("a")
        self.recorded = self.stamps[-1]

    def compact(self, *, beyond: bool = False) -> None:
        """Compact up to a commit, which is recorded unless `beyond`; by another open store."""
        self.sites.later(KEPT_MS)
        least = bisect_right(self.stamps, self.recorded) if beyond else 0
        able = (
            self.stamps[least:]
            if beyond
            else self.stamps[: bisect_right(self.stamps, self.recorded)]
        )
        if able:
            upto = self.rng.choice(able)
            with self.sites.open("a") as other:
                other.compact(upto, past_recordings=True)
            if beyond:
                self.lost.append((self.recorded, upto))

    def state(self, timestamp: int) -> dict[str, bytes]:
        at = bisect_right(self.stamps, timestamp)
        return self.states[at - 1] if at else {}

    def time(self) -> int:
        """Return a time at or after the first commit, up to the last one."""
        ts = self.rng.choice(self.stamps)
        return min(ts + self.rng.choice([0, 0, 1]), self.stamps[-1])

    def is_lost(self, timestamp: int) -> bool:
        """Return whether neither the engine nor the archive has a time."""
        return any(low < timestamp < high for low, high in self.lost)


def everything(moment) -> list[dict]:
    """Return the state of a moment, read in each way."""
    keys = [key for _, key in moment]
    return [
        {key: value for (_, key), value in moment.items()},
        {key: moment["a", key] for key in keys},
        {key: entry.value for (_, key), entry in moment.entries()},
        dict(zip(keys, moment.values(), strict=True)),
        dict(moment.of("a").items(limit=len(KEYS) + 1)),
        {row["key"]: row["value"] for row in moment.to_arrow().to_pylist()},
        {key: found["a"] for key in KEYS if (found := moment.everywhere(key))},
    ]


LOST = CompactedError, HistoryGapError


def check(told: Told, moment, timestamp: int) -> None:
    """Check a moment in each way to read it, or that it is truly lost."""
    wanted = told.state(timestamp)
    error = None
    try:
        assert all(found == wanted for found in everything(moment))
        assert moment.count() == len(wanted)
    except LOST as e:
        error = e
    if error is not None:
        assert told.is_lost(timestamp), f"{timestamp}: {error}"
        assert "the archive" in str(error)
        assert error.member == "a"


def check_diff(told: Told, a, b) -> None:
    """Check the differences of two moments, or that one of the two is truly lost."""
    before, after = told.state(a.timestamp), told.state(b.timestamp)
    both = {key: (before.get(key), after.get(key)) for key in {*before, *after}}
    found, error = None, None
    try:
        found = {each.key[1]: (each.before, each.after) for each in a.diff(b)}
    except LOST as e:
        error = e
    if error is not None:
        assert told.is_lost(a.timestamp) or told.is_lost(b.timestamp), str(error)
    else:
        assert found == {key: pair for key, pair in both.items() if pair[0] != pair[1]}


@pytest.fixture(autouse=True)
def short_pages(monkeypatch):
    monkeypatch.setattr(scan, "PAGE_ROWS_FIRST", 5)
    monkeypatch.setattr(scan, "PAGE_ROWS_MAX", 5)
    monkeypatch.setattr(memory, "SCAN_PAGE_ROWS", 5)
    monkeypatch.setattr(walking, "CHUNK_RECORDS", 5)
    monkeypatch.setattr(walking, "CHUNK_RECORDS_FIRST", 5)
    monkeypatch.setattr(moments, "PAGE_KEYS", 5)
    monkeypatch.setattr(history, "LOG_PAGE_COMMITS", 3)
    monkeypatch.setattr(history, "HISTORY_PAGE_VERSIONS", 3)


@pytest.mark.long_on("memory", "etcd")
@pytest.mark.slow
@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *some([(kind, seed) for kind in ("memory", "lmdb") for seed in range(8)], one_in=2),
        ("etcd", 0),
    ],
)
def test_an_open_fleet_answers_what_was_true_while_the_engine_is_compacted(sites, kind, seed):
    print("seed", seed)
    rng = random.Random(seed)
    told = Told(sites, kind, rng)
    for _ in range(5):
        told.write()
    fleet = sites.fleet(told.described())
    held: list = []
    for step in range(40):
        rng.choice([told.write, told.write, told.record, told.compact, lambda: None])()
        if step == 35:
            told.write()
            told.compact(beyond=True)
        with suppress(MembersBehindError):
            timestamp = told.time()
            fresh = fleet.at(timestamp)
            held.append((fresh, timestamp))
        kept, timestamp = rng.choice(held)
        check(told, kept, timestamp)
        other, _ = rng.choice(held)
        check_diff(told, kept, other)
    for timestamp in told.stamps:
        if not told.is_lost(timestamp):
            check(told, fleet.at(timestamp), timestamp)


@pytest.mark.parametrize("kind", ["memory", "lmdb", "etcd"])
def test_compaction_between_two_pages(sites, kind):
    (store,) = sites.add("a", kind=kind)
    old = store.commit(puts=dict.fromkeys(KEYS, b"old")).ts
    sites.later()
    store.commit(puts=dict.fromkeys(KEYS, b"new"))
    folder = sites.archive("a")
    fleet = sites.fleet({"a": sites.described_as("a", archive=folder)})
    moment, now = fleet.at(old), fleet.at()
    walks = {
        "items": (moment.items(), [(("a", key), b"old") for key in KEYS]),
        "keys": (moment.keys(), [("a", key) for key in KEYS]),
        "values": (moment.values(), [b"old"] * len(KEYS)),
        "first": (moment.of("a").items(limit=20), [(key, b"old") for key in KEYS[:20]]),
        "prefix": (moment.items("k1"), [(("a", key), b"old") for key in KEYS[10:20]]),
    }
    begun = {name: next(walk) for name, (walk, _) in walks.items()}
    sites.later(KEPT_MS)
    last = store.save("k00", b"newest")
    sites.archive("a")
    sites.later(KEPT_MS)
    with sites.open("a") as other:
        other.compact(last)
    for name, (walk, wanted) in walks.items():
        assert [begun[name], *walk] == wanted, name
    assert [(each.before, each.after) for each in moment.diff(now)] == [(b"old", b"new")] * len(
        KEYS
    )
    assert moment.members["a"].state == "live", "what was seen of it stays"


@pytest.mark.long_on("memory", "etcd")
@pytest.mark.parametrize("kind", ["memory", "lmdb", "etcd"])
@pytest.mark.parametrize("since", [None, 0, 2])
def test_histories_go_on_in_the_archive_after_what_was_returned(sites, kind, since):
    (store,) = sites.add("a", kind=kind)
    stamps = []
    for n in range(12):
        sites.later()
        stamps.append(store.save("k", b"%d" % n))
    folder = sites.archive("a")
    fleet = sites.fleet({"a": sites.described_as("a", archive=folder)})
    after = stamps[since] if since else since
    wanted = [ts for ts in stamps if ts > (after or 0)]
    commits, versions = fleet.commits(after), fleet.history("k", since=after)
    begun = [next(commits).commit.ts], [next(versions).version.ts]
    sites.later(KEPT_MS)
    with sites.open("a") as other:
        other.compact(stamps[-2])
    assert [*begun[0], *(each.commit.ts for each in commits)] == wanted
    assert [*begun[1], *(each.version.ts for each in versions)] == wanted


@pytest.mark.long_on("memory", "etcd")
@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("kind", ["lmdb", "etcd"])
def test_a_log_goes_on_to_say_what_each_commit_changed(sites, kind, newest_first):
    (store,) = sites.add("a", kind=kind)
    for n in range(150):
        sites.later()
        store.commit(puts={"k": b"%d" % n, f"k{n}": b""})
    folder, until = sites.archive("a"), store.resolved()
    fleet = sites.fleet({"a": sites.described_as("a", archive=folder)})
    span = HistorySpan(None, until, {"a": until}, {})
    members = fleet._members
    found = logs(members, span, newest_first=newest_first, details=True)
    first = next(found)
    sites.later(KEPT_MS)
    with sites.open("a") as other:
        other.compact(until)
    changed = [[each.key for each in differences_in(members, one)] for one in (first, *found)]
    expected = [["k", f"k{n}"] for n in range(150)]
    assert changed == (expected[::-1] if newest_first else expected)


def test_an_archive_that_ends_before_what_was_compacted_is_named(sites):
    (store,) = sites.add("a")
    first = store.save("k", b"1")
    folder = sites.archive("a")
    sites.later()
    second, third = store.save("k", b"2"), store.save("k", b"3")
    fleet = sites.fleet({"a": sites.described_as("a", archive=folder)})
    held = {ts: fleet.at(ts) for ts in (first, second)}
    sites.later(KEPT_MS)
    with sites.open("a") as other:
        other.compact(third, past_recordings=True)
    assert held[first]["a", "k"] == b"1"
    with pytest.raises(CompactedError, match=f"is not kept, and the archive {folder} ends") as e:
        held[second]["a", "k"]
    assert e.value.member == "a"
    assert e.value.earliest == third


def test_an_archive_that_does_not_answer_is_why_a_held_moment_does_not(sites, monkeypatch):
    (store,) = sites.add("a")
    first = store.save("k", b"1")
    folder = sites.archive("a")
    sites.later()
    last = store.save("k", b"2")
    fleet = sites.fleet({"a": sites.described_as("a", archive=folder)})
    held = fleet.at(first)
    sites.later(KEPT_MS)
    with sites.open("a") as other:
        other.compact(last, past_recordings=True)
    connection = fleet._members.by_name["a"]

    def away() -> None:
        raise EngineUnavailableError("no answer from the bucket")

    with monkeypatch.context() as patch:
        patch.setattr(connection, "archive", away)
        for _ in range(2):
            with pytest.raises(EngineUnavailableError, match="no answer from the bucket"):
                held["a", "k"]
    connection.archive_silence._note = None
    assert held["a", "k"] == b"1"
