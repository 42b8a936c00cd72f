"""Values and differences as lines of styled parts, for templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from snapkv.errors import InvalidOptionError
from snapkv.model import Version
from snapkv.rendering import (
    Blame,
    Decoded,
    Decoder,
    Line,
    Redaction,
    blame,
    compare,
    decode,
    plain,
    preview,
)
from snapkv.rendering.decoded import ENCRYPTED
from snapkv.rendering.encryption import encrypted
from snapkv.rendering.ignored_paths import IgnoredPaths
from snapkv.rendering.kubernetes import STARTS
from snapkv.rendering.paths import AUTO
from snapkv.rendering.text_lines import View
from snapkv.ui.key_differences import Row

WAYS: tuple[View, ...] = get_args(View)
LINES_MAX = 500
VALUE_LINES_MAX = 5_000
SIDES_COLUMNS = 160
PREVIEW_CHARS = 90
CHANGED_LINES_MAX = 3
"""The most lines of a difference that a list of versions has of one."""
DECODED_BYTES_MAX = 2 << 20
"""The size of the largest value that is decoded for a page."""
BLAMED_BYTES_MAX = 256 << 10
"""The largest value that a page shows blame of, in bytes."""
MARKS = {"added": "add", "removed": "del", "meta": "hunk"}


@dataclass(frozen=True, slots=True)
class Shown:
    """A value or a difference: lines, and a remark about it."""

    lines: list[Line] = field(default_factory=list)
    remark: str = ""
    sides: bool = False

    def mark(self, line: Line) -> str:
        """Return the class of a line: add, del, hunk or none."""
        return MARKS.get(line[0].style, "") if line and not self.sides else ""


@dataclass(frozen=True, slots=True)
class Rendering:
    """How values are read: a kind or a decoder instead of finding it out, and ignored paths."""

    kind: str | None = None
    decoder: Decoder | None = None
    ignore: Sequence[str] = (AUTO,)
    share: int = 1
    """What limits of lines are divided by, as in `State.share`."""

    def value(self, data: bytes) -> Shown:
        """Return a whole value."""
        if len(data) > DECODED_BYTES_MAX:
            return Shown(remark=f"{len(data):,} bytes are too many for this page: download it")
        found = self._decoded(data)
        lines = found.lines(lines_max=max(1, VALUE_LINES_MAX // self.share))
        return Shown(lines, f"{found.kind}, {len(data):,} bytes")

    def row(self, row: Row, way: View) -> Shown:
        """Return what differs between the two values of a row."""
        if row.hidden:
            return Shown(remark="The values of this key are redacted.")
        if not row.has_values or max(row.before_size or 0, row.after_size or 0) > DECODED_BYTES_MAX:
            return Shown(remark="The values are too large for this page.")
        before, after = (
            None if value is None else self._decoded(value) for value in (row.before, row.after)
        )
        found = compare(before, after, ignore=self.ignore)
        most = max(1, LINES_MAX // self.share)
        lines = found.lines(way, width=SIDES_COLUMNS, lines_max=most)
        return Shown(lines, "" if lines else found.summary, way == "side-by-side")

    def blamed(self, versions: Sequence[Version]) -> list[Blame]:
        """Return what each path or line of the newest version owes to which version.

        Nothing of values that are too large for a page; one that is not of the kind says it by
        itself.
        """
        if any(len(each.value or b"") > BLAMED_BYTES_MAX for each in versions[:1]):
            return []
        try:
            found = blame(reversed(versions), self.kind, self.decoder, ignore=self.ignore)
        except InvalidOptionError:
            found = blame(reversed(versions), ignore=self.ignore)
        return [each for each in found if not each.is_ignored]

    def ignored_paths(self, redaction: Redaction) -> IgnoredPaths | None:
        """Return what decides which changes are left out; None if all are shown."""
        read = decode if self.kind is None and self.decoder is None else self._decoded
        return IgnoredPaths(self.ignore, read, redaction) if self.ignore else None

    def _decoded(self, data: bytes) -> Decoded:
        """Return what a value says; one that is not of the wanted kind says it by itself."""
        try:
            return decode(data, self.kind, self.decoder)
        except InvalidOptionError:
            return decode(data)

    def changed(self, before: bytes | None, after: bytes) -> str:
        """Return what differs from the value before on one line, or the whole value's beginning."""
        if before is None or max(len(before), len(after)) > DECODED_BYTES_MAX:
            return self.preview(after)
        found = compare(self._decoded(before), self._decoded(after), ignore=self.ignore)
        if found.unit != "path":
            return plain(found.brief(PREVIEW_CHARS))
        lines = found.lines("auto", lines_max=CHANGED_LINES_MAX)
        return ", ".join(plain(line).strip() for line in lines) or found.summary

    def preview(self, data: bytes) -> str:
        """Return the beginning of a value on one line; of Kubernetes' objects kind and name."""
        if not data.startswith(STARTS):
            return preview(data, PREVIEW_CHARS)
        found = self._decoded(data)
        if found.kind == ENCRYPTED:  # of a large value, `data` is a part
            return f"encrypted {encrypted(data).by}"
        return found.preview(PREVIEW_CHARS)


def fragment(data: bytes) -> str:
    """Return a part of a value as text."""
    return data.decode(errors="backslashreplace")
