"""The commands that write: put, rm, restore, revert; and resolve, for their unknown outcomes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Annotated, Any

from snapkv.base.files import readable
from snapkv.base.text import LongerNames
from snapkv.cli.commands import argument, option
from snapkv.cli.difference_output import Renderer, RenderingOptions, renders
from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.formats import commit_json, counted, time_text
from snapkv.cli.moments import moment, settled
from snapkv.cli.named_keys import conflict_explained, explained, prefixes_in
from snapkv.cli.store_options import PrefixesOption, StoreOptions, YesOption, takes
from snapkv.cli.terminal import (
    confirm_found,
    report,
    report_longer_names,
    standard_input,
)
from snapkv.errors import InvalidTimeError, RevertConflictError
from snapkv.model import Absent, AtRevision, Commit, Difference, Guard
from snapkv.store.restore import ChosenKeys, planned
from snapkv.store.store import SnapshotKV

STDIN = "-"

DryRunOption = Annotated[bool, option("--dry-run", "Print what would change, and change nothing.")]
NOTHING = {
    "restore": "the present equals that moment",
    "revert": "the keys have the values from before",
}
IfRevision = Annotated[
    int | None, option("--if-revision N", "Only if the key was last written there.")
]


@takes("note", "meta", "writer", "force_fork", "raw")
def put(
    options: StoreOptions,
    words: Annotated[list[str], argument("KEY VALUE")],
    if_absent: Annotated[bool, option("--if-absent", "Only if no such key exists.")] = False,
    if_revision: IfRevision = None,
) -> None:
    """Save keys in one commit, and print its time.

    The value @FILE is read from that file, and - from the standard input, exactly: a secret given
    that way is not seen in the list of processes and in the history of the shell. Creates the store
    if it does not exist.
    """
    puts, meta = _pairs(words), options.facts
    guards: list[Guard] = [Absent(key) for key in puts] if if_absent else []
    guards += _at_revision(list(puts), if_revision)
    with options.open_store(create=True) as kv, conflict_explained(kv):
        commit = kv.commit(puts=puts, guards=guards, note=options.note, meta=meta)
    options.output.committed(commit)


def _pairs(words: list[str]) -> dict[str, bytes]:
    if len(words) % 2:
        raise CommandError(f"put takes a value after each key; {words[-1]!r} has none")
    keys, values = words[::2], words[1::2]
    if len(set(keys)) < len(keys):
        raise CommandError("put takes each key once")
    if values.count(STDIN) > 1:
        raise CommandError("only one value can come from the standard input")
    return {key: _value(word) for key, word in zip(keys, values, strict=True)}


def _value(word: str) -> bytes:
    if word == STDIN:
        return standard_input("the value -", "give the value, or @FILE").read()
    if word.startswith("@"):
        with readable(word[1:]) as file:
            return file.read()
    return os.fsencode(word)


def _at_revision(keys: list[str], revision: int | None) -> list[Guard]:
    if revision is None:
        return []
    if len(keys) != 1:
        raise CommandError("--if-revision goes with one key")
    return [AtRevision(keys[0], revision)]


@takes("note", "meta", "writer", "force_fork", "raw")
def rm(
    options: StoreOptions,
    keys: Annotated[list[str] | None, argument("KEY")] = None,
    prefix: PrefixesOption = None,
    force: Annotated[bool, option("--force -f", "Ignore keys that do not exist.")] = False,
    if_revision: IfRevision = None,
    yes: YesOption = False,
) -> None:
    """Remove keys in one commit, and print its time.

    With --prefix it asks. When one of the keys or prefixes has no key, nothing is removed.
    """
    keys = keys or []
    if bool(keys) == bool(prefix):
        raise CommandError("rm takes either keys or --prefix")
    guards, meta, note = _at_revision(keys, if_revision), options.facts, options.note
    with options.open_store(asks=True) as kv, conflict_explained(kv), explained(kv):
        prefixes = prefixes_in(prefix) if prefix else ()
        if not force:
            head = kv.at()
            first = chain.from_iterable(head.keys(each, limit=1) for each in prefixes)
            there = [*filter(head.__contains__, keys), *first]
            ChosenKeys(keys, list(prefixes)).check_found(there)
        if prefix:
            _confirm_removal(kv, prefixes, yes=yes)
        commit = kv.commit(
            deletes=keys, delete_prefixes=prefixes, guards=guards, note=note, meta=meta
        )
    options.output.committed(commit)


def _confirm_removal(kv: SnapshotKV, prefixes: tuple[str, ...], *, yes: bool) -> None:
    def look() -> list[str]:
        head = kv.at()
        return [key for prefix in prefixes for key in head.keys(prefix)]

    def question(keys: list[str]) -> str:
        _report_longer_names(prefixes, keys)
        return f"Remove {counted(len(keys), 'key')} under {' and '.join(map(repr, prefixes))}?"

    if yes:
        question(look())
    else:
        confirm_found(look(), look, question, yes=False)


@takes("note", "meta", "writer", "force_fork", "raw", "archive")
@renders("redact", "kind", "decoder")
def restore(
    options: StoreOptions,
    rendering: RenderingOptions,
    when: Annotated[str, argument("TIME")],
    keys: Annotated[list[str] | None, argument("KEY", "Only these keys.")] = None,
    prefix: PrefixesOption = None,
    dry_run: DryRunOption = False,
    before_first: Annotated[
        bool, option("--before-first", "A TIME before the first commit is meant.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Make the present equal a past moment, in one commit, and print its time.

    Shows what will change, and asks.
    """
    target, chosen = moment(when), ChosenKeys.of(keys or (), prefix or ())
    with options.open_store(asks=not dry_run) as kv, explained(kv):
        target = settled(kv, target)
        target = kv.resolved() if target is None else target

        def look() -> list[Difference[str]]:
            try:
                return planned(kv, target, chosen, before_first=before_first).changes
            except InvalidTimeError as e:
                raise CommandError(str(e).replace("before_first=True", "--before-first")) from e

        what, said = f"restore {time_text(kv.timestamp_of(target))}", options.said
        put = partial(kv.restore, target, **chosen._asdict(), before_first=before_first, **said)
        _put_back(options, rendering, what, chosen, look, put, dry_run=dry_run, yes=yes)


