"""The commands import and import-prefix, what other programs have as commits; and export."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Annotated, Any

from snapkv import layout
from snapkv.base.files import readable
from snapkv.base.text import LongerNames
from snapkv.cli.command_output import Output
from snapkv.cli.commands import argument, option
from snapkv.cli.exits import CommandError, Exit, sigterm_as_interrupt
from snapkv.cli.formats import Json, commit_json, counted, time_json, time_text
from snapkv.cli.git_clone import Clone
from snapkv.cli.git_export import export_history
from snapkv.cli.git_import import GitTimeline, clock_options, import_history
from snapkv.cli.moments import moment, settled
from snapkv.cli.recording import RecorderProgress
from snapkv.cli.store_options import AtOption, StoreOptions, YesOption, takes, warnings_shown
from snapkv.cli.terminal import (
    confirm,
    progress_bar,
    report,
    report_longer_names,
    report_warning,
    standard_input,
    working,
)
from snapkv.clock import ManualClock
from snapkv.copying import record as recorder_of
from snapkv.copying.import_prefix import ImportResult
from snapkv.copying.import_prefix import import_prefix as import_into
from snapkv.copying.key_files import read_folder, read_json, write_folder, write_json_lines
from snapkv.copying.sources import OTHER_KEYS
from snapkv.copying.store_target import LONG_KEYS
from snapkv.engine.contract import Put, Txn
from snapkv.engine.etcd.options import VARIABLES
from snapkv.engine.memory import open_memory
from snapkv.errors import (
    AccessDeniedError,
    CommitTooLargeError,
    SnapKVError,
    StoreNotEmptyError,
    StoreNotFoundError,
)
from snapkv.store.location import open_engine
from snapkv.store.open import STORE_VARIABLE
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV
from snapkv.times import PHYSICAL_MS_MAX, physical_ms, resolve

Import = Callable[..., ImportResult]
"""`import_prefix` of a source, but for the store, `progress` and `dry_run`."""

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

BatchesOption = Annotated[bool, option("--batches", "Use several commits if one is too small.")]
GitOption = Annotated[bool, option("--git", "All commits of a git repository.")]
DryRunOption = Annotated[bool, option("--dry-run", "Only print what would be done.")]


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
    batches: BatchesOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Commit the newest state of keys that other programs wrote, and print its time.

    They are read at one revision. Only differences are written, so a second run continues an
    interrupted one. With --replace it asks. Creates the store if it does not exist; a dry run does
    not.
    """
    elsewhere = source not in (None, store)
    tried: Import = partial(
        import_into,
        source_url=source or str(store),
        prefix=prefix,
        strip=strip,
        under=under,
        replace=replace,
        batches=batches,
        note=options.note,
        meta=options.facts,
        source_options=_source_options(str(source), os.environ) if elsewhere else None,
    )
    shown = _denial_explained(source if elsewhere else None)
    with shown, _importing(options, tried, dry_run) as kv:
        target = under + ("" if strip else prefix)
        if replace and not dry_run and (there := kv.at().count(target)):
            report_longer_names(LongerNames(target, kv.at().keys(target)))
            what = f"{counted(there, 'key')} under {target!r}" if target else "every key"
            confirm(f"Replace what differs of {what} in {store}?", yes=yes)
        with warnings_shown(again=not elsewhere):
            done = _run_shown(partial(tried, kv, dry_run=dry_run), dry_run=dry_run)
    _report_result(options.output, done, dry_run)


