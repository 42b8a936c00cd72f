"""Writers that are killed, or wake up late, lose, repeat and change nothing."""

import random
from itertools import count

import pytest
from sampling import SOAK

import snapkv
from cdcmeta.errors import SinkError
from cdcmeta.scheduler.executors import recorded_sink
from snapkv.archive.folder import Folder
from snapkv.engine.lmdb.engine import LmdbEngine
from snapkv.engine.memory import MemoryEngine
from snapkv.errors import ArchiveError

from .feeding import KINDS, TABLES, Place, Source, feed, feed_state

pytestmark = pytest.mark.slow

TABLE = TABLES[1]
WRITES = {
    "memory": [(MemoryEngine, "transact"), (MemoryEngine, "transact_each")],
    "lmdb": [(LmdbEngine, "transact"), (LmdbEngine, "transact_each")],
    "archive": [(Folder, "put_new"), (Folder, "delete")],
}


def numbers(kind, rng):
    """Which write to interrupt: each one, of an archive's some in each run."""
    return count(rng.randrange(3), 3) if kind == "archive" and not SOAK else count()


class Killed(BaseException):
    """The process ends here."""


class Hook:
    """Calls a function before or after the write with a number, once."""

    def __init__(self, kind, monkeypatch):
        self.calls, self.at, self.action, self.after = 0, None, None, False
        for owner, name in WRITES[kind]:
            monkeypatch.setattr(owner, name, self._wrapped(getattr(owner, name)))

    def arm(self, at, action, *, after=False):
        self.calls, self.at, self.action, self.after = 0, at, action, after

    def _wrapped(self, real):
        def write(*args, **options):
            self.calls += 1
            due = self.calls - 1 == self.at
            if due:
                self.at = None
            if due and not self.after:
                self.action()
            answer = real(*args, **options)
            if due and self.after:
                self.action()
            return answer

        return write


@pytest.fixture
def rng():
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    return random.Random(seed)


@pytest.fixture
def source(rng, tmp_path):
    source = Source(f"source of {tmp_path}", rng)
    yield source
    source.close()


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    monkeypatch.setattr(recorded_sink, "PAUSE_S", 0.0)
    monkeypatch.setattr(recorded_sink, "TEND_WRITES", 2)
    return request.param


@pytest.fixture
def hook(kind, monkeypatch):
    return Hook(kind, monkeypatch)


def prepared(source):
    """Fill a source; return the time at which the table's state is taken."""
    source.fill(10)
    source.store.save(TABLE + "0", b"present")
    at = source.store.resolved()
    source.fill(20)
    return at


def replicate(source, writer, start, at):
    """Do what a pipeline does from a checkpoint on."""
    reached = writer.begin(start)
    if reached < at:
        feed_state(source, writer, TABLE, at)
        reached = at
    feed(source, writer, TABLE, reached, most=3)


def later_commit(source):
    """A commit that comes after all of the source."""
    last = source.changes(TABLE, 0)[-1]
    head = snapkv.Commit(last.commit.ts + 1, 0, last.commit.revision + 1, "ann", None)
    return snapkv.Changes(head, (snapkv.Change(TABLE + "late", b"1", head),))


def error_of(call):
    try:
        call()
    except SinkError as e:
        return e
    return None


def assert_complete(source, place, at):
    assert place.log(TABLE, at) == source.log(TABLE, at)
    with place.open(TABLE) as target:
        for ts in [at, *(each[0] for each in source.log(TABLE, at))]:
            assert dict(target.at(ts).items()) == source.state(TABLE, ts)
        if place.kind == "archive":
            assert target.info()["earliest_timestamp"] == at


@pytest.mark.parametrize("after", [False, True])
def test_killed_between_any_two_writes(kind, hook, source, rng, tmp_path, after):
    at = prepared(source)

    def kill():
        raise Killed

    for number in numbers(kind, rng):
        place = Place(kind, tmp_path / f"into{number}", source)
        hook.arm(number, kill, after=after)
        try:
            replicate(source, place.writer(TABLE, 1), at - 1, at)
        except Killed:
            pass
        else:
            break
        again = place.writer(TABLE, 2)
        replicate(source, again, at - 1, at)
        again.close()
        assert_complete(source, place, at)
        place.close()
    print(number, "writes")
    assert number > len(source.changes(TABLE, at)) // 3


def test_a_writer_that_failed_goes_on(kind, hook, source, tmp_path):
    """The same writer gets the same commits again, as after a failure of the network."""
    at = prepared(source)

    def fail():
        raise OSError("down")

    for number in count():
        place = Place(kind, tmp_path / f"into{number}", source)
        writer = place.writer(TABLE, 1)
        writer.begin(at - 1)
        feed_state(source, writer, TABLE, at)
        hook.arm(number, fail, after=number % 2 == 1)
        failed = False
        left = source.changes(TABLE, at)
        while left:
            batch = left[:3]
            try:
                writer.write(batch, batch[-1].commit.ts)
            except OSError:
                failed = True
                continue
            left = left[3:]
        writer.close()
        assert_complete(source, place, at)
        place.close()
        if not failed:
            break
    assert number >= len(source.changes(TABLE, at)) // 3


