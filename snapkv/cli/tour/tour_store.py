"""The place of the tour's store: a folder, or an etcd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import snapkv
from snapkv.cli.exits import AdvisedError, Exit
from snapkv.cli.git_clone import Clone
from snapkv.cli.git_import import clock_options, imported_last
from snapkv.engine.contract import Delete, OutcomeUnknown, Refused, Txn
from snapkv.engine.lmdb.directory import DATA_FILE, READERS_FILE
from snapkv.engine.lmdb.lock import LOCK_FILE
from snapkv.errors import CorruptStoreError, NotAStoreError, ReadOnlyError, StoreNotFoundError
from snapkv.layout import Layout, prefix_end
from snapkv.store.location import open_engine
from snapkv.times import PHYSICAL_MS_MAX

ETCD_NAME = "tour"
REMOVE_TIMEOUT_S = 10.0
ELSEWHERE = "Name a folder that is new or holds an earlier tour, or an etcd: --store DIR"


def store_path(clone: Clone, given: str | None) -> str:
    """Return the place of the store: a folder or an etcd as given, else one that git does not see.

    That is `.tour` at the top of the clone when git ignores it there (so says our own
    `.gitignore`), else `snapkv-tour` inside the git directory.
    """
    if given is None:
        ignored = clone.ignores(".tour")
        path = Path(clone.root, ".tour") if ignored else Path(clone.git_dir, "snapkv-tour")
        relative = os.path.relpath(path)
        return str(path) if relative.startswith("..") else relative
    if in_etcd(given):
        return given
    path_given = given.removeprefix("lmdb:")
    scheme, colon, _ = path_given.partition(":")
    if not path_given or (colon and scheme in ("memory", "etcd")):
        message = f"the tour needs a folder or etcd://HOST:PORT for its store, not {given!r}"
        raise AdvisedError(message, ELSEWHERE)
    return path_given


def in_etcd(path: str) -> bool:
    """Return whether the place of the store is an etcd, not a folder."""
    return path.startswith("etcd://")


def url_of(path: str) -> str:
    """Return the URL of the tour's store."""
    return path if in_etcd(path) else f"lmdb:{path}"


def name_of(path: str) -> str:
    """Return the name of the tour's store: in an etcd, which other programs use, it has its own."""
    return ETCD_NAME if in_etcd(path) else "default"


@contextmanager
def open_tour_store(
    path: str, *, request_bytes_max: int | None = None, create: bool = True
) -> Iterator[tuple[snapkv.SnapshotKV, snapkv.ManualClock]]:
    """Open the tour's store and its clock; `AdvisedError` if the place contains something else.

    The clock begins at the end of time, so that commits may be dated in the future.
    """
    clock = snapkv.ManualClock(PHYSICAL_MS_MAX)
    options: dict[str, Any] = {"create": create, "writer": "snapkv tour", "name": name_of(path)}
    if request_bytes_max:
        options["max_request_bytes" if in_etcd(path) else "request_bytes_max"] = request_bytes_max
    try:
        with snapkv.open(url_of(path), codec=None, **options, **clock_options(clock)) as store:
            yield store, clock
    except CorruptStoreError as e:
        raise AdvisedError(
            f"the store in {path} is damaged: {e}",
            "Remove that folder and run the tour again: it makes a new store",
            Exit.NO_STORE,
        ) from e
    except (NotAStoreError, ReadOnlyError) as e:
        message = f"the tour cannot keep its store in {path}: {e}"
        raise AdvisedError(message, ELSEWHERE, Exit.NO_STORE) from e


def remove_store(path: str) -> None:
    """Remove the store of an earlier tour; raise `AdvisedError`, remove nothing, if it is not."""
    try:
        with open_tour_store(path, create=False) as (store, _):
            imported_last(store)
    except StoreNotFoundError:
        return
    if in_etcd(path):
        _remove_keys(path)
        return
    for name in (DATA_FILE, READERS_FILE, LOCK_FILE):
        Path(path, name).unlink(missing_ok=True)


def _remove_keys(url: str) -> None:
    """Remove all keys of the tour's store in an etcd, in one revision."""
    layout = Layout(ETCD_NAME)
    txn = Txn(success=(Delete(layout.root, prefix_end(layout.root)),))
    with closing(open_engine(url, create=False, options={}, home=layout.ts)) as engine:
        try:
            engine.transact(lambda _: txn, layout.ts, timeout=REMOVE_TIMEOUT_S)
        except (Refused, OutcomeUnknown) as e:
            raise AdvisedError(
                f"the store of an earlier tour could not be removed: {e}",
                "Run the tour again when the etcd can be reached and written",
                Exit.LATER,
            ) from e
