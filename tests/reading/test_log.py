"""The commit log, and the history of a key with who changed it and why."""

import pytest
from store.engines import START_MS
from store.wrapping import Counting, wrap_engines

from snapkv import Version, format_time, pack
from snapkv.errors import CompactedError


@pytest.fixture
def log(store, clock):
    """Ten commits, a second apart."""
    commits = []
    for n in range(10):
        commits.append(store.commit(puts={f"k{n % 3}": b"%d" % n}, note=f"n{n}"))
        clock.advance(1_000)
    return commits


# --- commits ---


def test_since_is_exclusive_until_is_inclusive(store, log):
    stamps = [c.ts for c in log]
    assert list(store.commits()) == log
    for i in range(10):
        assert list(store.commits(since=stamps[i])) == log[i + 1 :]
        assert list(store.commits(since=stamps[i] - 1)) == log[i:]
        assert list(store.commits(until=stamps[i])) == log[: i + 1]
        assert list(store.commits(until=stamps[i] - 1)) == log[:i]
        for j in range(10):
            assert list(store.commits(stamps[i], stamps[j])) == log[i + 1 : j + 1]
    assert list(store.commits(since=0)) == log
    assert list(store.commits(until=0)) == []
    assert list(store.commits(since=stamps[-1] + 1)) == []


def test_newest_first_is_the_same_backwards(store, log):
    stamps = [0, *(c.ts for c in log)]
    assert list(store.commits(newest_first=True)) == log[::-1]
    for since in (None, *stamps):
        for until in (None, *stamps):
            forwards = list(store.commits(since, until))
            assert list(store.commits(since, until, newest_first=True)) == forwards[::-1]


def test_limit(store, log):
    for limit in (0, 1, 3, 10, 11):
        assert list(store.commits(limit=limit)) == log[:limit]
        assert list(store.commits(limit=limit, newest_first=True)) == log[::-1][:limit]
    assert list(store.commits(log[2].ts, limit=2)) == log[3:5]


def test_times_of_every_kind(store, log, clock):
    assert list(store.commits(since="-3s")) == log[8:]
    assert list(store.commits(since=format_time(log[6].ts))) == log[7:]
    assert list(store.commits(until=format_time(log[6].ts))) == log[:7]


def test_ticks_are_commits_conflicts_leave_an_empty_one_at_most(store, log):
    tick = store.tick()
    assert list(store.commits(log[-1].ts)) == [tick]


@pytest.mark.slow
@pytest.mark.parametrize("count", [255, 256, 257, 600])
def test_more_commits_than_a_page(store, clock, count):
    commits = [store.commit(puts={"k": b"%d" % n}) for n in range(count)]
    assert list(store.commits()) == commits
    assert list(store.commits(newest_first=True)) == commits[::-1]
    assert list(store.commits(newest_first=True, limit=260)) == commits[::-1][:260]
    assert (
        list(store.commits(commits[10].ts, commits[-3].ts, newest_first=True))
        == (commits[11:-2][::-1])
    )


@pytest.mark.long_on("etcd")
def test_the_newest_few_of_a_long_log_cost_little(monkeypatch, place, clock):
    engines = wrap_engines(monkeypatch, Counting)
    store = place.open(clock=clock, ring_slots=7)
    commits = [store.commit() for _ in range(1_000)]
    calls = engines[0].during(lambda: list(store.commits(limit=5, newest_first=True)))
    assert sum(calls.values()) <= 12
    assert list(store.commits(limit=5, newest_first=True)) == commits[:-6:-1]


def test_the_log_of_others(store, place, clock, log):
    other = place.open(clock=clock, writer="bob@test")
    mine = other.commit(puts={"x": b"1"}, note="by bob")
    assert list(other.commits()) == list(store.commits()) == [*log, mine]
    assert mine.writer == "bob@test"


def test_the_log_of_another_store_in_the_engine_is_its_own(store, place, clock, log):
    other = place.open(clock=clock, name="other")
    mine = [other.commit(), other.commit()]
    assert list(other.commits()) == mine
    assert list(store.commits()) == log


# --- after compaction ---


@pytest.fixture
def compacted(store, clock, log):
    """The ten commits, history before the fifth forgotten."""
    clock.advance(200_000)
    assert store.compact(log[4].ts).earliest == log[4].ts
    return log


def test_the_log_begins_with_what_compaction_left(store, compacted):
    log = compacted
    assert list(store.commits()) == log[4:]
    assert list(store.commits(newest_first=True)) == log[:3:-1]
    assert list(store.commits(until=log[4].ts)) == log[4:5]
    assert list(store.commits(until=log[4].ts, newest_first=True)) == log[4:5]
    assert list(store.commits(until=log[6].ts)) == log[4:7]
    assert list(store.commits(limit=2)) == log[4:6]