def test_an_older_writer_that_wakes_up_changes_nothing(kind, hook, source, rng, tmp_path):
    """A later assignment begins while an older one is about to make any of its writes."""
    at = prepared(source)
    fences = 0
    for number in numbers(kind, rng):
        place = Place(kind, tmp_path / f"into{number}", source)
        older, newer, seen = place.writer(TABLE, 1), place.writer(TABLE, 2), []

        def begin(newer=newer, place=place, seen=seen):
            seen.append((newer.begin(at - 1), place.log(TABLE)))

        hook.arm(number, begin)
        error = error_of(lambda older=older: replicate(source, older, at - 1, at))
        if not seen:
            break
        reached, log = seen[0]
        fences += error is not None
        assert place.log(TABLE) == log
        left = [*source.changes(TABLE, at), later_commit(source)]
        again = error_of(lambda older=older, left=left: older.write(left, left[-1].commit.ts))
        for each in (error, again):
            if each is not None and "is closed" not in str(each):  # it is, if begin() failed
                assert (each.reason, "7.2" in str(each)) == ("fenced", True)
        assert again is not None
        assert place.log(TABLE) == log
        assert reached == max(at - 1, *(each[0] for each in log), 0)
        if reached < at:
            feed_state(source, newer, TABLE, at)
        feed(source, newer, TABLE, max(reached, at), most=3)
        older.close()
        newer.close()
        assert_complete(source, place, at)
        place.close()
    print(number, "writes")
    assert fences > len(source.changes(TABLE, at)) // 3


def test_an_older_writer_that_begins_late_does_not_disturb(kind, source, tmp_path):
    at = prepared(source)
    place = Place(kind, tmp_path / "into", source)
    newer = place.writer(TABLE, 2)
    newer.begin(at - 1)
    feed_state(source, newer, TABLE, at)
    for _ in range(2):
        older = place.writer(TABLE, 1)
        with pytest.raises(SinkError, match=r"7\.2") as caught:
            older.begin(at - 1)
        assert caught.value.reason == "fenced"
    feed(source, newer, TABLE, at)
    assert_complete(source, place, at)
    again = place.writer(TABLE, 2)
    assert again.begin(at - 1) == source.log(TABLE, at)[-1][0]
    place.close()


def test_two_writers_of_one_assignment_repeat_nothing(kind, source, tmp_path):
    """Neither is fenced: at most one try fails, and the next one goes on."""
    at = prepared(source)
    place = Place(kind, tmp_path / "into", source)
    writer = place.writer(TABLE, 1)
    writer.begin(at - 1)
    feed_state(source, writer, TABLE, at)
    again = place.writer(TABLE, 1)
    again.begin(at)
    left = source.changes(TABLE, at)
    again.write(left[:1], left[0].commit.ts)
    error = error_of(lambda: writer.write(left, left[-1].commit.ts))
    assert error is None or error.reason == "failed"
    assert (error is not None) == (kind == "archive")
    writer.write(left, left[-1].commit.ts)
    assert_complete(source, place, at)
    place.close()


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_a_store_with_commits_of_its_own_is_not_written(kind, source, tmp_path):
    start = source.store.resolved()
    source.fill(30)
    place = Place(kind, tmp_path / "into", source)
    writer = place.writer(TABLE, 1)
    writer.begin(start)
    left = source.changes(TABLE, start)
    writer.write(left[:1], left[0].commit.ts)
    with place.open(TABLE, force_fork=True) as target:
        own = target.save("mine", b"1")
    with pytest.raises(SinkError) as caught:
        writer.write(left, left[-1].commit.ts)
    assert caught.value.reason == "failed"
    with pytest.raises(ArchiveError, match="its history is its own"):
        writer.write(left, left[-1].commit.ts)
    assert place.log(TABLE)[-1][0] == own
    place.close()


def test_a_source_that_was_restored_is_noticed(kind, source, tmp_path):
    start = source.store.resolved()
    source.fill(30)
    place = Place(kind, tmp_path / "into", source)
    writer = place.writer(TABLE, 1)
    writer.begin(start)
    feed(source, writer, TABLE, start)
    last = source.changes(TABLE, start)[-1]
    head = snapkv.Commit(last.commit.ts + 1, 0, last.commit.revision, "ann", None)
    with pytest.raises(SinkError, match="restored"):
        writer.write([snapkv.Changes(head, last.changes)], head.ts)
    assert place.log(TABLE) == source.log(TABLE, start)
    place.close()
