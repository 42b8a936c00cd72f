"""Leases of a directory: several processes, forks, kills, a full disk."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lmdb_processes import Child, run
from lmdb_words import ALL, FIRST, get, gone, head, keys, leased, put, run_txn
from sampling import first_of

from snapkv.base.waiting import monotonic
from snapkv.engine.contract import Compare, Delete, Put, Range, Refused, Target, Txn
from snapkv.engine.lmdb import LmdbEngine
from snapkv.errors import EngineBusyError, LeaseNotFoundError

pytestmark = pytest.mark.slow

Opened = Callable[..., LmdbEngine]

WAIT_SECONDS_MAX = 20.0


# --- processes ---------------------------------------------------------------------------------

HOLDER = """
engine = LmdbEngine(path)
lease = engine.grant(float(args[0])).id
txn = Txn(success=tuple(Put(name.encode(), b"v", lease=lease) for name in args[1:]))
engine.transact(lambda _: txn, b"", timeout=20)
say(lease)
heard()
"""


def test_leases_outlive_processes_and_belong_to_all(opened: Opened, path: Path) -> None:
    engine = opened()
    with Child(HOLDER, path, 1000, "a", "b") as child:
        lease = int(child.line())
        child.kill()
    assert keys(engine) == [b"a", b"b"]
    assert engine.keep_alive(lease) == 1000
    engine.close()
    engine = opened()
    assert engine.keep_alive(lease) == 1000
    at = head(engine)
    engine.revoke(lease)
    assert gone(engine, at + 1) == [(at + 1, [b"a", b"b"])]


def test_a_killed_process_loses_what_it_held(opened: Opened, path: Path) -> None:
    """Nobody does anything but wait."""
    engine = opened()
    with Child(HOLDER, path, 1.0, "a", "b") as child:
        child.line()
        at = head(engine)
        child.kill()
    assert gone(engine, at + 1) == [(at + 1, [b"a", b"b"])]


def test_a_stopped_process_loses_what_it_held(opened: Opened, path: Path) -> None:
    code = """
    engine = LmdbEngine(path)
    lease = engine.grant(1.0).id
    put_it = Txn(success=(Put(b"a", b"v", lease=lease),))
    engine.transact(lambda _: put_it, b"", timeout=20)
    say("alive")
    begun = monotonic()
    while monotonic() < begun + 3.0:
        engine.keep_alive(lease)
        pause(0.05)
    os.kill(os.getpid(), signal.SIGSTOP)  # by itself: not inside the write lock
    assert raises(LeaseNotFoundError, lambda: engine.keep_alive(lease))
    assert get(engine, b"a") is None
    assert raises(Refused, lambda: engine.transact(lambda _: put_it, b"", timeout=20))
    say("over")
    """
    engine = opened()
    with Child(code, path) as child:
        child.expect("alive")
        at = head(engine)
        watcher = engine.watch(b"a", b"", start_revision=at + 1)
        assert watcher.next(2.5) is None  # more than twice its time
        batch = watcher.next(WAIT_SECONDS_MAX)
        assert batch is not None
        assert batch.events[0].is_delete
        child.signal(signal.SIGCONT)
        child.expect("over")
        child.end()


WATCHING = """
engine = LmdbEngine(path, durability="none")
say("ready")
watcher = engine.watch(b"\\0", b"\\0", start_revision=int(heard()))
seen, deadline = [], monotonic() + 30
while sum(len(keys) for _, keys in seen) < int(args[0]) and monotonic() < deadline:
    batch = watcher.next(1.0)
    if batch is not None and batch.events:
        seen.append((batch.revision, sorted(e.kv.key for e in batch.events if e.is_delete)))
