"""Engines of one process on one directory; closing, interrupting, removing."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from lmdb_processes import run
from lmdb_words import get, head, keys, put

from snapkv.base.waiting import monotonic
from snapkv.engine.contract import KeyValue, Put, Refused, Txn
from snapkv.engine.lmdb import LmdbEngine
from snapkv.errors import EngineBusyError, InvalidOptionError, StoreClosedError, StoreNotFoundError

pytestmark = pytest.mark.slow

Opened = Callable[..., LmdbEngine]


def test_engines_of_one_process_share(opened: Opened) -> None:
    first, second = opened(), opened()
    put(first, b"a")
    assert get(second, b"a") == b"v"
    watcher = second.watch(b"a", b"", start_revision=3)
    first.close()
    with pytest.raises(StoreClosedError):
        get(first, b"a")
    put(second, b"a", b"2")
    batch = watcher.next(5)
    assert batch is not None
    assert batch.events[0].kv.value == b"2"
    with pytest.raises(StoreClosedError):
        put(first, b"a")


def test_they_agree_on_durability(path: Path, opened: Opened) -> None:
    engine = opened(durability="relaxed")
    with pytest.raises(InvalidOptionError, match="relaxed"):
        LmdbEngine(path)
    put(engine, b"a")
    assert engine.info()["durability"] == "relaxed"
    engine.close()
    assert get(opened(), b"a") == b"v"


@pytest.mark.parametrize("durability", ["sync", "relaxed", "none"])
def test_every_durability_writes(opened: Opened, durability: str) -> None:
    engine = opened(durability=durability)
    for i in range(20):
        put(engine, b"a", b"%d" % i)
    engine.close()
    assert get(opened(durability=durability), b"a") == b"19"


def test_closing_and_opening_again_and_again(path: Path) -> None:
    for i in range(30):
        engine = LmdbEngine(path)
        assert put(engine, b"a") == i + 2
        engine.close()


def test_a_forgotten_engine_can_be_opened_beside(path: Path) -> None:
    put(LmdbEngine(path), b"a")
    gc.collect()
    engine = LmdbEngine(path)
    assert get(engine, b"a") == b"v"
    engine.close()


def test_a_store_removed_and_made_anew_is_another_one(path: Path) -> None:
    old = LmdbEngine(path)
    put(old, b"a")
    shutil.rmtree(path)
    new = LmdbEngine(path)
    assert keys(new) == []
    put(new, b"b")
    assert get(old, b"a") == b"v", "what is open stays readable"
    with pytest.raises(Refused) as caught:
        put(old, b"a")
    assert isinstance(caught.value.error, StoreNotFoundError)
    old.close()
    assert keys(new) == [b"b"]
    new.close()


def test_threads_wait_in_turn_and_within_the_bound(opened: Opened) -> None:
    engine = opened()
    inside, leave = threading.Event(), threading.Event()

    def prepare(_: KeyValue | None) -> Txn:
        inside.set()
        assert leave.wait(20)
        return Txn(success=(Put(b"slow", b"1"),))

    slow = threading.Thread(target=lambda: engine.transact(prepare, b"a", timeout=5))
    slow.start()
    assert inside.wait(20)
    before = monotonic()
    with pytest.raises(Refused) as caught:
        put(engine, b"a", timeout=0.1)
    assert monotonic() - before < 2
    assert isinstance(caught.value.error, EngineBusyError)
    with pytest.raises(Refused):
        put(engine, b"a", timeout=0)
    with pytest.raises(Refused):
        put(engine, b"a", timeout=-1)
    assert keys(engine) == [], "reading does not wait"
    leave.set()
    slow.join(20)
    put(engine, b"a")
    assert keys(engine) == [b"a", b"slow"]


def test_many_threads_all_get_their_turn(opened: Opened) -> None:
    """None starves: the lock goes to the thread that has waited longest."""
    engine = opened(durability="none")
    done: list[int] = []
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            put(engine, b"%d" % number, timeout=10)
            done.append(number)
            if len(done) >= 600:
                stop.set()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    shares = [done.count(i) for i in range(6)]
    assert min(shares) > 20, shares


def test_a_transaction_inside_a_transaction_is_refused(opened: Opened) -> None:
    engine = opened()

    def prepare(_: KeyValue | None) -> Txn:
        with pytest.raises(Refused) as caught:
            put(engine, b"inner", timeout=5)
        assert isinstance(caught.value.error, EngineBusyError)
        assert get(engine, b"a") is None, "reading inside is fine"
        return Txn(success=(Put(b"a", b"1"),))

    engine.transact(prepare, b"a", timeout=5)
    assert keys(engine) == [b"a"]
    put(engine, b"b")


def test_what_prepare_raises_frees_the_lock(opened: Opened) -> None:
    engine = opened()
    for error in (ZeroDivisionError, KeyboardInterrupt, SystemExit):

        def prepare(_: KeyValue | None, error: type[BaseException] = error) -> Txn:
            raise error

        with pytest.raises(error):
            engine.transact(prepare, b"a", timeout=5)
        put(engine, b"a", timeout=1)


def test_an_interrupt_at_any_moment_leaves_everything_free(path: Path) -> None:
    """A storm of SIGINT over reads, writes, scans and compactions."""
    run(
        """
        import random
        seed = random.randrange(1 << 32)
        say(f"seed {seed}")
        chance = random.Random(seed)
        engine = LmdbEngine(path, durability="none", map_bytes=65_536)
        put(engine, b"n", b"0")
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        done = interrupted = 0
        deadline = monotonic() + 2
        def once():
            before = int(get(engine, b"n"))
            increment(engine, b"n", timeout=2)
            assert int(get(engine, b"n")) == before + 1
            list(engine.scan(b"\\0", b"\\0", revision=engine.read([]).header.revision))
            put(engine, b"x", b"x" * chance.randrange(3_000), timeout=2)
            if chance.random() < 0.1:
                engine.compact(engine.read([]).header.revision)
        while monotonic() < deadline:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1e-3))
                once()
                signal.setitimer(signal.ITIMER_REAL, 0)
                done += 1
            except KeyboardInterrupt:
                interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        assert interrupted > 50, interrupted
        from_child = child(lambda: increment(engine, b"n", timeout=2))
        reap(from_child)
        helper = threading.Thread(target=lambda: put(engine, b"thread", timeout=2))
        helper.start()
        helper.join(10)
        assert get(engine, b"thread") == b"v"
        assert engine.check() == []
        engine.close()
        """,
        path,
    )


def test_head_counts_from_one(opened: Opened) -> None:
    assert head(opened()) == 1
