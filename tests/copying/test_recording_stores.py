"""A record of a store answers what the store answered, whatever ended the recorder."""

import itertools
import random
import threading
from contextlib import suppress

import pytest
from archive.histories import Writing, answers
from sampling import fewer_on_etcd

import snapkv
from snapkv.base.waiting import pause
from snapkv.copying import store_commits, store_target
from snapkv.engine.contract import OutcomeUnknown, Range
from snapkv.engine.lmdb.engine import LmdbEngine
from snapkv.engine.memory import MemoryEngine
from snapkv.errors import (
    ArchiveError,
    CommitTooLargeError,
    EngineBusyError,
    EngineUnavailableError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    KeyNotFoundError,
    StoreRestoredError,
)
from snapkv.layout import prefix_end

from .targets import TARGETS, assert_equal, opened, target_url

pytestmark = pytest.mark.slow

memory = pytest.mark.parametrize("place", ["memory"], indirect=True)
WAIT_S = 30


def recorder(place, into, **options):
    return snapkv.record(place.url, into=into, options=place.kind.options, **options)


@pytest.mark.long_on("etcd lmdb", "etcd memory")
@pytest.mark.long_after(1)
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize(("place", "seed"), fewer_on_etcd(range(3), one_in=3), indirect=["place"])
def test_it_answers_what_the_source_answered(place, store, clock, tmp_path, kind, seed):
    print("seed", seed)
    rng = random.Random(seed)
    writing, into = Writing(place, store, clock, rng), target_url(kind, tmp_path / "record")
    since = store.save("z", b"the first")
    for _ in range(rng.randrange(2, 5)):
        writing.steps(rng.randrange(20))
        assert recorder(place, into, clock=clock).catch_up() == store.resolved()
    with opened(kind, tmp_path / "record", clock=clock) as recorded:
        assert_equal(answers(store, since), recorded, since)
        assert recorded.check().problems == ()


@memory
@pytest.mark.parametrize("kind", TARGETS)
def test_source_revisions_and_writers_are_shown(place, store, tmp_path, kind):
    first = store.commit(puts={"a": b"1"}, note="why")
    recorder(place, target_url(kind, tmp_path / "r")).catch_up()
    with opened(kind, tmp_path / "r") as recorded:
        (commit,) = recorded.commits()
        assert (commit.ts, commit.writer, commit.note) == (first.ts, "ann@test", "why")
        shown = commit.revision if kind == "archive" else commit.source_revision
        assert shown == first.revision


@memory
@pytest.mark.parametrize("kind", TARGETS)
def test_a_record_begins_with_what_compaction_left(place, store, clock, tmp_path, kind):
    store.save("a", b"1")
    store.space("s").commit(puts={b"k": b"kept"})
    first = store.commit(puts={"b": b"2"}, deletes=["a"])
    second = store.save("b", b"3")
    clock.advance(600_000)
    store.compact(first.ts)
    recorder(place, target_url(kind, tmp_path / "r"), clock=clock).catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        assert dict(recorded.at(first.ts).items()) == {"b": b"2"}
        assert dict(recorded.at(second).items()) == {"b": b"3"}
        assert dict(recorded.space("s").at(first.ts).items()) == {b"k": b"kept"}
        with pytest.raises(snapkv.CompactedError):
            recorded.load("a", first.ts - (5 << 18))


# --- one recorder at a time ---


class Ended(BaseException):
    """The process ends here."""


ENDS = pytest.mark.parametrize(
    ("lost", "after"),
    [
        pytest.param(False, False, id="killed before"),
        pytest.param(True, True, id="answer lost after"),
        pytest.param(False, True, id="killed after"),
        pytest.param(True, False, id="answer lost before"),
    ],
)
"""How a write of a recorder ends: before the target has it, or after that."""


@pytest.mark.long_after(2)
@memory
@ENDS
def test_a_store_has_each_commit_once_wherever_it_ended(
    place, store, clock, tmp_path, monkeypatch, after, lost
):
    plain = MemoryEngine.transact
    since = store.save("z", b"the first")
    Writing(place, store, clock, random.Random(5)).steps(16)
    for steps in itertools.count():
        into = f"memory:{tmp_path}-{steps}"
        left = [steps]

        def transact(self, prepare, peek, *, timeout, url=into, left=left):
            if self.url != url or peek not in (b"default/sys/ts", b""):
                return plain(self, prepare, peek, timeout=timeout)
            left[0] -= 1
            fails = left[0] == -1
            if fails and not after:
                raise OutcomeUnknown("lost", retry=False) if lost else Ended
            done = plain(self, prepare, peek, timeout=timeout)
            if fails and after:
                raise OutcomeUnknown("lost", retry=False) if lost else Ended
            return done

        with monkeypatch.context() as patched:
            patched.setattr(MemoryEngine, "transact", transact)
            with suppress(Ended):
                recorder(place, into, clock=clock).catch_up()
        recorder(place, into, clock=clock).catch_up()
        with snapkv.open(into, clock=clock) as recorded:
            assert_equal(answers(store, since), recorded, since)
            assert recorded.check().problems == ()
        if left[0] >= 0:
            break
    assert steps > 10, "there were that many steps to end at"


