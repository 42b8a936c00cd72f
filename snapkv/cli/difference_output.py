"""Values and differences as commands show them, and the options for that."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from shutil import get_terminal_size, which
from typing import Annotated

from snapkv.base.text import PREVIEW_CHARS_MAX
from snapkv.base.waiting import monotonic
from snapkv.cli.command_output import Output
from snapkv.cli.commands import option
from snapkv.cli.exits import CommandError
from snapkv.cli.formats import (
    Json,
    counted,
    difference_json,
    json_line,
    key_json,
    tree_json,
    value_json,
)
from snapkv.cli.store_options import grouped
from snapkv.cli.terminal import Part, report, report_warning, write_line
from snapkv.errors import InvalidOptionError
from snapkv.model import Commit, Difference, Version
from snapkv.reading.view import KeyspaceReads
from snapkv.rendering import (
    KINDS,
    Decoded,
    Decoder,
    PathChange,
    Redaction,
    ValueDifference,
    command_decoder,
    compare,
    decode,
    decoders,
    key_text,
    path_text,
    plain,
    preview,
    shortened,
)
from snapkv.rendering.audit_log import AuditEvent, AuditLog, Who
from snapkv.rendering.decoder import COMMAND_S_MAX
from snapkv.rendering.ignored_paths import IgnoredPaths, effective, left_out
from snapkv.rendering.kubernetes import STARTS
from snapkv.rendering.kubernetes_names import KeyNames
from snapkv.rendering.managed_fields import writers_of
from snapkv.rendering.text_lines import LINES_MAX, Line, View
from snapkv.rendering.value_difference import UNSHOWN
from snapkv.rendering.value_tree import compact
from snapkv.times import physical_ms

REDACT_VARIABLE = "SNAPKV_REDACT"


@dataclass(frozen=True, slots=True)
class RenderingOptions:
    """The options of values and differences, in the order in which the help lists them."""

    stat: Annotated[bool, option("--stat", "Only count what differs in each key.")] = False
    name_only: Annotated[bool, option("--name-only", "Only print the keys, unsigned.")] = False
    unified: Annotated[
        int | None, option("--unified -U N", "Print N equal lines around each change.", min=0)
    ] = None
    full: Annotated[bool, option("--full", "Print all lines of the values that differ.")] = False
    side_by_side: Annotated[
        bool, option("--side-by-side", "Print before and after beside each other.")
    ] = False
    word: Annotated[bool, option("--word", "Mark the words that differ.")] = False
    ignore: Annotated[
        list[str] | None,
        option(
            "--ignore PATH",
            "A path that does not count, such as metadata.labels; kubernetes is a preset, and the "
            "default for objects of Kubernetes: none turns that off.",
        ),
    ] = None
    redact: Annotated[
        list[str] | None,
        option(
            "--redact PREFIX",
            "Print no values of keys that begin so, nor of those that the environment's "
            f"{REDACT_VARIABLE} lists.",
        ),
    ] = None
    kind: Annotated[
        str | None,
        option(
            "--as KIND",
            f"Read values as {', '.join(KINDS)}, or by an installed decoder.",
            autocompletion=lambda: list(KINDS),
        ),
    ] = None
    decoder: Annotated[
        str | None, option("--decoder COMMAND", "Read values by a command, such as 'auger decode'.")
    ] = None

    def __post_init__(self) -> None:
        names = ("stat", "name_only", "full", "side_by_side", "word")
        if len(chosen := [name for name in names if getattr(self, name)]) > 1:
            raise _exclude([f"--{name.replace('_', '-')}" for name in chosen])
        if self.full and self.unified is not None:
            raise _exclude(["--full", "--unified"])
        if self.kind is not None and self.decoder is not None:
            raise _exclude(["--as", "--decoder"])

    @property
    def redacted(self) -> tuple[str, ...]:
        """Prefixes of keys whose values are not shown; an option never uncovers the variable's."""
        return (*os.environ.get(REDACT_VARIABLE, "").split(), *(self.redact or ()))

    @property
    def asked(self) -> bool:
        """Whether an option says how differences are shown."""
        return self.stat or self.name_only or self.view != "auto"

    @property
    def view(self) -> View:
        """The view of `snapkv.rendering`."""
        if self.side_by_side or self.word or self.full:
            return "side-by-side" if self.side_by_side else "words" if self.word else "full"
        return "auto" if self.unified is None else "unified"

    @property
    def shapes(self) -> bool:
        """Whether an option says how differences are found or laid out, or values are read."""
        return self.decodes or bool(self.ignore) or self.view != "auto"

    @property
    def decodes(self) -> bool:
        """Whether an option says how values are read."""
        return self.kind is not None or self.decoder is not None


