"""A store as a sink under failures: each key gets its values once and in order, whatever fails."""

import random
import threading
from contextlib import suppress
from functools import partial

import pytest

import snapkv
from cdcmeta.errors import SinkError
from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter, reached_of
from snapkv import Change, Changes, Commit, CommitUnknownError
from snapkv.errors import EngineUnavailableError

from .sources import commit, content

T1, T2 = Token(1, 1), Token(1, 2)
UNKNOWN = CommitUnknownError(1, b"n", may_still_land=True)


class Target:
    """A store whose commits fail as a function says: it gets the commit as a call."""

    def __init__(self, store):
        self.store, self.way = store, lambda land: land()

    def commit(self, build, **options):
        return self.way(lambda: self.store.commit(build, **options))

    def space(self, name):
        return self.store.space(name)

    def at(self, **options):
        return self.store.at(**options)


@pytest.fixture
def store():
    with snapkv.open("memory:") as opened:
        yield opened


@pytest.fixture
def target(store):
    return Target(store)


@pytest.fixture
def sink(target):
    return partial(StoreTableWriter, target, "f")


def begun(sink, token, start=1):
    writer = sink("t/", token)
    return writer, writer.begin(start)


def record(store):
    return reached_of(store.space("changefeed/f").entry(b"t/").value)[:2]


def values(store, key):
    """All values that a key ever had, oldest first."""
    return [
        change.value
        for changes in store.watch(since=0, timeout=0)
        for change in changes
        if change.key == key
    ]


def test_a_commit_that_lands_late_lands_once(store, target, sink):
    writer, _ = begun(sink, T1)
    late = []

    def lose(land):
        late.append(land)
        target.way = before_it
        raise UNKNOWN

    def before_it(land):
        target.way = lambda land: land()
        late.pop()()
        return land()

    target.way = lose
    writer.write([commit(6, a=b"6")], 6)
    writer.write([commit(7, a=b"7")], 7)
    assert values(store, "t/a") == [b"6", b"7"]
    assert record(store) == (T1, 7)


def test_a_commit_that_lands_after_a_later_assignment_began_is_void(store, target, sink):
    old, _ = begun(sink, T1)
    late = []

    def lose(land):
        late.append(land)
        raise EngineUnavailableError("lost")

    target.way = lose
    with pytest.raises(EngineUnavailableError):
        old.write([commit(6, a=b"old")], 6)
    target.way = lambda land: land()
    new, reached = begun(sink, T2)
    assert reached == 1
    with pytest.raises(snapkv.ConflictError):
        late.pop()()
    new.write([commit(6, a=b"new")], 6)
    assert values(store, "t/a") == [b"new"]


@pytest.mark.parametrize("lands", [True, False])
def test_a_begin_without_an_answer_is_found_out(store, target, sink, lands):
    ways = iter([True])

    def lose(land):
        if next(ways, False):
            if lands:
                land()
            raise UNKNOWN
        return land()

    target.way = lose
    writer, reached = begun(sink, T1, 5)
    assert (reached, record(store)) == (5, (T1, 5))
    writer.write([commit(6, a=b"6")], 6)
    assert values(store, "t/a") == [b"6"]


@pytest.mark.parametrize("call", ["begin", "write"])
def test_a_target_that_never_answers_ends_the_call(store, target, call):
    sink = partial(StoreTableWriter, target, "f", write_s=0.2)
    writer = sink("t/", T1)
    writer.begin(1)

    def lose(land):
        raise UNKNOWN

    target.way = lose
    with pytest.raises(SinkError, match="within"):
        writer.begin(1) if call == "begin" else writer.write([commit(6, a=b"6")], 6)
    target.way = lambda land: land()
    writer.write([commit(6, a=b"6")], 6)
    assert values(store, "t/a") == [b"6"]


def test_a_divided_batch_that_fails_in_between_repeats_nothing(store, target, sink):
    writer, _ = begun(sink, T1)
    sizes = []

    def small(land):
        sizes.append(1)
        if len(sizes) == 1:
            raise snapkv.CommitTooLargeError("keys", 4, 3)
        if len(sizes) == 3:
            raise EngineUnavailableError("down")
        return land()

    target.way = small
    batch = [commit(n, a=b"%d" % n) for n in range(2, 6)]
    with pytest.raises(EngineUnavailableError):
        writer.write(batch, 5)
    assert record(store) == (T1, 3)
    writer.write([*batch, commit(6, a=b"6")], 6)
    assert values(store, "t/a") == [b"3", b"6"]


