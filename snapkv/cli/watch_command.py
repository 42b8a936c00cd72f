"""The command watch: commits and their changes as they happen, printed or delivered."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import groupby, islice
from subprocess import PIPE, Popen
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from snapkv.base.files import FILE_MODE, FilePath, open_made, readable, typed_errors, written
from snapkv.base.waiting import monotonic, pause
from snapkv.cli.command_output import COMMIT_HEADINGS, Output
from snapkv.cli.commands import option
from snapkv.cli.difference_output import Renderer, RenderingOptions, renders
from snapkv.cli.exits import CommandError, Exit, interrupts_later, sigterm_as_interrupt
from snapkv.cli.formats import ZONES, Json, change_json, commit_json, json_line, written_change_json
from snapkv.cli.moments import moment, settled
from snapkv.cli.named_keys import common, prefixes_in
from snapkv.cli.store_options import (
    CountOption,
    PatchOption,
    PrefixesArgument,
    PrefixesOption,
    StoreOptions,
    seconds,
    takes,
)
from snapkv.cli.terminal import report_warning
from snapkv.errors import CompactedError, HistoryGapError, InvalidFileError, StoreRecreatedError
from snapkv.model import Change, Changes, Difference
from snapkv.reading.log import values_before
from snapkv.reading.watches import Watch
from snapkv.store.open import Keys

ValuesBefore: TypeAlias = Callable[[list[Change[str]]], Sequence[bytes | None] | None]

TRIES = 7
"""The most tries to deliver a commit."""
WAIT_S = 0.5
"""The wait after the first try, in seconds; each further wait is twice as long."""
ANSWER_S = 10.0
"""The longest that a try waits for a webhook, in seconds."""
END_S = 5.0
"""The longest that an ended watch waits for its command's end after SIGTERM, in seconds."""
QUIET_S = 60.0
"""The time without a change, in seconds, after which a watch writes its position."""
_KEPT_BYTES_MAX = 64 << 20
_POSITION = re.compile(r"([\da-f]+) (\d{1,19})\n")

WatchSinceOption = Annotated[
    str | None, option("--since TIME", "Begin after this time; else after now.")
]
IdleOption = Annotated[
    str | None, option("--timeout DURATION", "End when nothing came for so long.")
]


@takes("observe", "archive", "raw")
@renders()
def watch(
    options: StoreOptions,
    rendering: RenderingOptions,
    given: PrefixesArgument = None,
    prefix: PrefixesOption = None,
    since_: WatchSinceOption = None,
    count: CountOption = None,
    patch: PatchOption = False,
    timeout: IdleOption = None,
    exec: Annotated[str | None, option("--exec CMD", "Run it with each commit's JSON.")] = None,
    webhook: Annotated[str | None, option("--webhook URL", "POST each commit's JSON.")] = None,
    state: Annotated[str | None, option("--state FILE", "Begin after the commit in it.")] = None,
) -> None:
    """Print commits and their changes as they happen, until Ctrl-C or SIGTERM.

    + added, - removed, ~ changed, on one line each; --patch prints them as diff does. With
    --observe, all writes that a tick stamps come at once, each with its own revision. Only commits
    of the ticking store have a writer. Commits in which only ignored paths differ are left out, and
    counted on the error stream in the end. --exec and --webhook take the place of printing: what
    fails is tried again, and after the last try the watch ends. --state writes the position to the
    file after each commit, and goes on there.
    """
    attempt = _attempt(exec, webhook)
    after, renderer = moment(since_, "since"), Renderer(rendering, brief=not patch)
    out = options.output.headed(*COMMIT_HEADINGS, *renderer.headings)
    out.remark = ZONES.remark
    with sigterm_as_interrupt(), kept_in(state) as kept, options.readable() as kv:
        prefixes = prefixes_in(given, prefix, key=renderer.name_keys(kv, raw=options.raw).key)
        until, store_id = seconds(timeout), kv.reader.format.store_id.hex()
        at, wait = _position_in(kept, state, store_id, kv), QUIET_S if until is None else until

        def keep(timestamp: int) -> None:
            if state is not None:  # the time of a commit, by which the file is checked
                commit = kv.reader.timeline.at(timestamp).mark
                keep_in(state, f"{store_id} {commit.timestamp}\n")

        start = settled(kv, after) if at is None else at
        with kv.watch(common(prefixes) or None, start, timeout=wait) as changes:
            keep(changes.timestamp)
            before_of = partial(_values_before, kv)
            found_in = _followed(changes, keep, ends=until is not None)
            shown = (without_ignored(renderer, each, before_of, prefixes) for each in found_in)
            try:
                for found in islice(filter(None, shown), count):
                    if attempt or out.structured:
                        before = before_of(found.changes) if patch else None
                        fields = changes_json(renderer, found, before, writes=bool(options.observe))
                        (partial(_deliver, attempt) if attempt else out.record)(fields)
                    else:
                        write_changes(out, renderer, found, before_of)
                    sys.stdout.flush()
                    keep(changes.timestamp)
            finally:
                renderer.report_ignored()