@takes("note", "meta", "writer", "force_fork", "raw")
def import_(
    options: StoreOptions,
    source: Annotated[str, argument("DIR|FILE.jsonl|FILE.json|-")],
    prefix: Annotated[str, option("--prefix PREFIX", "Put this before the keys.")] = "",
    key: Annotated[str, option("--key FIELD", "The field of a record that has its key.")] = "key",
    delete: Annotated[
        bool, option("--delete", "Remove keys, with --prefix below it, that the source lacks.")
    ] = False,
    batches: BatchesOption = False,
    git: GitOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Commit the files of a folder, or the records of JSON, and print the commit's time.

    The path of a file below the folder is a key, and its bytes are the value. A line of FILE.jsonl,
    or of the standard input (-), is a record: {"key": "a", "value": "1"}. FILE.json has an object
    of keys and values, or a list of records. Only differences are written. With --delete it asks.
    Creates the store if it does not exist. With --git each commit of a clone's first-parent
    history becomes one of a new store, with author and time; a second run continues.
    """
    if git:
        if key != "key" or delete or batches or dry_run or options.note or options.meta:
            raise CommandError("import --git takes only --prefix, --writer and --force-fork")
        _import_git(options, source, prefix)
        return
    url = f"memory:{os.urandom(8).hex()}"
    puts = [Put(name.encode(), value) for name, value in _read(source, key)]
    if not puts:
        raise CommandError(f"{source} has no keys: to remove keys, use rm", Exit.NO)
    for name, times in Counter(put.key for put in puts).most_common(1):
        if times > 1:
            raise CommandError(f"{source} has key {name.decode()!r} {times} times: leave one")
    open_memory(url).transact(lambda _: Txn(success=tuple(puts)), layout.FIRST_KEY, timeout=1.0)
    note = f"import {os.fsencode(source).decode(errors='backslashreplace')[-200:]}"
    said: dict[str, Any] = {"note": options.note or note, "meta": options.facts}
    said |= {"source_url": url, "prefix": "", "under": prefix, "batches": batches}
    tried: Import = partial(import_into, replace=True, keep=not delete, **said)
    with _importing(options, tried, dry_run) as kv:
        if delete and not dry_run and (gone := tried(kv, dry_run=True).removed):
            confirm(f"Remove {counted(gone, 'key')} that {source} lacks?", yes=yes)
        done = _run_shown(partial(tried, kv, dry_run=dry_run), dry_run=dry_run)
    _report_result(options.output, done, dry_run)


@takes("writer", "observe", "raw")
def import_etcd(
    options: StoreOptions,
    files: Annotated[list[str], argument("FILE.db")],
    time: Annotated[
        str | None, option("--time TIME", "When the one file was saved; else the file's own time.")
    ] = None,
) -> None:
    """Make snapshot files of etcd a store's history, and print the times of their newest revisions.

    Each file brings the revisions that it still has, with the time at which it was saved; what is
    lost between two files is noted. Files whose revisions the store has are passed over.
    """
    saved, recorded = moment(time, "start"), 0
    if saved is not None and len(files) > 1:
        raise CommandError("--time is the time of one file: import several one by one")
    with suppress(StoreNotFoundError), options.open_store() as kv:
        for commit in kv.commits(newest_first=True, limit=1):
            recorded = commit.source_revision or 0
    engines = (open_engine(f"etcd-snapshot:{file}", create=False, options={}) for file in files)
    found = [(engine.get(layout.FIRST_KEY).header.revision, engine.url) for engine in engines]
    keys: dict[str, Any] = {"observe": options.observed or "", "exclude": options.exclude or ()}
    keys |= {"into_name": options.store_name, "into": options.url}
    for revision, url in sorted(found):
        ms = int(os.stat(url.partition(":")[2]).st_mtime * 1_000)
        clock = ManualClock(ms if saved is None else physical_ms(resolve(saved, ms)))
        if revision > recorded:
            shows = RecorderProgress(options.output, print, quiet=True)
            newest = recorder_of(url, report=shows, clock=clock, **keys).catch_up()
            options.output.record({"source": url, **time_json(newest)}, options.output.time(newest))
            if physical_ms(newest) > clock.now_ms():
                report_warning(f"{url} is dated before what the store has: its time is moved up")


def _read(source: str, field: str) -> Iterable[tuple[str, bytes]]:
    if os.path.isdir(source):
        return read_folder(source)
    if source == "-":
        return read_json(standard_input("the source -", "name a file"), source, field)
    if not os.path.lexists(source):
        raise CommandError(f"{source!r} does not exist: name a folder, FILE.json, FILE.jsonl, or -")
    if not source.endswith((".json", ".jsonl")):
        raise CommandError(f"{source!r} is not a folder, FILE.json or FILE.jsonl: name one, or -")
    with readable(source) as file:
        return list(read_json(file, source, field))


def _import_git(options: StoreOptions, source: str, prefix: str) -> None:
    clone, clock = Clone(source), ManualClock(PHYSICAL_MS_MAX)
    timeline = GitTimeline.of(clone)
    with options.open_store(create=True, **clock_options(clock)) as kv, progress_bar("git") as move:
        done = import_history(kv, clock, clone, timeline, move, prefix=prefix, undo=False)
    fields = {"commits": done.commits, "left_out": len(done.left_out), **time_json(done.ts)}
    options.output.record(fields, options.output.time(done.ts))
    left_out = f"; left out: {counted(len(done.left_out), 'path')}" if done.left_out else ""
    report(f"{counted(done.commits, 'commit')} of git imported, {done.before:,} before{left_out}")


@takes("archive", "raw")
def export(
    options: StoreOptions,
    target: Annotated[str, argument("DIR|FILE.jsonl")],
    at: AtOption = None,
    prefix: Annotated[
        str, option("--prefix PREFIX", "Only keys that begin so, without this beginning.")
    ] = "",
    git: GitOption = False,
) -> None:
    """Write the keys of a moment as files of a new folder, or as records into a file .jsonl.

    To import either with the same --prefix gives the same keys and values. The folder or the file
    appears when it is complete. With --git each commit until --at becomes one of git, with writer,
    time and note, on the branch snapkv of a repository; a second run continues.
    """
    when, lines = moment(at), target.endswith(".jsonl")
    if git:
        with sigterm_as_interrupt(), options.open_store() as kv:
            count = len(list(export_history(kv, target, prefix, settled(kv, when))))
        options.output.record({"commits": count}, f"{counted(count, 'commit')} to branch snapkv")
        return
    if target.endswith(".json"):
        raise CommandError(f"export writes a folder or FILE.jsonl, not {target!r}: name one")
    with sigterm_as_interrupt(), options.open_store() as kv:
        snapshot = kv.at(settled(kv, when))
        pairs = ((key[len(prefix) :], value) for key, value in snapshot.items(prefix))
        count = (write_json_lines if lines else write_folder)(target, pairs)
        spaces = (kv.space(name).at(revision=snapshot.revision) for name in (OTHER_KEYS, LONG_KEYS))
        if left_out := sum(space.count() for space in spaces):
            report_warning(f"left out: {counted(left_out, 'key')}, not UTF-8 or too long")
    said = f"{counted(count, 'key')} at {time_text(snapshot.timestamp, raw=options.raw)}"
    options.output.record({"keys": count, "at": time_json(snapshot.timestamp)}, said)


@contextmanager
def _importing(options: StoreOptions, tried: Import, dry_run: bool) -> Iterator[SnapshotKV]:
    """Yield the store; before it is made, the import is tried in memory: no empty store is left."""
    with ExitStack() as held:
        try:
            kv = held.enter_context(options.open_store(asks=not dry_run))
        except StoreNotFoundError:
            if dry_run:
                raise
            with warnings_shown(), open_store("memory:") as nothing:
                _run_shown(partial(tried, nothing, dry_run=True), dry_run=True)
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


def _run_shown(run: Import, *, dry_run: bool) -> ImportResult:
    """Run an import with a progress bar; its errors advise options of the command line."""
    begun, kept = False, False
    try:
        if dry_run:
            with working("reading"):
                return run()
        with progress_bar("importing") as move:

            def moved(done: int, total: int) -> None:
                nonlocal begun, kept
                if total > 1 and not begun:
                    report(
                        f"in {total:,} commits: until the last one, readers see a part of the keys"
                    )
                begun, kept = total > 1, done > 0
                move(done, total)

            return run(progress=moved)
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
        "source_revision": done.revision or None,
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
