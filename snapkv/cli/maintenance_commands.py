"""The commands that keep a store: compact, dump, load, backup, check, status, sessions, health."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from snapkv.base.files import FILE_MODE, descriptor_of
from snapkv.base.files import readable as readable_file
from snapkv.cli.commands import argument, option
from snapkv.cli.exits import CommandError, Exit, sigterm_as_interrupt
from snapkv.cli.formats import Json, counted, key_text, preview, time_json, time_text, value_json
from snapkv.cli.moments import moment, settled
from snapkv.cli.store_options import (
    AtOption,
    ModeOption,
    StoreOptions,
    YesOption,
    file_mode,
    seconds,
    takes,
)
from snapkv.cli.terminal import (
    confirm,
    confirm_found,
    counting,
    report,
    report_error,
    standard_input,
    working,
)
from snapkv.errors import (
    AccessDeniedError,
    NotObservedError,
    StoreNotEmptyError,
    StoreNotFoundError,
)
from snapkv.store.diagnostics import Health
from snapkv.store.dump import verified
from snapkv.store.store import SnapshotKV
from snapkv.times import duration_ms

STREAM, STDOUT = Path("-"), 1
COMMIT_BYTES_MAX = 64 << 20
"""The most that one commit may contain on any engine, as the command line opens them."""

FileArgument = Annotated[Path, argument("FILE")]


@takes("raw")
def compact(
    options: StoreOptions,
    before: Annotated[str, argument("BEFORE")],
    past_recordings: Annotated[
        bool, option("--past-recordings", "Also forget what a recording has not copied yet.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Forget the history before a time, and print the earliest time that remains.

    The state at that time stays readable. All stores in the same place are affected, so it asks.
    The newest minute or so is always kept.
    """
    limit, out = moment(before, "start"), options.output
    if limit is None:
        raise CommandError("compact takes a time; the newest minute is always kept")
    with options.open_store() as kv:
        shown = time_text(kv.timestamp_of(limit))
        confirm(f"Forget all history in {options.store} before {shown}?", yes=yes)
        with working("compacting"):
            done = kv.compact(limit, past_recordings=past_recordings)
    if done.waits_for is not None:
        report(f"snapkv: the recording into {done.waits_for} has not copied more yet")
    elif not done.earliest:
        report("snapkv: no commit is old enough; the newest minute or so is always kept")
    fields = {**time_json(done.earliest), "revision": done.revision}
    out.record(fields, out.time(done.earliest) if done.earliest else "all history remains")


@takes("archive")
def dump(
    options: StoreOptions, file: FileArgument, at: AtOption = None, mode: ModeOption = None
) -> None:
    """Write everything at one moment to a file, which appears when it is complete.

    The file - is the standard output. A device or a FIFO is written to as it is. A file that is
    replaced keeps its permissions without --mode.
    """
    permissions = file_mode(mode)
    when, streamed = moment(at), file == STREAM or descriptor_of(str(file)) == STDOUT
    if streamed and sys.__stdout__ is None:
        raise CommandError("the standard output is closed, and the dump would be lost: name a file")
    if streamed and sys.stdout.isatty():
        raise CommandError("a dump is not for terminals: name a file, or redirect the output")
    with sigterm_as_interrupt(), options.open_store() as kv:
        moment_of = kv.at(settled(kv, when)).timestamp
        with counting("dumping", "key") as progress:
            target = sys.stdout.buffer if streamed else file
            pinned = moment_of if when is None else when
            keys = kv.dump(target, pinned, mode=permissions, progress=progress)
    said = f"{counted(keys, 'key')} at {time_text(moment_of)}"
    if streamed:
        sys.stdout.buffer.flush()
        report(said)
    else:
        options.output.record({"keys": keys, "at": time_json(moment_of)}, said)


@takes()
def backup(
    options: StoreOptions, path: Annotated[Path, argument("PATH")], mode: ModeOption = None
) -> None:
    """Copy a live lmdb store, history and all, to a new directory, while other processes write.

    The directory appears when it is complete. Other engines: see dump.
    """
    permissions = file_mode(mode)
    with sigterm_as_interrupt(), options.open_store() as kv, working("copying"):
        kv.backup(path, mode=FILE_MODE if permissions is None else permissions)
    options.output.record({"path": str(path), "url": f"lmdb:{path}"}, f"lmdb:{path}")