@pytest.mark.long_after(2)
@memory
@ENDS
def test_a_group_of_commits_is_made_once(place, store, clock, tmp_path, monkeypatch, after, lost):
    """LMDB makes commits that wait together durable at once: all of them, or none."""
    plain, since = LmdbEngine.transact_each, store.save("z", b"the first")
    Writing(place, store, clock, random.Random(5)).steps(40)
    monkeypatch.setattr(store_commits, "GROUP_COMMITS_MAX", 7)
    sizes = []
    for groups in itertools.count():
        into, left = f"lmdb:{tmp_path}/{groups}", [groups]

        def transact_each(self, txns, *, timeout, left=left):
            sizes.append(len(txns))
            left[0] -= 1
            if left[0] == -1 and not after:
                raise OutcomeUnknown("lost", retry=False) if lost else Ended
            done = plain(self, txns, timeout=timeout)
            if left[0] == -1 and after:
                raise OutcomeUnknown("lost", retry=False) if lost else Ended
            return done

        with monkeypatch.context() as patched:
            patched.setattr(LmdbEngine, "transact_each", transact_each)
            with suppress(Ended):
                recorder(place, into, clock=clock).catch_up()
        recorder(place, into, clock=clock).catch_up()
        with snapkv.open(into, clock=clock) as recorded:
            assert_equal(answers(store, since), recorded, since)
            assert recorded.check().problems == ()
        if left[0] >= 0:
            break
    assert groups > 4, "there were that many groups to end at"
    assert max(sizes) == 7


@memory
def test_what_was_before_a_commit_that_is_too_large_is_recorded(place, store, tmp_path):
    into = f"lmdb:{tmp_path}"
    first = store.save("first", b"1")
    for n in range(5):
        store.save(f"small{n}", b"1")
    store.save("large", bytes(300_000))
    store.save("after", b"1")
    for _ in range(2):
        with pytest.raises(CommitTooLargeError):
            recorder(place, into, into_options={"request_bytes_max": 100_000}).catch_up()
        with snapkv.open(into) as recorded:
            assert recorded.load("first", first) == b"1"
            assert set(recorded.at()) == {"first", *(f"small{n}" for n in range(5))}


@memory
def test_no_tick_is_reported_before_it_is_durable(place, store, tmp_path, monkeypatch):
    plain, stop, seen = store_target.StoreTarget.add, threading.Event(), []

    def add(self, step):
        plain(self, step)
        seen.append((len(step.events), self.pending))
        stop.set()

    monkeypatch.setattr(store_target.StoreTarget, "add", add)
    options = {"options": place.kind.options, "observe": "other/", "every": "100ms"}
    recorder = snapkv.record(place.url, into=f"memory:{tmp_path}", **options)
    thread = threading.Thread(target=recorder.run, args=(stop,))
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    events, pending = seen[0]
    assert (events, pending > 0) == (0, True), "what is not pending is taken for durable"


@memory
def test_a_target_that_is_slow_for_all_of_a_group(place, store, clock, tmp_path, monkeypatch):
    """Each commit is made in time, and their sum is not."""
    since = store.save("a", b"0")
    for n in range(12):
        store.save("a", b"%d" % n)
    monkeypatch.setattr(store_commits, "SEND_S", 0.5)
    plain = MemoryEngine.transact

    def transact(self, prepare, peek, *, timeout):
        if self.url.endswith("slow") and peek == b"":
            if timeout < 0.1:
                raise OutcomeUnknown("too late", retry=True)
            pause(0.1)
        return plain(self, prepare, peek, timeout=timeout)

    monkeypatch.setattr(MemoryEngine, "transact", transact)
    into = f"memory:{tmp_path}/slow"
    recorder(place, into, clock=clock).catch_up()
    with snapkv.open(into, clock=clock) as recorded:
        assert_equal(answers(store, since), recorded, since)


