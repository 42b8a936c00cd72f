"""Several processes on one directory: writing, watching, killed, stopped."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from lmdb_processes import Child
from lmdb_words import ALL, FIRST, get, head, keys, put

from snapkv.base.waiting import monotonic, pause
from snapkv.engine.contract import Refused
from snapkv.engine.lmdb import LmdbEngine
from snapkv.errors import EngineBusyError

pytestmark = pytest.mark.slow

Opened = Callable[..., LmdbEngine]

WRITER = """
engine = LmdbEngine(path, durability=args[1])
say("ready")
heard()
for i in range(int(args[2])):
    increment(engine, b"n")
    put(engine, args[0].encode() + b"/%d" % i)
assert engine.check() == []
engine.close()
"""


def test_processes_lose_no_update(opened: Opened, path: Path) -> None:
    engine = opened(durability="none")
    with (
        Child(WRITER, path, "a", "none", 150) as a,
        Child(WRITER, path, "b", "none", 150) as b,
        Child(WRITER, path, "c", "none", 150) as c,
    ):
        for child in (a, b, c):
            child.expect("ready")
        for child in (a, b, c):
            child.say("go")
        for child in (a, b, c):
            child.end()
    assert get(engine, b"n") == b"450"
    assert head(engine) == 1 + 900
    assert len(keys(engine)) == 451


def test_processes_may_open_and_make_the_store_at_once(path: Path) -> None:
    code = """
    heard()
    engine = LmdbEngine(path)
    increment(engine, b"n")
    engine.close()
    """
    for attempt in range(5):
        children = [Child(code, path.with_name(f"store-{attempt}")) for _ in range(4)]
        for child in children:
            child.say("go")
        for child in children:
            with child:
                child.end()
        engine = LmdbEngine(path.with_name(f"store-{attempt}"))
        assert get(engine, b"n") == b"4"
        assert engine.check() == []
        engine.close()


FOREVER = """
engine = LmdbEngine(path, durability="none", map_bytes=65_536)
say("ready")
for i in range(10**9):
    increment(engine, b"n")
    ops = tuple(Put(b"%s/%d" % (args[0].encode(), (i + j) % 200), b"x" * 300) for j in range(20))
    engine.transact(lambda _: Txn(success=ops), b"", timeout=20)
    if i % 50 == 49:
        engine.compact(engine.read([]).header.revision - 10, batches=1)
"""


def test_killed_writers_leave_nothing_behind(opened: Opened, path: Path) -> None:
    """Kill -9 at random moments; the others go on at once and what is stored is whole."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    engine = opened(durability="none", map_bytes=65_536)
    with Child(FOREVER, path, "steady") as steady:
        steady.expect("ready")
        for number in range(8):
            with Child(FOREVER, path, number) as victim:
                victim.expect("ready")
                goal = int(get(engine, b"n") or b"0") + chance.randrange(1, 40)
                while int(get(engine, b"n") or b"0") < goal:
                    pause(0.001)
                victim.kill()
            before = monotonic()
            put(engine, b"after", b"%d" % number, timeout=5)
            assert monotonic() - before < 5
            assert engine.check() == []
    put(engine, b"end")


HOLDER = """
engine = LmdbEngine(path)
def prepare(found):
    say("holding")
    heard()
    return Txn(success=(Put(b"held", b"1"),))
engine.transact(prepare, b"a", timeout=5)
say("done")
heard()
"""


def test_a_stopped_holder_of_the_lock_is_named_within_the_bound(opened: Opened, path: Path) -> None:
    engine = opened()
    put(engine, b"a")
    with Child(HOLDER, path) as holder:
        holder.expect("holding")
        holder.signal(signal.SIGSTOP)
        before = monotonic()
        with pytest.raises(Refused) as caught:
            put(engine, b"b", timeout=0.2)
        assert monotonic() - before < 2
        assert isinstance(caught.value.error, EngineBusyError)
        assert str(holder.pid) in str(caught.value)
        assert get(engine, b"a") == b"v", "reading goes on"
        reader = opened()
        assert get(reader, b"a") == b"v"
        holder.signal(signal.SIGCONT)
        holder.say("go on")
        holder.expect("done")
        put(engine, b"b")
        assert get(engine, b"held") == b"1"
        holder.say("end")
        holder.end()