@takes("note", "meta", "writer", "force_fork", "raw")
def load(
    options: StoreOptions,
    file: FileArgument,
    replace: Annotated[
        bool, option("--replace", "Replace everything that is in the store.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Commit what a dump holds, in one commit, and print its time.

    The file - is the standard input. With --replace it asks. Creates the store if it does not
    exist and the dump is whole.
    """
    meta = options.facts
    source = (
        nullcontext(standard_input("the file -", "name a file"))
        if file == STREAM
        else readable_file(file)
    )
    with source as stream, _loading(options, stream) as (kv, checked):
        if replace and kv.info()["commits"]:
            confirm_found(
                kv.at().count(),
                lambda: kv.at().count(),
                lambda count: f"Replace everything in {options.store}, {counted(count, 'key')}?",
                yes=yes,
            )
        try:
            with working("loading"):
                commit = kv.load_dump(checked, replace=replace, note=options.note, meta=meta)
        except StoreNotEmptyError as e:
            message = f"{options.store} has keys already; --replace replaces them"
            raise CommandError(message, Exit.CONFLICT) from e
    options.output.committed(commit)


@contextmanager
def _loading(options: StoreOptions, file: BinaryIO) -> Iterator[tuple[SnapshotKV, BinaryIO]]:
    """Yield the store and the dump, verified before a store is made: no empty store is left."""
    with ExitStack() as held:
        try:
            kv = held.enter_context(options.open_store(asks=True))
        except StoreNotFoundError:
            file = verified(file, COMMIT_BYTES_MAX)
            kv = held.enter_context(options.open_store(create=True))
        yield kv, file


@takes()
def check(options: StoreOptions) -> None:
    """Check every invariant of what is stored; print what is broken."""
    with options.open_store() as kv, counting("checking", "commit") as progress:
        found = kv.check(progress=progress)
    checked = f"{counted(found.commits, 'commit')} and {counted(found.keys, 'key')}"
    fields = {"commits": found.commits, "keys": found.keys}
    options.output.problems(fields, found.problems, checked)


@takes("observe", "archive", "timeout", "raw")
def status(options: StoreOptions) -> None:
    """Print facts about the store: its newest commit, writers, lag, leaders, size and engine.

    With --observe, about what is observed. Facts that the user may not read are left out.
    """
    with options.readable() as kv:
        facts = kv.info()
        with suppress(NotObservedError, AccessDeniedError):
            facts["keys"] = kv.at().count()
    options.output.facts(_facts_json(facts), list(_rows(facts, options.raw).items()))


def _facts_json(facts: Json) -> Json:
    """Return facts for JSON; the names of times end with `_timestamp`."""
    return {
        fact.removesuffix("_timestamp"): time_json(value) if fact.endswith("_timestamp") else value
        for fact, value in facts.items()
    }


def _rows(facts: Json, raw: bool) -> dict[str, str]:
    """Return facts as lines of text: the engine's facts one level down, empty ones left out."""
    rows: dict[str, str] = {}
    for fact, value in facts.items():
        if isinstance(value, dict):
            rows |= {f"{fact}.{key_text(at)}": shown for at, shown in _rows(value, raw).items()}
        elif value is None:
            continue
        elif fact.endswith("_timestamp"):
            rows[fact.removesuffix("_timestamp")] = time_text(value, raw=raw)
        else:
            rows[fact] = key_text(str(value))
    return rows


@takes("timeout", "raw")
def sessions(options: StoreOptions) -> None:
    """Print the live sessions, the oldest first: start, writer, what each leads, TTL, value."""
    with options.open_store() as kv:
        found, leaders = kv.sessions(), kv.leaders()
    with options.output.headed("STARTED", "WRITER", "LEADS", "TTL", "VALUE", aligned=True) as out:
        for each in found:
            leads = [name for name, leader in leaders.items() if leader.session == each.id]
            fields: Json = {"session": f"{each.id:x}", "writer": each.writer, "leads": leads}
            fields |= {"started": time_json(each.started), "ttl_s": each.ttl_s}
            fields["value"] = value_json(each.value)
            ttl = "-" if each.ttl_s is None else f"{each.ttl_s:g} s"
            shown = key_text(each.writer), key_text(", ".join(leads) or "-"), ttl
            out.record(fields, out.time(each.started), *shown, preview(each.value))
    if not found:
        report("no live sessions")


# --- health ---


TIMEOUT = "1s"


@takes("timeout", "raw")
def health(
    options: StoreOptions,
    max_age: Annotated[
        str | None,
        option(
            "--max-age DURATION",
            "Fail (code 1) if the newest commit is older than this, such as 30s.",
        ),
    ] = None,
) -> None:
    """Check that the store answers, and print how old its newest commit is.

    For probes: code 0 if it answers, 7 if it does not within --timeout, a second by default.
    """
    age_s_max = None if max_age is None else duration_ms(max_age) / 1_000
    options = replace(options, timeout=options.timeout or TIMEOUT)
    with options.open_store(silent=True) as store:
        found = store.health(timeout=seconds(options.timeout) or 0.0)
    fields = asdict(found) | {"latency_s": round(found.latency_s, 6)}
    fields["newest_timestamp"] = found.newest_timestamp or None
    options.output.facts(_facts_json(fields), _health_rows(found, raw=options.raw))
    if not found.answers:
        report_error(str(found.error))
        raise typer.Exit(Exit.LATER)
    if age_s_max is not None and (found.age_s is None or found.age_s > age_s_max):
        newest = "no commit" if found.age_s is None else f"the newest commit is {_age(found)}"
        report_error(f"{newest}; at most {max_age} is allowed")
        raise typer.Exit(Exit.NO)


def _health_rows(found: Health, *, raw: bool) -> list[tuple[str, str]]:
    rows = [
        ("answers", "yes" if found.answers else "no"),
        ("latency", f"{found.latency_s * 1_000:.1f} ms"),
        ("newest", f"{time_text(found.newest_timestamp, raw=raw)}, {_age(found)}"),
    ]
    if found.skew_s is not None:
        rows.append(("skew", f"{found.skew_s:+.1f} s"))
    if found.earliest_timestamp is not None:
        rows.append(("earliest", time_text(found.earliest_timestamp, raw=raw)))
    if found.size_bytes is not None:
        rows.append(("size", f"{found.size_bytes:,} bytes"))
    return rows


def _age(found: Health) -> str:
    return "no commits" if found.age_s is None else f"{found.age_s:,.1f} s old"