assert engine.check() == []
say(seen)
"""


def all_leased(engine: LmdbEngine) -> int:
    """Make six leases with five keys each; return a revision at which all of them stand.

    A busy machine may take longer than they last: then they are made again.
    """
    for _ in range(20):
        try:
            for i in range(6):
                lease = engine.grant(3.0).id
                leased(engine, lease, *(b"%d/%d" % (i, j) for j in range(5)))
        except (LeaseNotFoundError, Refused):
            pass
        at = head(engine)
        found = engine.read([Range(FIRST, ALL, at, count_only=True)]).results[0]
        if found.count == 30:
            return at
        while keys(engine):
            head(engine)  # reading ends what is due
    raise AssertionError("leases of 3 s never stood all together")


def test_many_processes_end_the_same_leases_once(opened: Opened, path: Path) -> None:
    """Watchers, readers and writers of several processes all come at the same moment."""
    engine = opened(durability="none")
    with (
        Child(WATCHING, path, 30) as a,
        Child(WATCHING, path, 30) as b,
        Child(WATCHING, path, 30) as c,
    ):
        for child in (a, b, c):
            child.expect("ready")
        at = all_leased(engine)
        for child in (a, b, c):
            child.say(str(at + 1))
        while get(engine, b"5/0") is not None:
            run_txn(engine, Delete(b"none"))
        said = [child.line() for child in (a, b, c)]
        for child in (a, b, c):
            child.end()
    expected = [(at + 1 + i, [b"%d/%d" % (i, j) for j in range(5)]) for i in range(6)]
    assert said == [str(expected)] * 3
    assert head(engine) == at + 6


KILLED = """
engine = LmdbEngine(path, durability="none")
say("ready")
for i in range(10**9):
    lease = engine.grant(0.02).id
    ops = tuple(Put(b"%s/%d" % (args[0].encode(), j), b"x", lease=lease) for j in range(20))
    engine.transact(lambda _: Txn(success=ops), b"", timeout=20)
    kept = engine.grant(0.05).id
    engine.transact(lambda _: Txn(success=(Put(b"kept", b"%d" % i, lease=kept),)), b"", timeout=20)
    engine.keep_alive(kept)
    if i % 5 == 4:
        engine.revoke(kept)
    count(engine)
"""


@pytest.mark.parametrize("attempt", first_of(range(4), one_in=2))
def test_killed_anywhere(opened: Opened, path: Path, attempt: int) -> None:
    """Whatever two processes were at when killed: all rules hold, and all their leases end."""
    engine = opened(durability="none")
    with Child(KILLED, path, "a") as a, Child(KILLED, path, "b") as b:
        a.expect("ready")
        b.expect("ready")
        watcher = engine.watch(FIRST, ALL, start_revision=1)
        for _ in range(30 + 17 * attempt):
            assert watcher.next(WAIT_SECONDS_MAX) is not None
        a.kill()
        b.kill()
    assert engine.check() == []
    deadline = monotonic() + WAIT_SECONDS_MAX
    while keys(engine):
        assert monotonic() < deadline, "keys of dead processes stay"
    assert engine.check() == []
    at = head(engine)
    whole: dict[bytes, bool] = {}
    follower = engine.watch(FIRST, ALL, start_revision=1)
    while (batch := follower.next(0)) is not None:
        names = {event.kv.key[:2] for event in batch.events}
        assert len(names) <= 1
        for event in batch.events:
            whole[event.kv.key] = event.is_delete
        if names & {b"a/", b"b/"}:
            assert len(batch.events) == 20  # put together, gone together
    assert all(whole.values())
    assert head(engine) == at


def test_forks_share_leases(path: Path) -> None:
    run(
        """
        engine = LmdbEngine(path)
        lease = engine.grant(1.0).id
        txn = Txn(success=(Put(b"a", b"v", lease=lease), Put(b"b", b"v", lease=lease)))
        at = engine.transact(lambda _: txn, b"", timeout=20).header.revision
        def watch():
            batch = engine.watch(b"\\0", b"\\0", start_revision=at + 1).next(20)
            assert [e.kv.key for e in batch.events] == [b"a", b"b"], batch
            assert batch.revision == at + 1
            assert engine.check() == []
        def keep():
            end = monotonic() + 2.2
            while monotonic() < end:
                engine.keep_alive(lease)
                assert get(engine, b"a") == b"v"
                pause(0.1)
        pids = [child(watch) for _ in range(3)]
        reap(child(keep))
        watch()
        reap(*pids)
        assert engine.read([]).header.revision == at + 1
        raises(LeaseNotFoundError, lambda: engine.keep_alive(lease))
        """,
        path,
    )


# --- busy, full, closed to writing ---------------------------------------------------------------

PREPARING = """
engine = LmdbEngine(path)
say("ready")
heard()
def prepare(found):
    say("inside")
    heard()
    return Txn()
