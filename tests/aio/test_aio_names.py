"""`snapkv.aio` has the names of `snapkv`, with the same arguments."""

import asyncio
import inspect
import subprocess
import sys

import pytest

import snapkv
import snapkv.aio

PAIRS = [
    (snapkv.SnapshotKV, snapkv.aio.SnapshotKV),
    (snapkv.Space, snapkv.aio.Space),
    (snapkv.Snapshot, snapkv.aio.Snapshot),
    (snapkv.Observed, snapkv.aio.Observed),
    (snapkv.Session, snapkv.aio.Session),
    (snapkv.Election, snapkv.aio.Election),
    (snapkv.Watch, snapkv.aio.Watch),
    (snapkv.Live, snapkv.aio.Live),
    (snapkv.LeasedKey, snapkv.aio.LeasedKey),
    (snapkv.LiveWatch, snapkv.aio.LiveWatch),
]
CLOSED = {"close": "aclose"}
INNER = {
    "after_fork", "belongs_to", "campaign_since", "check_ours", "dismiss", "enlist",
    "keyspace", "pairs", "reader", "renew", "wake",
}  # fmt: skip
"""For layers of snapkv itself."""


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")} - INNER


@pytest.mark.parametrize(("sync", "other"), PAIRS, ids=lambda kind: kind.__module__)
def test_each_name_is_the_same_and_takes_the_same(sync, other, subtests):
    for name in sorted(public(sync)):
        with subtests.test(name=name):
            found, wanted = getattr(other, CLOSED.get(name, name), None), getattr(sync, name)
            assert found is not None, f"snapkv.aio has no {other.__name__}.{name}"
            assert callable(found) == callable(wanted)
            if callable(wanted):
                ours, theirs = (
                    [(p.name, p.kind) for p in inspect.signature(f).parameters.values()]
                    for f in (found, wanted)
                )
                assert ours == [p for p in theirs if p != ("timeout", None)]


def test_wrong_arguments_of_an_iterator_raise_at_the_call():
    async def call():
        async with snapkv.aio.open("memory:wrong-arguments") as store:
            with pytest.raises(TypeError, match="nothing"):
                store.history("k", nothing=1)

    asyncio.run(call())


@pytest.mark.slow
def test_it_is_imported_without_docstrings():
    imports = "import snapkv.aio, snapkv.cli.app, cdcmeta.cli.app"
    subprocess.run([sys.executable, "-OO", "-c", imports], check=True, timeout=60)


def test_a_missing_greenlet_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "greenlet", None)
    monkeypatch.delitem(sys.modules, "snapkv.base.greenlet_runtime", raising=False)

    async def main():
        await snapkv.aio.open("etcd://127.0.0.1:1")

    with pytest.raises(ModuleNotFoundError, match=r"snapkv\[aio\]"):
        asyncio.run(main())


def test_what_cannot_be_opened_is_the_same_error():
    async def main(url, **options):
        await snapkv.aio.open(url, **options)

    for url, options in [("nowhere", {}), ("memory:", {"nmae": "x"}), ("etcd://", {}), (7, {})]:
        with pytest.raises(snapkv.SnapKVError) as sync:
            snapkv.open(url, **options)
        with pytest.raises(type(sync.value)) as other:
            asyncio.run(main(url, **options))
        assert str(other.value) == str(sync.value)


WATCHED_IMPORT = """
import asyncio, sys, threading
from importlib.abc import MetaPathFinder
import snapkv.aio

class Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("grpc", "greenlet"):
            print(name, threading.current_thread() is threading.main_thread())

async def main():
    try:
        async with snapkv.aio.open("etcd://127.0.0.1:1", read_timeout=0.2):
            pass
    except snapkv.errors.EngineUnavailableError:
        print("no server")

sys.meta_path.insert(0, Finder())
asyncio.run(main())
"""


@pytest.mark.slow
def test_the_loop_does_not_stand_still_while_modules_are_imported():
    """They take 0.1 s, in which no other task of the loop would run."""
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED_IMPORT],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert sorted(ran.stdout.splitlines()) == ["greenlet False", "grpc False", "no server"]