def _followed(
    changes: Watch[str, bytes], keep: Callable[[int], None], *, ends: bool
) -> Iterator[Changes[str]]:
    """Yield what a watch returns, until a time without changes if it `ends`.

    After such a time it keeps the position: compaction would pass that of a quiet prefix.
    """
    while True:
        yield from changes
        keep(changes.timestamp)
        if ends:
            return


def without_ignored(
    renderer: Renderer, found: Changes[str], values_before: ValuesBefore, prefixes: tuple[str, ...]
) -> Changes[str] | None:
    """Return the changes of a time to keys with prefixes, None without any.

    Commits that are ignored are left out, and counted. Reads the values before changes that may be
    ignored.
    """
    kept: list[Change[str]] = []
    for commit, group in groupby(found.changes, key=lambda change: change.commit):
        changes = [change for change in group if change.key.startswith(prefixes)]
        says_nothing = commit.note is None and commit.meta is None
        if changes and says_nothing and _are_ignored(renderer, changes, values_before):
            renderer.commits_ignored += 1
            continue
        kept += changes
    return replace(found, changes=tuple(kept)) if kept else None


def _are_ignored(
    renderer: Renderer, changes: list[Change[str]], values_before: ValuesBefore
) -> bool:
    paths = renderer.ignored_paths
    if not all(paths.may_ignore(each.value or b"") and paths.shows(each.key) for each in changes):
        return False
    before = values_before(changes)
    return before is not None and all(
        value is not None and paths.ignores(value, change.value or b"")
        for value, change in zip(before, changes, strict=True)
    )


def changes_json(
    renderer: Renderer, found: Changes[str], before: Sequence[bytes | None] | None, *, writes: bool
) -> Json:
    """Return a commit for programs, with `before` both values; of observed `writes` each write."""
    changes, form = [], written_change_json if writes else change_json
    for number, each in enumerate(found.changes):
        row = {**form(each), "value": renderer.value_json(each.key, each.value)}
        if before is not None:
            row |= {
                "before": renderer.value_json(each.key, before[number]),
                "after": row["value"],
            }
        changes.append(row)
    return {**commit_json(found.commit), "changes": changes}


def _values_before(kv: Keys, changes: Sequence[Change[str]]) -> list[bytes | None] | None:
    """Return the values before changes; None if these were compacted."""
    with suppress(CompactedError, HistoryGapError):
        return values_before(kv, changes)
    return None


def write_changes(
    out: Output, renderer: Renderer, found: Changes[str], values_before: ValuesBefore
) -> None:
    """Write the commits of one time for people: of observed keys there may be several.

    Their changes are below; `=` is before a value if the one before is unknown.
    """
    in_order = sorted(found.changes, key=lambda change: change.commit.revision)
    for commit, group in groupby(in_order, key=lambda change: change.commit):
        changes, in_front = list(group), out.commit_columns(replace(commit, ts=found.commit.ts))
        before = values_before(changes)
        if out.format == "text":
            out.record({}, *in_front)
        if before is not None:
            pairs = zip(changes, before, strict=True)
            differences = (Difference(change.key, value, change.value) for change, value in pairs)
            renderer.write(out, differences, *in_front, indent="  ")
            continue
        for change in changes:
            sign, style = ("-", "red") if change.value is None else ("=", "green")
            value = "" if change.value is None else renderer.preview(change.key, change.value)
            key = renderer.shown_key(change.key)
            line = f"  {sign} {key}  {value}".rstrip()
            out.record({}, *in_front, (sign, style), key, value, lines=[[(line, style)]])


# --- deliveries ---


