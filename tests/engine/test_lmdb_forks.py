"""Forks with an open engine: both sides go on, and neither disturbs the other."""

from __future__ import annotations

from pathlib import Path

from lmdb_processes import run


def test_both_sides_go_on(path: Path) -> None:
    run(
        """
        engine = LmdbEngine(path)
        put(engine, b"before")
        def work():
            assert get(engine, b"before") == b"v"
            for i in range(50):
                increment(engine, b"n")
                put(engine, b"child%d" % i)
            assert engine.check() == []
            engine.close()
        pid = child(work)
        for i in range(50):
            increment(engine, b"n")
            put(engine, b"parent%d" % i)
        reap(pid)
        assert get(engine, b"n") == b"100"
        assert count(engine) == 102
        assert engine.check() == []
        """,
        path,
    )


def test_a_child_that_only_reads_and_one_that_does_nothing(path: Path) -> None:
    run(
        """
        engine = LmdbEngine(path)
        put(engine, b"a", b"1")
        idle = child(lambda: None)
        reader = child(lambda: get(engine, b"a") == b"1" or sys.exit(3))
        closer = child(engine.close)
        reap(idle, reader, closer)
        put(engine, b"a", b"2")
        assert get(engine, b"a") == b"2"
        """,
        path,
    )


def test_a_child_of_a_child(path: Path) -> None:
    run(
        """
        engine = LmdbEngine(path)
        increment(engine, b"n")
        def grandchild():
            increment(engine, b"n")
        def work():
            increment(engine, b"n")
            pid = child(grandchild)
            increment(engine, b"n")
            reap(pid)
        reap(child(work))
        assert get(engine, b"n") == b"4"
        """,
        path,
    )


def test_a_child_may_close_and_open_anew(path: Path) -> None:
    run(
        """
        engine = LmdbEngine(path)
        put(engine, b"a")
        def work():
            engine.close()
            again = LmdbEngine(path, durability="relaxed")
            put(again, b"b")
            again.close()
        reap(child(work))
        assert get(engine, b"b") == b"v"
        """,
        path,
    )


def test_reader_slots_of_the_parent_survive_the_child(path: Path) -> None:
    """A child that tidies up must not free slots in the shared reader table.

    The parent scans old pages while the child overwrites and compacts: had the parent lost its
    slot, it would read pages that were used again.
    """
    run(
        """
        engine = LmdbEngine(path, durability="none")
        for base in range(0, 20_000, 5_000):
            ops = tuple(Put(b"%06d" % i, b"old") for i in range(base, base + 5_000))
            engine.transact(lambda _: Txn(success=ops), b"", timeout=20)
        head = engine.read([]).header.revision
        def work():
            for i in range(150):
                ops = tuple(Put(b"%06d" % j, b"new") for j in range(i, 20_000, 100))
                revision = engine.transact(lambda _: Txn(success=ops), b"", timeout=20)
        pid = child(work)
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            rows = [kv for page in engine.scan(b"0", b"9", revision=head) for kv in page]
            assert len(rows) == 20_000 and {kv.value for kv in rows} == {b"old"}
        assert engine.check() == []
        """,
        path,
    )


def test_forks_while_threads_read_write_and_watch(path: Path) -> None:
    run(
        """
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: what is tested
        engine = LmdbEngine(path, map_bytes=65_536, durability="none")
        stop, errors = threading.Event(), []
        def busy(work):
            def loop():
                try:
                    while not stop.is_set():
                        work()
                except BaseException as e:
                    errors.append(e)
            thread = threading.Thread(target=loop, daemon=True)
            thread.start()
            return thread
        watcher = engine.watch(b"\\0", b"\\0", start_revision=1)
        threads = [
            busy(lambda: increment(engine, b"n")),
            busy(lambda: put(engine, b"big", b"x" * 10_000)),
            busy(lambda: engine.read([Range(b"\\0", b"\\0")])),
            busy(lambda: watcher.next(0.01)),
        ]
        def work():
            increment(engine, b"child")
            assert get(engine, b"child") is not None
        pids = []
        for _ in range(25):
            pids.append(child(work))
            pause(0.005)
        reap(*pids)
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert errors == [], errors
        assert get(engine, b"child") == b"25"
        assert engine.check() == []
        """,
        path,
    )


def test_a_fork_inside_prepare(path: Path) -> None:
    """The parent commits; a child that comes back into the transaction is refused."""
    run(
        """
        engine = LmdbEngine(path)
        def prepare(found):
            pid = os.fork()
            if pid == 0:
                return Txn(success=(Put(b"who", b"child"),))
            pids.append(pid)
            return Txn(success=(Put(b"who", b"parent"),))
        pids = []
        try:
            engine.transact(prepare, b"who", timeout=5)
        except Refused:
            signal.alarm(20)
            code = 1
            try:
                until(lambda: get(engine, b"who") == b"parent")
                put(engine, b"child", b"on its own")
                code = 0
            finally:
                os._exit(code)
        assert pids, "only the parent comes here"
        reap(*pids)
        assert get(engine, b"who") == b"parent"
        assert get(engine, b"child") == b"on its own"
        """,
        path,
    )


def test_a_child_does_not_keep_the_lock_of_a_killed_parent(path: Path) -> None:
    """The descriptor of the lock file is inherited; the child gives it up at once."""
    run(
        """
        read, write = os.pipe()
        parent = os.fork()
        if parent == 0:
            engine = LmdbEngine(path)
            def orphan():
                os.write(write, b"%15d" % os.getpid())
                signal.pause()
            def prepare(found):
                child(orphan)
                signal.pause()
            engine.transact(prepare, b"a", timeout=5)
        left = int(os.read(read, 15))
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        try:
            engine = LmdbEngine(path)
            put(engine, b"a", timeout=5)
        finally:
            os.kill(left, signal.SIGKILL)
        """,
        path,
    )


def test_multiprocessing_with_fork(path: Path) -> None:
    run(
        """
        import multiprocessing
        engine = LmdbEngine(path)
        put(engine, b"a")
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=increment, args=(engine, b"n")) for _ in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(20)
            assert worker.exitcode == 0
        assert get(engine, b"n") == b"6"
        """,
        path,
    )