def _exclude(options: list[str]) -> CommandError:
    return CommandError(f"{' and '.join(options)} exclude each other: give one of them")


def renders(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that adds the options `names` of `RenderingOptions`; without names, all.

    The command gets them as its argument `rendering`.
    """
    return grouped(RenderingOptions, "rendering", set(names) or None)


CONTEXT_LINES = 3
SUMMARY_LINES_MAX = 20
"""The most differences that are shown before a question."""
FULL_LINES_MAX = 1_000_000
"""The most lines of one key that --full shows."""
DECODED_BYTES_MAX = 1 << 16
"""The size of the largest value that is decoded for one line. The line of a larger value shows the
text that differs."""
WIDTH_MIN, WIDTH = 20, 120
"""Columns of a view side by side: at least, and where the output is not a terminal."""

STYLES = {
    "added": "green",
    "removed": "red",
    "changed": "yellow",
    "path": "bold",
    "meta": "dim",
    "word-added": "bold green",
    "word-removed": "bold red",
}
"""The styles of a terminal for the styles of `snapkv.rendering`."""
SIGNS = {"added": "+", "removed": "-", "changed": "~"}


class Renderer:
    """Shows values and differences as a `RenderingOptions` says, and counts what it has shown.

    `brief` shows each difference on one line, `whole` does not ignore any path. Raises
    `CommandError` for a kind or a decoder that does not exist, and `InvalidOptionError` for an
    ignored path that cannot be read.
    """

    def __init__(
        self,
        rendering: RenderingOptions,
        *,
        brief: bool = False,
        whole: bool = False,
        audit: AuditLog | None = None,
    ) -> None:
        self._audit = audit
        self.rendering, self._brief = rendering, brief and not rendering.asked
        self.counts, self._view = dict.fromkeys(SIGNS, 0), rendering.view
        self.ignored = self.commits_ignored = 0
        self._redaction, self.names = Redaction(rendering.redacted), KeyNames()
        self.ignore = () if whole else effective(rendering.ignore)
        read = partial(self._read, whys=[]) if rendering.decodes else decode
        self.ignored_paths = IgnoredPaths(self.ignore, read, self._redaction)
        if rendering.kind is not None and rendering.kind not in (*KINDS, *decoders()):
            known = ", ".join([*KINDS, *decoders()])
            raise CommandError(f"--as takes {known}, not {rendering.kind!r}: choose one")
        self._decodes, self._stopped = rendering.decodes, list[Decoder]()
        self.read_decoder: Decoder | None = None
        if rendering.decoder is not None:
            self.read_decoder = command_decoder(rendering.decoder)
            if which(program := shlex.split(rendering.decoder)[0]) is None:
                why = "was not found: install it"
                if os.path.exists(program) and "/" in program:
                    why = "is not a file that can be executed: correct it"
                raise CommandError(f"--decoder: the program {program!r} {why}")

    def name_keys(self, kv: KeyspaceReads[str], *, raw: bool = False) -> KeyNames:
        """Take names of keys that an API server wrote, for --redact, too; show them unless `raw`.

        One round trip, once for each store.
        """
        names = KeyNames.of(kv.reader.foreign_prefix(kv.keyspace))
        self._redaction.prefixes += tuple(map(names.key, self.rendering.redacted))
        self.names = KeyNames() if raw else names
        return names

    def shown_key(self, key: str) -> str:
        """Return a key as people read it: its name, if it has one."""
        return key_text(key if self.names.root is None else self.names.name(key))

    def from_zero(self) -> Renderer:
        """Return one that counts from zero, with the same decoder."""
        other = copy(self)
        other.counts, other.ignored, other.commits_ignored = dict.fromkeys(SIGNS, 0), 0, 0
        return other

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of a table of differences."""
        if self.rendering.name_only:
            return ("KEY",)
        if self.rendering.stat:
            return ("", "KEY", "ADDED", "REMOVED", "CHANGED", "UNIT")
        return ("", "KEY", "CHANGE")

    # --- values ---

    def decoded(self, value: bytes) -> Decoded:
        """Return what a value says. Raises `InvalidOptionError` if it is not of the kind."""
        return decode(value, self.rendering.kind, self.read_decoder)

    def value_json(self, key: str, value: bytes | None) -> object:
        """Return a value for JSON; of a redacted one only its size."""
        if value is not None and self._redaction.covers(key):
            return {"redacted": len(value)}
        return value_json(value)

    def preview(self, key: str, value: bytes) -> str:
        """Return a value on one line."""
        if self._redaction.covers(key):
            return self._redaction.preview(value)
        if self.rendering.decodes or value.startswith(STARTS):
            return self._read(value, []).preview()
        return preview(value)

    def changed_preview(self, key: str, before: bytes | None, after: bytes) -> str:
        """Return a value on one line; of a long one what differs from the value before it."""
        if before is None or len(after) <= PREVIEW_CHARS_MAX or self._redaction.covers(key):
            return self.preview(key, after)
        is_encrypted = after.startswith(STARTS[1])
        if max(len(before), len(after)) > DECODED_BYTES_MAX and not is_encrypted:
            return shortened(before, after)[1]
        difference, _ = self._compared(key, before, after)
        if difference and (difference.unit == "path" or is_encrypted):
            return plain(_brief(difference))
        return shortened(before, after)[1] if difference else self.preview(key, after)

    def ignores(self, key: str, before: bytes | None, after: bytes | None) -> bool:
        """Return whether only ignored paths differ between two values, and count it."""
        paths = self.ignored_paths
        if after is None or not (paths.may_ignore(after) and paths.shows(key)):
            return False
        ignored = paths.ignores(before, after)
        self.ignored += ignored
        return ignored

    def who(
        self,
        of: Commit | Version,
        key: str | None = None,
        before: bytes | None = None,
        after: bytes | None = None,
        *,
        removed: bool = False,
    ) -> Who:
        """Return who wrote a commit, or a version: of Kubernetes by managers and the audit log.

        `key` is the only one that it changed, from a value to another one.
        """
        managers = writers_of(before, after)
        return Who(of.writer, managers, self.audited(of, key, removed=removed))

    def audited(
        self, of: Commit | Version, key: str | None, *, removed: bool = False
    ) -> AuditEvent | None:
        """Return the event of the audit log that made a commit, or a version."""
        log, at_ms = self._audit, None if of.ts is None else physical_ms(of.ts)
        return None if log is None else log.made(of, key, at_ms, removed=removed)

    def covers(self, key: str) -> bool:
        """Return whether the values of a key are not shown."""
        return self._redaction.covers(key)

    def _read(self, value: bytes, whys: list[str]) -> Decoded:
        """Return what a value says; of another kind by itself, and why; without a late decoder."""
        if self._stopped or not self._decodes:
            return decode(value)
        began = monotonic()
        try:
            return self.decoded(value)
        except InvalidOptionError as e:
            if self.read_decoder is None or monotonic() - began < COMMAND_S_MAX:
                whys.append(str(e))
            else:
                self._stopped.append(self.read_decoder)
                report_warning(f"{e}; values are shown without it")
            return decode(value)

    def _compared(
        self, key: str, before: bytes | None, after: bytes | None
    ) -> tuple[ValueDifference, str | None]:
        if self._redaction.covers(key):
            return self._redaction.difference(before, after), None
        whys = list[str]()
        read = partial(self._read, whys=whys) if self._decodes else decode
        left = None if before is None else read(before)
        right = None if after is None else read(after)
        return compare(left, right, ignore=self.ignore), whys[0] if whys else None

    # --- differences ---

    def write(
        self,
        out: Output,
        differences: Iterable[Difference[str]],
        *in_front: Part | None,
        indent: str = "",
    ) -> None:
        """Write differences; in a table after columns `in_front`, else each line after `indent`."""
        structured = out.structured
        for difference, change, compared, why in self._shown(differences):
            if structured:
                out.record(self._fields(difference, change, compared))
            elif out.format == "table":
                out.record({}, *in_front, *self._columns(difference.key, change, compared))
            else:
                lines = self._lines(difference.key, change, compared, why, len(indent))
                for line in lines:
                    line.insert(0, indent)
                lines[0][0] = indent or (out.member and f"{out.member.ljust(out.width)}  ")
                out.record({}, lines=lines)

    def fields(self, differences: Iterable[Difference[str]]) -> Iterator[Json]:
        """Yield differences for programs."""
        for difference, change, compared, _ in self._shown(differences):
            yield self._fields(difference, change, compared)

    def _shown(
        self, differences: Iterable[Difference[str]]
    ) -> Iterator[tuple[Difference[str], str, ValueDifference, str | None]]:
        """Count differences, and yield them compared, without differences of ignored paths only."""
        for difference in differences:
            compared, why = self._compared(difference.key, difference.before, difference.after)
            if compared.state == "ignored":
                self.ignored += 1
                continue
            change = "added" if difference.before is None else "changed"
            if difference.after is None:
                change = "removed"
            self.counts[change] += 1
            yield difference, change, compared, why

    def _fields(self, difference: Difference[str], change: str, compared: ValueDifference) -> Json:
        key = difference.key
        if self.rendering.name_only:
            return {"key": key_json(key)}
        if self.rendering.stat:
            return {"key": key_json(key), "change": change, **compared.stat._asdict()}
        if not self._redaction.covers(key):
            details = _details(compared) if self.rendering.shapes else {}
            return {**difference_json(difference), **details}
        sides = {"before": difference.before, "after": difference.after}
        shown = {name: self.value_json(key, side) for name, side in sides.items()}
        return {"key": key_json(key), **shown}

    def _columns(self, key: str, change: str, compared: ValueDifference) -> tuple[Part | None, ...]:
        sign, name = (SIGNS[change], STYLES[change]), (self.shown_key(key), STYLES[change])
        if self.rendering.name_only:
            return (self.shown_key(key),)
        if self.rendering.stat:
            *numbers, unit = compared.stat
            return (sign, name, *map(str, numbers), f"{unit}s")
        return sign, name, _one_line(compared)

    def _lines(
        self, key: str, change: str, compared: ValueDifference, why: str | None, indent: int
    ) -> list[list[Part]]:
        rendering, style = self.rendering, STYLES[change]
        if rendering.name_only:
            return [[self.shown_key(key)]]
        head = f"{SIGNS[change]} {self.shown_key(key)}"
        note: list[list[Part]] = [[(f"  ({why})", "dim")]] if why and not self._brief else []
        if rendering.stat:
            return [[(head, style), f"  {compared.stat}"], *note]
        unshown = compared.state in UNSHOWN
        if change != "changed" and (self._brief or unshown or self._view == "auto"):
            return [[(f"{head}  {_one_line(compared)}", style)], *note]
        if self._brief or unshown or self._is_short(compared):
            return [[(head, style), "  ", *_parts(_brief(compared))], *note]
        lines = compared.lines(
            self._view,
            context=CONTEXT_LINES if rendering.unified is None else rendering.unified,
            width=max(WIDTH_MIN, get_terminal_size((WIDTH, 24)).columns - indent - 2),
            lines_max=FULL_LINES_MAX if rendering.full else LINES_MAX,
        )
        return [[(head, style)], *note, *(["  ", *_parts(line)] for line in lines)]

    def _is_short(self, compared: ValueDifference) -> bool:
        """Return whether both values fit on the line of their key."""
        if self._view != "auto" or compared.unit == "path":
            return False
        for side in (compared.before, compared.after):
            if side and (len(side.value) > PREVIEW_CHARS_MAX or b"\n" in side.value):
                return False
        return True

    @property
    def summary(self) -> str:
        """What was shown, in one phrase: `3 keys: 1 added, 0 removed, 2 changed`."""
        counts = ", ".join(f"{count:,} {change}" for change, count in self.counts.items())
        return f"{counted(sum(self.counts.values()), 'key')}: {counts}"

    def finish(self, out: Output, indent: str = "") -> None:
        """Write the sums of --stat below the lines."""
        if self.rendering.stat and out.format == "text" and any(self.counts.values()):
            out.record({}, lines=[[indent, self.summary]])

    def report(self, differences: list[Difference[str]]) -> None:
        """Show what is about to change, the first lines of it, on the error stream."""
        for difference, change, compared, why in self._shown(differences[:SUMMARY_LINES_MAX]):
            for line in self._lines(difference.key, change, compared, why, 0):
                write_line(line, error=True)
        if (more := len(differences) - SUMMARY_LINES_MAX) > 0:
            report(f"... and {more:,} more")

    def report_ignored(self, noun: str = "key") -> None:
        """Say on the error stream how many differences, and commits, were left out."""
        if self.commits_ignored:
            report(f"snapkv: {left_out(self.commits_ignored, 'commit')}")
        if self.ignored:
            report(f"snapkv: {left_out(self.ignored, noun)}")


def _details(compared: ValueDifference) -> Json:
    """Return what differs, read as the options say: the paths, or else the lines, for JSON."""
    if compared.unit != "path":
        return {"lines": [plain(line) for line in compared.lines()]}
    return {"paths": [_path_json(each) for each in compared.changes]}


def _path_json(change: PathChange) -> Json:
    """Return a path that differs for JSON; as text, values of which JSON would have the same."""
    before, after = tree_json(change.before), tree_json(change.after)
    if change.kind == "changed" and json_line({"": before}) == json_line({"": after}):
        before, after = compact(change.before), compact(change.after)
    path = path_text(change.path)
    return {"path": path, "kind": change.kind, "before": before, "after": after}


def _one_line(compared: ValueDifference) -> str:
    before, after = compared.before, compared.after
    alone = (before or after) if before is None or after is None else None
    return plain(_brief(compared)) if alone is None else alone.preview()


def _brief(compared: ValueDifference) -> Line:
    """Return a difference on one line, without the sign of a changed path: the key has it."""
    line = compared.brief()
    return line[1:] if line[0].text == "~ " else line


def _parts(line: Line) -> list[Part]:
    return [(part.text, STYLES[part.style]) if part.style in STYLES else part.text for part in line]