def _attempt(command: str | None, webhook: str | None) -> Callable[[bytes], None] | None:
    """Return what delivers a commit, None for printing; no error repeats the webhook."""
    if command is not None and (webhook is not None or not command.strip()):
        raise CommandError("--exec takes a command, and goes without --webhook")
    if command is not None:
        return partial(_run, command)
    if webhook is None:
        return None
    try:
        parts = urlsplit(webhook)
        is_fit = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit or "@" in parts.netloc or not re.fullmatch("[!-~]+", webhook):
        raise CommandError(
            "--webhook takes http://HOST:PORT/PATH or https://..., without a user, and with "
            "what is not ASCII as %XX: a secret goes into the path"
        )
    return partial(_post, webhook)


def _deliver(attempt: Callable[[bytes], None], fields: Json) -> None:
    """Deliver a commit; an attempt raises `CommandError`, of `Exit.LATER` if it may be repeated."""
    body, wait_s = f"{json_line(fields)}\n".encode(), WAIT_S
    for left in reversed(range(TRIES)):
        try:
            return attempt(body)
        except CommandError as e:
            said = f"revision {fields['revision']} is not delivered: {e}"
            if not left or e.code is not Exit.LATER:
                raise CommandError(said, e.code) from e
            report_warning(f"{said}; next of {left} tries in {wait_s:g} s")
        pause(wait_s)
        wait_s *= 2


def _run(command: str, body: bytes) -> None:
    """Run a command as `sh -c` does; what ends the watch ends its process group, too."""
    process: Popen[bytes] | None = None
    try:
        with interrupts_later():
            process = Popen(["/bin/sh", "-c", command], stdin=PIPE, start_new_session=True)  # noqa: S603, the caller's own command
        process.communicate(body)
    except BaseException:
        if process is not None:
            _end(process)
        raise
    if process.returncode:
        raise CommandError(f"the command ended with code {process.returncode}", Exit.LATER)


def _end(process: Popen[bytes]) -> None:
    """End the process group of a command: with SIGTERM, and after `END_S` with SIGKILL."""
    deadline = monotonic() + END_S
    with suppress(ProcessLookupError):  # none of the group is left
        os.killpg(process.pid, signal.SIGTERM)
        try:
            while monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                pause(0.02)
        finally:  # a second Ctrl-C does not wait
            os.killpg(process.pid, signal.SIGKILL)


def _post(url: str, body: bytes) -> None:
    """Post to a webhook. An error names its host only: the path is often a secret."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = parts._replace(scheme="", netloc="", fragment="").geturl()
    try:
        with closing(kind(parts.netloc, timeout=ANSWER_S)) as connection:
            connection.request("POST", path or "/", body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
    except (OSError, HTTPException) as e:
        raise CommandError(f"no answer of {parts.netloc}: {e}", Exit.LATER) from e
    if not 200 <= status < 300:
        code = Exit.LATER if status >= 500 or status == 429 else Exit.USAGE
        raise CommandError(f"{parts.netloc} answers {status}", code)


def _position_in(text: str | None, path: str | None, store_id: str, kv: Keys) -> int | None:
    """Return the time of the commit in a file, None without one; raise unless the store has it."""
    if text is None:
        return None
    if (found := _POSITION.fullmatch(text)) is None:
        raise InvalidFileError(f"{path} is not the state of a watch: delete it, or give another")
    if found[1] != store_id or kv.reader.timeline.at(int(found[2])).mark.timestamp != int(found[2]):
        raise StoreRecreatedError(f"{path} is of a commit that the store lacks: give another file")
    return int(found[2])


@contextmanager
def kept_in(path: FilePath | None) -> Iterator[str | None]:
    """Yield the position that a watch has kept in a file, None without a file.

    Until the end the watch has the lock of `FILE.lock`, which stays: the file itself is replaced.
    """
    if path is None:
        yield None
        return
    with typed_errors(os.fspath(path)):
        descriptor = open_made(f"{os.path.realpath(path)}.lock", FILE_MODE)
    with open(descriptor, "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            message = f"another watch keeps its position in {path}: end it, or give another file"
            raise CommandError(message, Exit.LATER) from e
        text = None
        if os.path.exists(path):
            with readable(path) as file:
                text = file.read(_KEPT_BYTES_MAX).decode(errors="replace")
        yield text


def keep_in(path: FilePath | None, position: str) -> None:
    """Replace a position in a file, if there is one, durably and as a whole."""
    if path is not None:
        with written(path) as file:
            file.write(position.encode())