@pytest.mark.long_after(1)
@memory
@pytest.mark.parametrize("kind", TARGETS)
def test_a_second_recorder_waits_for_the_first(place, store, tmp_path, kind):
    store.save("a", b"1")
    into, stop, states = target_url(kind, tmp_path / "r"), threading.Event(), []
    first = recorder(place, into, flush="100ms")
    seen = threading.Event()

    def report(status):
        states.append(status.state)
        seen.set()

    first._report = report
    thread = threading.Thread(target=first.run, args=(stop,))
    thread.start()
    try:
        assert seen.wait(WAIT_S)
        with pytest.raises(EngineBusyError, match="another recorder writes to"):
            recorder(place, into).catch_up(timeout=0.1)
    finally:
        stop.set()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    assert states[0] == "recording"
    assert recorder(place, into).catch_up(timeout=WAIT_S) == store.resolved()


class Flag:
    """What a signal handler sets: it has no lock for which a handler could wait."""

    wanted = False

    def is_set(self):
        return self.wanted


@memory
def test_a_flag_ends_it_while_the_source_is_away(place, tmp_path, monkeypatch):
    """`threading.Event.wait` would hold a lock that `set`, called by a handler, needs."""
    flag, waits = Flag(), threading.Event()
    away = recorder(place, f"memory:{tmp_path}")
    away._report = lambda status: status.state == "waiting" and waits.set()

    def fails(*_):
        raise EngineUnavailableError("down")

    monkeypatch.setattr(away, "_run", fails)
    running = threading.Thread(target=away.run, args=(flag,), daemon=True)
    running.start()
    assert waits.wait(WAIT_S)
    flag.wanted = True
    running.join(WAIT_S)
    assert not running.is_alive()


@memory
def test_a_deposed_recorder_writes_no_more(place, store, tmp_path):
    """Its leadership ends while it is between two steps: the target's guard notices."""
    from snapkv.copying.recorder import Recording
    from snapkv.errors import SessionLostError

    into = f"memory:{tmp_path}"
    for n in range(2):
        store.save("a", b"%d" % n)
    slow = recorder(place, into)
    plain, ended = Recording.take, []

    def take(self, timeout):
        if not ended:
            with snapkv.open(into) as target:
                engine, layout = target._core.engine, target._core.layout
                live = Range(layout.live.prefix, prefix_end(layout.live.prefix))
                for lease in {kv.lease for kv in engine.read([live]).results[0].kvs}:
                    engine.revoke(lease, timeout=5)
            ended.append(True)
            assert recorder(place, into).catch_up() == store.resolved()
        plain(self, timeout)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Recording, "take", take)
        with pytest.raises((SessionLostError, EngineBusyError)):
            slow.catch_up()
    with snapkv.open(into) as recorded:
        assert [v.value for v in recorded.history("a")] == [b"0", b"1"]


# --- gaps, watermarks, and what does not fit ---


@pytest.mark.parametrize("kind", TARGETS)
def test_a_gap_is_closed_and_named(place, store, clock, tmp_path, kind):
    into = target_url(kind, tmp_path / "r")
    store.commit(puts={"kept": b"1", "gone": b"1"})
    last = store.save("changed", b"1")
    recorder(place, into, clock=clock).catch_up()
    clock.advance(1_000)
    store.save("changed", b"2")
    clock.advance(1_000)
    store.save("lost", b"nobody saw this")
    store.commit(deletes=["lost", "gone"])
    end = store.save("changed", b"3")
    clock.advance(600_000)
    store.compact(end, past_recordings=True)
    later = store.save("kept", b"2")
    recording = recorder(place, into, clock=clock)
    recording.catch_up()
    (gap,) = recording.status.gaps
    assert "were compacted before they were recorded" in gap
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        for ts in (last, end, later):
            expected = {"kept": b"1", "gone": b"1", "changed": b"1"}
            if ts >= end:
                expected = {"kept": b"1" if ts == end else b"2", "changed": b"3"}
            assert dict(recorded.at(ts).items()) == expected
        notes = [c.note for c in recorded.commits(since=last) if c.note]
        assert notes[0].startswith("gap: ")
        assert [v.value for v in recorded.history("changed")] == [b"1", b"3"]
        if kind == "archive":
            with pytest.raises(snapkv.errors.HistoryGapError) as caught:
                recorded.load("changed", last + 1)
            assert (caught.value.after, caught.value.before) == (last, end)
        assert recorded.check().problems == ()