def test_since_stays_exclusive_at_the_compaction_point(store, compacted):
    log = compacted
    assert list(store.commits(since=log[4].ts)) == log[5:]
    assert list(store.commits(since=log[4].ts, newest_first=True)) == log[:4:-1]
    assert list(store.commits(log[4].ts, log[4].ts)) == []
    assert list(store.commits(log[4].ts, log[4].ts, newest_first=True)) == []
    assert list(store.commits(log[4].ts + 1, newest_first=True)) == log[:4:-1]


@pytest.mark.parametrize("slots", [1, 1_024])
def test_since_and_until_what_is_gone(place, clock, compacted, store, slots):
    log = compacted
    for asked in (store, place.open(clock=clock, ring_slots=slots)):
        for since in (0, log[0].ts, log[3].ts - 1):
            with pytest.raises(CompactedError) as caught:
                list(asked.commits(since))
            assert caught.value.earliest == log[4].ts
        for until in (0, log[0].ts, log[4].ts - 1):
            with pytest.raises(CompactedError):
                list(asked.commits(until=until))
            with pytest.raises(CompactedError):
                list(asked.commits(until=until, newest_first=True))


def test_everything_compacted_but_the_newest(store, clock, log):
    clock.advance(200_000)
    store.compact("-0s")
    assert list(store.commits()) == list(store.commits(newest_first=True)) == log[-1:]
    assert list(store.commits(since=log[-1].ts)) == []
    new = store.commit()
    assert list(store.commits()) == [log[-1], new]
    assert list(store.commits(newest_first=True)) == [new, log[-1]]


# --- history of a key ---


def test_history_across_removals(store, clock):
    expected = []
    for value in (b"1", b"2", None, None, b"3", b"3", None):
        commit = store.commit(
            puts={} if value is None else {"k": value},
            deletes=["k"] if value is None else [],
            note=repr(value),
        )
        expected.append(Version(commit.ts, commit.revision, value, "ann@test", repr(value)))
        store.save("other", b"")
        clock.advance(3)
    del expected[3]  # removing what is not there changes nothing
    assert list(store.history("k")) == expected
    assert list(store.history("never")) == []


def test_history_by_prefix_removal(store):
    store.multi_save({"p/a": b"1", "p/b": b"2"})
    commit = store.commit(puts={"p/b": b"3"}, delete_prefixes=["p/"], note="swept")
    assert [v.value for v in store.history("p/a")] == [b"1", None]
    assert list(store.history("p/a"))[-1] == Version(
        commit.ts, commit.revision, None, "ann@test", "swept"
    )
    assert [v.value for v in store.history("p/b")] == [b"2", b"3"]


@pytest.mark.parametrize("count", [127, 128, 129, 300])
def test_more_versions_than_a_page(store, count):
    stamps = [store.save("k", b"%d" % n) for n in range(count)]
    assert [(v.ts, v.value) for v in store.history("k")] == [
        (ts, b"%d" % n) for n, ts in enumerate(stamps)
    ]


def test_history_is_as_of_the_call(store):
    store.save("k", b"1")
    versions = store.history("k")
    first = next(versions)
    store.save("k", b"2")
    assert first.value == b"1"
    assert len(list(versions)) <= 1
    assert len(list(store.history("k"))) == 2


def test_history_begins_where_compaction_left_it(store, compacted):
    log = compacted  # k0: 0, 3, 6, 9; k1: 1, 4, 7; k2: 2, 5, 8
    gone = Version(None, log[3].revision, b"3", None, None)
    assert next(store.history("k0")) == gone
    assert [v.value for v in store.history("k0")] == [b"3", b"6", b"9"]
    assert [v.ts for v in store.history("k0")] == [None, log[6].ts, log[9].ts]
    # written by the very commit that compaction left
    assert next(store.history("k1")) == Version(log[4].ts, log[4].revision, b"4", "ann@test", "n4")
    assert [v.value for v in store.history("k2")] == [b"2", b"5", b"8"]


def test_a_key_removed_before_the_compaction_point_has_no_history(store, clock):
    store.save("k", b"1")
    store.remove("k")
    ts = store.save("x", b"1")
    clock.advance(200_000)
    store.compact(ts)
    assert list(store.history("k")) == []
    store.save("k", b"2")
    assert [v.value for v in store.history("k")] == [b"2"]


@pytest.mark.etcd_since("3.5.18", "a watch from the compacted revision")
def test_a_key_removed_at_the_compaction_point(store, clock):
    store.save("k", b"1")
    ts = store.remove("k")
    clock.advance(200_000)
    assert store.compact(ts).earliest == ts
    assert [(v.ts, v.value) for v in store.history("k")] == [(ts, None)]
    assert "k" not in store.at(ts)


def test_the_first_commit_of_all_is_at_the_clock(store, log):
    assert log[0].ts == pack(START_MS)