engine.transact(prepare, b"", timeout=20)
"""


def test_a_long_transaction_elsewhere_keeps_no_lease_alive(opened: Opened, path: Path) -> None:
    """While another process holds the write lock a lease cannot end, but no read finds it."""
    engine = opened()
    with Child(PREPARING, path) as child:
        child.expect("ready")
        lease = engine.grant(0.5).id
        at = leased(engine, lease, b"a", b"b")
        put(engine, b"c")
        child.say("go in")
        child.expect("inside")
        deadline = monotonic() + WAIT_SECONDS_MAX
        while get(engine, b"a") is not None:
            assert monotonic() < deadline
        assert keys(engine) == [b"c"]
        every = Range(FIRST, ALL)
        wanted = [every, every._replace(count_only=True), every._replace(limit=1)]
        results = engine.read(wanted).results
        assert [result.count for result in results] == [1, 1, 1]
        assert not results[2].more
        assert get(engine, b"c") == b"v"
        assert keys(engine, at) == [b"a", b"b"]
        assert head(engine) == at + 1
        with pytest.raises(EngineBusyError):
            engine.keep_alive(lease, timeout=0.05)
        child.say("go on")
        child.end()
    assert gone(engine, at + 2) == [(at + 2, [b"a", b"b"])]


def test_a_full_disk_keeps_no_lease_alive(path: Path) -> None:
    """No read fails for it; the lease is ended as soon as there is space."""
    run(
        """
        import resource
        engine = LmdbEngine(path)
        lease = engine.grant(0.3).id
        both = Txn(success=(Put(b"a", b"v", lease=lease), Put(b"c", b"v")))
        at = engine.transact(lambda _: both, b"", timeout=20).header.revision
        watcher = engine.watch(b"a", b"", start_revision=at + 1)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
        until(lambda: get(engine, b"a") is None)
        assert get(engine, b"c") == b"v" and get(engine, b"a", at) == b"v"
        assert count(engine) == 1
        assert watcher.next(0.2) is None
        assert engine.read([]).header.revision == at
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        batch = watcher.next(20)
        assert batch.revision == at + 1 and batch.events[0].is_delete, batch
        assert engine.check() == []
        """,
        path,
    )


def test_inside_a_transaction_of_ones_own(opened: Opened) -> None:
    """A lease that comes due while `prepare` runs is over for what that reads and compares."""
    engine = opened()
    lease = engine.grant(0.3).id
    at = leased(engine, lease, b"a")

    def prepare(_: object) -> Txn:
        deadline = monotonic() + WAIT_SECONDS_MAX
        while get(engine, b"a") is not None:
            assert monotonic() < deadline
        return Txn((Compare(b"a", Target.CREATE, "=", 0),), (Put(b"a", b"2"),))

    result = engine.transact(prepare, b"a", timeout=5)
    assert result.succeeded
    assert result.header.revision == at + 2
    assert gone(engine, at + 1) == [(at + 1, [b"a"])]


def test_a_lease_that_comes_due_between_peek_and_compare(opened: Opened) -> None:
    engine = opened()
    lease = engine.grant(0.6).id
    at = leased(engine, lease, b"a")
    due = monotonic() + 0.7

    def prepare(found: Any) -> Txn:
        assert found is not None
        while monotonic() < due:
            pass
        return Txn((Compare(b"a", Target.CREATE, "=", at),), (Put(b"b", b"1", lease=lease),))

    assert not engine.transact(prepare, b"a", timeout=5).succeeded
    assert gone(engine, at + 1) == [(at + 1, [b"a"])]


def test_more_keys_than_the_map_has_room_for(path: Path) -> None:
    """Ending a lease makes the map grow as any other write does."""
    engine = LmdbEngine(path, map_bytes=64 << 10, durability="none")
    lease = engine.grant(1.5).id
    for i in range(30):
        leased(engine, lease, *(b"%04d/%04d" % (i, j) for j in range(100)))
    at = head(engine)
    [(revision, names)] = gone(engine, at + 1)
    assert revision == at + 1
    assert len(names) == 3_000
    assert keys(engine) == []
    assert engine.check() == []
    engine.close()