@pytest.mark.parametrize("kind", ["archive", "memory"])
def test_compaction_waits_for_recordings(place, store, clock, tmp_path, kind):
    into = target_url(kind, tmp_path / "r")
    store.save("a", b"1")
    recorded = store.save("a", b"2")
    recorder(place, into, clock=clock).catch_up()
    (watermark,) = store.recordings()
    assert (watermark.timestamp, watermark.into.endswith("r")) == (recorded, True)
    store.save("a", b"3")
    clock.advance(600_000)
    newest = store.save("a", b"4")
    clock.advance(600_000)
    done = store.compact("-0s")
    assert (done.earliest, done.waits_for) == (recorded, watermark.into)
    assert store.compact("-0s", past_recordings=True).earliest == newest
    store.forget_recording(watermark.into)
    assert store.recordings() == []
    with pytest.raises(KeyNotFoundError, match="has no recording into"):
        store.forget_recording(watermark.into)


@memory
def test_a_compaction_between_two_commits_loses_nothing(place, store, clock, tmp_path):
    """Leases and other stores have the revisions in between."""
    into, neighbour = str(tmp_path / "r"), place.open(name="neighbour", clock=clock)
    last = store.save("a", b"1")
    recorder(place, into, clock=clock).catch_up()
    for n in range(5):
        neighbour.save("x", b"%d" % n)
    store._core.engine.compact(neighbour.at().revision)
    later = store.save("a", b"2")
    recording = recorder(place, into, clock=clock)
    recording.catch_up()
    assert recording.status.gaps == []
    with place.open(archive=into, clock=clock) as joined:
        assert [joined.load("a", ts) for ts in (last, later)] == [b"1", b"2"]
        found = [(c.key, c.value) for changes in joined.watch(since=0, timeout=0) for c in changes]
        assert found == [("a", b"1"), ("a", b"2")]


@memory
@pytest.mark.parametrize("kind", TARGETS)
def test_a_record_of_another_store(place, store, tmp_path, kind):
    store.save("a", b"1")
    into = target_url(kind, tmp_path / "r")
    recorder(place, into).catch_up()
    place.open(name="other").save("b", b"1")
    with pytest.raises(ArchiveError, match="of another"):
        recorder(place, into, name="other").catch_up()


@memory
def test_a_target_that_has_commits_of_its_own(place, store, tmp_path):
    store.save("a", b"1")
    with snapkv.open(f"memory:{tmp_path}") as other:
        other.save("mine", b"1")
    with pytest.raises(ArchiveError, match="has commits of its own"):
        recorder(place, f"memory:{tmp_path}").catch_up()
    recorder(place, f"memory:{tmp_path}/b").catch_up()
    with snapkv.open(f"memory:{tmp_path}/b", force_fork=True) as recorded:
        recorded.save("a", b"changed here")
    store.save("a", b"2")
    with pytest.raises(ArchiveError, match="commits that were not recorded"):
        recorder(place, f"memory:{tmp_path}/b").catch_up()


@pytest.mark.parametrize("kind", TARGETS)
def test_a_source_that_was_set_back(tmp_path, clock, kind):
    path, into = tmp_path / "lmdb", target_url(kind, tmp_path / "r")
    with snapkv.open(f"lmdb:{path}", clock=clock) as store:
        store.save("a", b"1")
        store.backup(tmp_path / "backup")
        store.save("a", b"2")
        snapkv.record(f"lmdb:{path}", into=into, clock=clock).catch_up()
    restored = f"lmdb:{tmp_path / 'backup'}"
    with pytest.raises(StoreRestoredError, match="it was restored since"):
        snapkv.record(restored, into=into, clock=clock).catch_up()
    with snapkv.open(restored, clock=clock) as store:
        for n in range(9):
            store.save("a", b"another %d" % n)
    with pytest.raises(StoreRestoredError, match="it was restored since"):
        snapkv.record(restored, into=into, clock=clock).catch_up()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"into": 5}, InvalidTypeError, "into"),
        ({"into": "r", "observe": 5}, InvalidTypeError, "observe"),
        ({"into": "r", "every": "1ms"}, InvalidOptionError, "100 ms or more"),
        ({"into": "r", "keep": "yesterday"}, InvalidTimeError, "not a duration"),
        ({"into": "r", "flush_bytes": 0}, InvalidOptionError, "flush_bytes"),
        ({"into": "r", "flush_every": 0}, InvalidTypeError, "unknown option 'flush_every'"),
        ({"into": "memory:x"}, InvalidOptionError, "is the source itself"),
        ({"into": "memory:y", "storage": {}}, InvalidOptionError, "into_options"),
    ],
)
def test_what_cannot_be_recorded(options, error, message):
    with pytest.raises(error, match=message):
        snapkv.record("memory:x", **options)