def test_the_lock_file_is_written_only_for_another_holder(opened: Opened, path: Path) -> None:
    engine = opened()
    put(engine, b"a")
    lock = path / "writer.lock"

    def written(take: Callable[[], object]) -> bool:
        os.utime(lock, ns=(0, 0))
        take()
        return lock.stat().st_mtime_ns != 0

    def take_elsewhere() -> None:
        with Child(HOLDER, path) as holder:
            holder.expect("holding")
            holder.say("go on")
            holder.expect("done")
            assert lock.read_bytes()[16:].split() == [str(holder.pid).encode()]
            holder.say("end")
            holder.end()

    assert not written(lambda: put(engine, b"b"))
    assert written(take_elsewhere)
    assert written(lambda: put(engine, b"c"))
    assert lock.read_bytes()[16:].split() == [str(os.getpid()).encode()]


def test_opening_for_reading_does_not_need_the_lock(path: Path) -> None:
    LmdbEngine(path).close()
    with Child(HOLDER, path) as holder:
        holder.expect("holding")
        holder.signal(signal.SIGSTOP)
        engine = LmdbEngine(path)
        assert keys(engine) == []
        engine.close()


def test_waiting_for_the_lock_of_another_process(opened: Opened, path: Path) -> None:
    engine = opened()
    with Child(HOLDER, path) as holder:
        holder.expect("holding")
        holder.say("go on")
        assert put(engine, b"b", timeout=10) in (2, 3)
        holder.expect("done")
        holder.say("end")
        holder.end()
    assert head(engine) == 3


def test_a_watch_follows_other_processes(opened: Opened, path: Path) -> None:
    engine = opened()
    watcher = engine.watch(FIRST, ALL, start_revision=2)
    with Child(WRITER, path, "a", "sync", 60) as writer:
        writer.expect("ready")
        assert watcher.next(0) is None
        writer.say("go")
        seen = [watcher.next(10) for _ in range(120)]
        writer.end()
    assert [batch.revision for batch in seen if batch] == list(range(2, 122))
    assert watcher.next(0) is None


def test_a_watch_of_another_process_is_told_soon(opened: Opened, path: Path) -> None:
    """Also after a long silence, when the pauses have grown to their largest."""
    code = """
    engine = LmdbEngine(path)
    watcher = engine.watch(b"a", b"", start_revision=2)
    say("ready")
    while (batch := watcher.next(0.5)) is not None or not args:
        if batch is None:
            say("silence")
        else:
            say(batch.events[0].kv.value.decode())
    """
    engine = opened()
    with Child(code, path) as other:
        other.expect("ready")
        other.expect("silence")
        put(engine, b"a", b"hello")
        while (line := other.line(5)) == "silence":
            pass
        assert line == "hello"


def test_a_process_that_was_killed_leaves_no_reader_slots(opened: Opened, path: Path) -> None:
    code = """
    engine = LmdbEngine(path)
    from snapkv.engine.lmdb.environment import Environment
    txn = engine._env.begin(False)
    say("reading")
    heard()
    """
    engine = opened(durability="none")
    put(engine, b"a")
    with Child(code, path) as reader:
        reader.expect("reading")
        reader.kill()
    engine.close()
    again = opened(durability="none")
    for i in range(300):
        put(again, b"a", b"%d" % i + b"x" * 5_000)
        again.compact(head(again))
    assert int(again.info()["used_bytes"]) < 300 * 5_000


def test_a_compaction_of_another_process_is_seen(opened: Opened, path: Path) -> None:
    engine = opened()
    for i in range(10):
        put(engine, b"a", b"%d" % i)
    with Child("LmdbEngine(path).compact(5)", path) as other:
        other.end()
    assert engine.compacted_revision() == 5
    assert get(engine, b"a", 5) == b"3"
