"""The command import-prefix: copies keys of other programs into a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Annotated

from snapkv.base.text import LongerNames
from snapkv.cli.command_output import Output
from snapkv.cli.commands import argument, option
from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.formats import Json, commit_json, counted
from snapkv.cli.store_options import StoreOptions, YesOption, takes, warnings_shown
from snapkv.cli.terminal import confirm, progress_bar, report, report_longer_names, working
from snapkv.copying.import_prefix import ImportResult, Progress
from snapkv.copying.import_prefix import import_prefix as import_into
from snapkv.engine.etcd.options import VARIABLES
from snapkv.errors import (
    AccessDeniedError,
    CommitTooLargeError,
    SnapKVError,
    StoreNotEmptyError,
    StoreNotFoundError,
)
from snapkv.store.open import STORE_VARIABLE
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV

Tried = Callable[[SnapshotKV, Progress | None, bool], ImportResult]
"""An import into a store, with what shows its progress; True for a dry run."""

FROM_VARIABLES = {
    option: variable.replace("_ETCD_", "_FROM_") for option, variable in VARIABLES.items()
}
"""The login variables of a source in another place, instead of `SNAPKV_ETCD_USER` and the like."""

ToOption = Annotated[
    str | None,
    option(
        "--store --to URL", f"The store that gets them; else the environment's {STORE_VARIABLE}."
    ),
]


@takes("note", "meta", "writer", "force_fork", "raw")
def import_prefix(
    options: StoreOptions,
    prefix: Annotated[str, argument("PREFIX", "Exact to the byte.")],
    source: Annotated[
        str | None, option("--from URL", "Where they are; else where the store is.")
    ] = None,
    store: ToOption = None,
    strip: Annotated[bool, option("--strip", "Take the prefix off the keys.")] = False,
    under: Annotated[str, option("--under NEWPREFIX", "Put this before the keys.")] = "",
    replace: Annotated[
        bool, option("--replace", "Replace other values, remove keys that the source lacks.")
    ] = False,
    batches: Annotated[
        bool, option("--batches", "Use several commits if one is too small.")
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", "Only print what would be done.")] = (False),
    yes: YesOption = False,
) -> None:
    """Commit the newest state of keys that other programs wrote, and print its time.

    They are read at one revision. Only differences are written, so a second run continues an
    interrupted one. With --replace it asks. Creates the store if it does not exist; a dry run does
    not.
    """
    meta = options.facts
    elsewhere = source not in (None, store)
    source_options = _source_options(str(source), os.environ) if elsewhere else None

    def tried(kv: SnapshotKV, progress: Progress | None, dry_run: bool) -> ImportResult:
        return import_into(
            kv,
            source or str(store),
            prefix,
            strip=strip,
            under=under,
            replace=replace,
            batches=batches,
            note=options.note,
            meta=meta,
            progress=progress,
            source_options=source_options,
            dry_run=dry_run,
        )

    shown = _denial_explained(source if elsewhere else None)
    with shown, _importing(options, tried, dry_run) as kv:
        target = under + ("" if strip else prefix)
        if not dry_run:
            kv._core.check_own()  # before it asks
        if replace and not dry_run and (there := kv.at().count(target)):
            report_longer_names(LongerNames(target, kv.at().keys(target)))
            what = f"{counted(there, 'key')} under {target!r}" if target else "every key"
            confirm(f"Replace what differs of {what} in {store}?", yes=yes)
        with warnings_shown(again=not elsewhere):
            done = _run_shown(lambda progress: tried(kv, progress, dry_run), dry_run=dry_run)
    _report_result(options.output, done, dry_run)


@contextmanager
def _importing(options: StoreOptions, tried: Tried, dry_run: bool) -> Iterator[SnapshotKV]:
    """Yield the store; before it is made, the import is tried in memory: no empty store is left."""
    with ExitStack() as held:
        try:
            kv = held.enter_context(options.open_store())
        except StoreNotFoundError:
            if dry_run:
                raise
            with warnings_shown(), open_store("memory:") as nothing:
                _run_shown(lambda _: tried(nothing, None, True), dry_run=True)
            kv = held.enter_context(options.open_store(create=True))
        yield kv


def _source_options(source: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the login options for a source in another place; never the store's options."""
    if not source.startswith("etcd:"):
        return {}
    found = {option: environment.get(name) for option, name in FROM_VARIABLES.items()}
    return {option: value for option, value in found.items() if value}


@contextmanager
def _denial_explained(source: str | None) -> Iterator[None]:
    """Name the login variables of a source in another place when it denies access."""
    try:
        yield
    except AccessDeniedError as e:
        if source is None or not str(e).startswith(f"{source}: "):
            raise
        told = f"set {FROM_VARIABLES['user']} and {FROM_VARIABLES['password']} to log in there"
        raise CommandError(f"{e} ({told})", Exit.NO_STORE) from e


def _run_shown(run: Callable[[Progress | None], ImportResult], *, dry_run: bool) -> ImportResult:
    """Run an import with a progress bar; its errors advise options of the command line."""
    begun, kept = False, False
    try:
        if dry_run:
            with working("reading"):
                return run(None)
        with progress_bar("importing") as move:

            def moved(done: int, total: int) -> None:
                nonlocal begun, kept
                if total > 1 and not begun:
                    report(
                        f"in {total:,} commits: until the last one, readers see a part of the keys"
                    )
                begun, kept = total > 1, done > 0
                move(done, total)

            return run(moved)
    except KeyboardInterrupt:
        if begun:
            report("interrupted: imported keys stay; another import continues there")
        raise
    except CommitTooLargeError as e:
        helps = "" if e.what.startswith("'") else "; use --batches for several commits"
        raise CommandError(f"{e}{helps}") from e
    except StoreNotEmptyError as e:
        message = str(e).replace("replace=True", "--replace")
        raise CommandError(message, Exit.CONFLICT) from e
    except SnapKVError:
        if kept:
            report("imported keys stay; another import continues there")
        raise


def _report_result(out: Output, done: ImportResult, dry_run: bool) -> None:
    fields: Json = {
        "keys": done.keys,
        "saved": done.saved,
        "removed": done.removed,
        "left_out": done.left_out,
        "commits": done.commits,
        "source_revision": done.revision,
        "commit": None if done.newest is None else commit_json(done.newest),
    }
    said = (
        f"{counted(done.saved, 'key')} saved, {done.removed:,} removed, "
        f"of {done.keys:,} in the source, in {counted(done.commits, 'commit')}"
    )
    if done.left_out:
        report(f"left out: {counted(done.left_out, 'key')} of snapkv stores")
    if dry_run:
        out.record(fields, f"would be: {said}")
    elif done.newest is None:
        if out.structured:
            out.record(fields)
        report(f"nothing to import: the store has all {counted(done.keys, 'key')} already")
    else:
        out.record(fields, out.time(done.newest.ts))
        report(said)
