"""A full disk: found before the commit it is a refusal, at the commit an unknown outcome."""

from __future__ import annotations

from pathlib import Path

import pytest
from lmdb_processes import may_unshare, on_mount, run

UNTIL_FULL = """
engine = LmdbEngine(path, map_bytes=1 << 20)
acknowledged, error = [], None
for i in range(2_000):
    try:
        put(engine, b"%06d" % i, b"x" * 3_000)
    except Refused as e:
        error = e.error
        break
    acknowledged.append(i)
assert isinstance(error, NoSpaceError), error
assert len(acknowledged) > 50, len(acknowledged)
assert count(engine) == len(acknowledged), "what is there stays readable"
assert engine.check() == []
"""


def small_disks() -> list[str]:
    """Which kinds of small disk this machine lets us have; a limited file size always."""
    return ["file size limit"] + (["small file system"] if may_unshare() else [])


@pytest.mark.parametrize("kind", small_disks())
def test_a_full_disk_is_a_refusal_that_loses_nothing(tmp_path: Path, kind: str) -> None:
    """Then everything acknowledged is there, and after making room it goes on."""
    if kind == "small file system":
        run(
            UNTIL_FULL
            + """
try:
    engine.compact(engine.read([]).header.revision)
except NoSpaceError:
    pass
assert engine.check() == [] and count(engine) == len(acknowledged)
engine.close()
again = LmdbEngine(path, create=False)
assert count(again) == len(acknowledged)
raises(Refused, lambda: put(again, b"more", b"x" * 3_000))
again.close()
os.unlink(os.path.join(os.path.dirname(path), "ballast"))
again = LmdbEngine(path, create=False)
put(again, b"more", b"x" * 3_000)
assert again.check() == []
""",
            tmp_path / "disk" / "store",
            wrapper=on_mount(
                'mkdir -p "$0" && mount -t tmpfs -o size=4m none "$0"'
                ' && head -c 1000000 /dev/zero > "$0/ballast"',
                tmp_path / "disk",
            ),
        )
    else:
        run(
            "import resource\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, resource.RLIM_INFINITY))\n"
            + UNTIL_FULL
            + """
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
put(engine, b"more", b"x" * 3_000)
assert count(engine) == len(acknowledged) + 1
assert engine.check() == []
""",
            tmp_path / "store",
        )


def test_no_room_for_a_new_store(tmp_path: Path) -> None:
    run(
        """
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        raises(NoSpaceError, lambda: LmdbEngine(path))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        engine = LmdbEngine(path)
        assert engine.read([]).header.revision == 1
        """,
        tmp_path / "store",
    )


def test_a_commit_that_fails_is_an_unknown_outcome(tmp_path: Path) -> None:
    """The engine opens its environment anew by itself, and what it then shows is whole."""
    run(
        """
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        engine = LmdbEngine(path, map_bytes=8 << 20)
        for i in range(20):
            put(engine, b"%06d" % i, b"x" * 3_000)
        watcher = engine.watch(b"after", b"", start_revision=1)
        def limit(size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        used = engine.info()["used_bytes"]
        for size in (used + 100_000, used, 40_000, 9_000, 4_096, 100):
            limit(size)
            before = engine.read([]).header.revision
            error = raises(OutcomeUnknown, lambda: put(engine, b"big", b"x" * 500_000))
            if size <= 9_000:
                raises(NoSpaceError, lambda: engine.compact(before, batches=0))
            assert isinstance(error.cause, NoSpaceError), error.cause
            assert error.retry is False
            assert engine.read([]).header.revision in (before, before + 1)
            assert get(engine, b"000007") == b"x" * 3_000
            assert engine.check() == []
            limit(resource.RLIM_INFINITY)
            put(engine, b"fence", b"%d" % size)
        assert get(engine, b"fence") == b"100"
        put(engine, b"after")
        until(lambda: (batch := watcher.next(1)) is not None and batch.events)
        engine.compact(engine.read([]).header.revision)
        assert engine.check() == []
        """,
        tmp_path / "store",
    )