@takes("note", "meta", "writer", "force_fork", "raw", "archive")
@renders("redact", "kind", "decoder")
def revert(
    options: StoreOptions,
    rendering: RenderingOptions,
    commits: Annotated[list[str], argument("COMMIT", "Its time, rev:N or rv:N.")],
    key: Annotated[list[str] | None, option("--key KEY", "Only this key; repeatable.")] = None,
    prefix: PrefixesOption = None,
    theirs: Annotated[bool, option("--theirs", "Leave keys that changed later as they are.")] = (
        False
    ),
    force: Annotated[bool, option("--force -f", "Put them back, too.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Put back what commits changed, and only that, in one commit, and print its time.

    Shows what will change, and asks. A key that changed again later is a conflict (code 3).
    """
    chosen = ChosenKeys.of(key or (), prefix or ())
    typed = [moment(each) for each in commits]
    with options.open_store(asks=not dry_run) as kv:
        whens = [settled(kv, each) or kv.resolved() for each in typed]
        what = f"revert {', '.join(time_text(kv.timestamp_of(each)) for each in whens)}"
        change = partial(kv.revert, *whens, **chosen._asdict(), theirs=theirs, force=force)
        if conflicts := change(dry_run=True).conflicts:
            error = RevertConflictError(conflicts)
            if not (theirs or force):
                raise error
            done = "left as they are" if theirs else "put back, too"
            report(f"snapkv: changed again later, {done}: {error.named}")

        def look() -> list[Difference[str]]:
            return list(change(dry_run=True).changes)

        def put() -> Commit | None:
            return change(**options.said).commit

        _put_back(options, rendering, what, chosen, look, put, dry_run=dry_run, yes=yes)


def _put_back(
    options: StoreOptions,
    rendering: RenderingOptions,
    what: str,
    chosen: ChosenKeys,
    look: Callable[[], list[Difference[str]]],
    put: Callable[[], Commit | None],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Show what would change, ask, commit, and print the commit's time; or only show it."""
    out, renderer = options.output, Renderer(rendering, brief=True, whole=True)
    verb, _, times = what.partition(" ")
    changes, made = look(), None

    def question(changes: list[Difference[str]]) -> str:
        _report_longer_names(chosen.prefixes, [each.key for each in changes])
        renderer.report(changes)
        return f"{verb.title()} {times}: {_counts(changes)}?"

    if dry_run:
        _report_longer_names(chosen.prefixes, [each.key for each in changes])
        if out.structured:
            out.record({**_counts_json(changes), "changes": list(renderer.fields(changes))})
            return
        with out.headed(*renderer.headings):
            renderer.write(out, changes)
        done = _counts(changes) if changes else f"nothing: {NOTHING[verb]}"
        report(f"{verb.removesuffix('e')}ing {times} would change this: {done}")
        return
    if changes:
        confirm_found(changes, look, question, yes=yes)
        made = put()
    fields = {**_counts_json(changes), "commit": None if made is None else commit_json(made)}
    if made is not None:
        out.record(fields, out.time(made.ts))
        return
    report(f"nothing to {verb}: {NOTHING[verb]}")
    if out.structured:
        out.record(fields)


def _report_longer_names(prefixes: Iterable[str], keys: list[str]) -> None:
    for prefix in prefixes:
        report_longer_names(LongerNames(prefix, (k for k in keys if k.startswith(prefix))))


def _counts_json(changes: list[Difference[str]]) -> dict[str, Any]:
    removed = sum(change.after is None for change in changes)
    added = sum(change.before is None for change in changes)
    keys = len(changes)
    return {"keys": keys, "removed": removed, "added": added, "changed": keys - removed - added}


def _counts(changes: list[Difference[str]]) -> str:
    """Return what changes do, in words: `remove 2 keys, add 1 key, change 0 keys`."""
    counts = _counts_json(changes)
    verbs = {"remove": "removed", "add": "added", "change": "changed"}
    return ", ".join(f"{verb} {counted(counts[past], 'key')}" for verb, past in verbs.items())


@takes("raw")
def resolve(
    options: StoreOptions,
    timestamp: Annotated[int, argument("TIMESTAMP")],
    nonce: Annotated[str, argument("NONCE")],
) -> None:
    """Resolve a commit of unknown outcome, and print its time if it happened.

    The error with exit code 6 names both arguments. A commit that did not happen never will; that
    ends with code 1.
    """
    out = options.output
    with options.open_store() as kv:
        try:
            named = bytes.fromhex(nonce)
        except ValueError:
            why = "is not a nonce (the error shows it in hexadecimal)"
            raise CommandError(f"{nonce!r} {why}") from None
        commit = kv.resolve(timestamp, named)
    if commit is not None:
        out.committed(commit)
        return
    if options.structured:
        out.record({"commit": None})
    raise CommandError("it did not happen, and never will", Exit.NO)