def test_the_checkpoint_comes_with_the_last_part_of_a_large_commit(store, target, sink):
    writer, _ = begun(sink, T1, 4)
    tries = []

    def small(land):
        tries.append(1)
        if len(tries) == 1:
            raise snapkv.CommitTooLargeError("keys", 2, 1)
        if len(tries) == 3:
            raise EngineUnavailableError("down")
        return land()

    target.way = small
    with pytest.raises(EngineUnavailableError):
        writer.write([commit(6, a=b"6", b=b"6")], 6)
    assert record(store) == (T1, 4)
    again, reached = begun(sink, T2, 4)
    assert reached == 4
    again.write([commit(6, a=b"6", b=b"6")], 6)
    assert content(store) == {"t/a": b"6", "t/b": b"6"}
    assert record(store) == (T2, 6)


def test_a_record_that_was_removed_is_not_recreated_in_passing(store, sink):
    writer, _ = begun(sink, T1)
    writer.write([commit(6, a=b"6")], 6)
    store.space("changefeed/f").commit(deletes=[b"t/"])
    for _ in range(2):
        with pytest.raises(SinkError, match="removed"):
            writer.write([commit(7, a=b"7")], 7)
    assert values(store, "t/a") == [b"6"]


def test_a_part_of_the_state_does_not_set_the_checkpoint_back(store, sink):
    writer, _ = begun(sink, T1, 4)
    writer.write([commit(5, a=b"1")], 0)
    writer.write([commit(5, b=b"1")], 0)
    assert record(store) == (T1, 4)
    writer.write([], 5)
    assert record(store) == (T1, 5)
    assert content(store) == {"t/a": b"1", "t/b": b"1"}


def test_two_writers_that_write_at_once(store, target, sink):
    """The earlier one writes as fast as it can while later ones take the table over."""
    ends = []

    def write(writer, reached):
        try:
            for ts in range(reached + 1, 100_000):
                writer.write([commit(ts, a=b"%d" % ts)], ts)
        except SinkError as e:
            ends.append(e.reason)

    threads = []
    for number in range(1, 9):
        thread = threading.Thread(target=write, args=begun(sink, Token(1, number)))
        thread.start()
        threads.append(thread)
    begun(sink, Token(2, 1))
    for thread in threads:
        thread.join(20)
    assert ends == ["fenced"] * 8
    written = [int(value) for value in values(store, "t/a")]
    assert written == list(range(2, len(written) + 2))


def test_whatever_fails_each_key_gets_its_values_in_order(store, target, sink):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng, late = random.Random(seed), []

    def anything(land):
        while late and rng.random() < 0.5:
            with suppress(snapkv.ConflictError):  # another commit came first
                late.pop(0)()
        way = rng.randrange(6)
        if way == 0:
            raise EngineUnavailableError("down")
        if way == 1:
            land()
        if way == 2:
            late.append(land)
        if way == 3 and rng.random() < 0.5:
            raise snapkv.CommitTooLargeError("keys", 2, 1)
        if way in (1, 2):
            raise UNKNOWN
        return land()

    target.way = anything
    keys, made = "abcd", []
    for ts in range(2, 150):
        head = Commit(ts, 0, ts, "ann@host")
        key = f"t/{rng.choice(keys)}"
        value = None if rng.random() < 0.2 else b"%d" % ts
        made.append(Changes(head, (Change(key, value, head),)))
    number, done = 0, 1
    while done < made[-1].commit.ts:
        number += 1
        try:
            writer, done = begun(sink, Token(1, number), done)
            for _ in range(rng.randrange(4)):
                left = [each for each in made if each.commit.ts > done][: rng.randrange(1, 9)]
                if left:
                    writer.write(left, left[-1].commit.ts)
                    done = left[-1].commit.ts
        except (EngineUnavailableError, snapkv.CommitTooLargeError):
            pass  # the next assignment goes on
    wanted = {}
    for each in made:
        wanted.update((change.key, change.value) for change in each)
    assert content(store) == {key: value for key, value in wanted.items() if value is not None}
    for key in keys:
        seen = [int(value) for value in values(store, f"t/{key}") if value is not None]
        assert seen == sorted(set(seen))
