"""Decoded values: a kind, data, and a text for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from snapkv.base.arguments import check_int
from snapkv.base.text import PREVIEW_CHARS_MAX, counted, escaped, preview, quoted, shortened_text
from snapkv.rendering.alignment import lines_of
from snapkv.rendering.text_lines import LINES_MAX, Line, Part, bounded, shown
from snapkv.rendering.value_tree import Tree, compact, json_text

KINDS = ("json", "yaml", "text", "msgpack", "kubernetes", "encrypted", "hex")
"""The kinds that `decode` finds by itself; the name of a decoder is one, too."""

REDACTED = "redacted"
"""The kind of a value that is not shown."""
ENCRYPTED = "encrypted"
"""The kind of a value that an API server encrypted."""
HEX_ROW_BYTES = 16

Form = Literal["tree", "text", "bytes"]


@dataclass(frozen=True, eq=False)
class Decoded:
    """A value that was decoded.

    `form` is the type of `data`: "tree" (dicts with text keys, lists, scalars), "text" (str) or
    "bytes". `value` are the stored bytes. `kind` is one of `KINDS`, or the name of a decoder.
    """

    kind: str
    data: Tree
    form: Form
    value: bytes = field(repr=False)
    _written: str | None = field(default=None, repr=False)
    is_by_decoder: bool = field(default=False, repr=False)
    """Whether a decoder made it, which may leave out parts of the value."""

    @cached_property
    def text(self) -> str:
        """The value to read: a text as it is, indented JSON or YAML, or a dump in hexadecimal.

        It is made when it is first asked for. YAML, and what a decoder printed, stay as they are
        written. It may contain control characters: show `lines()` to a person instead.
        """
        if self._written is not None:
            return self._written
        if self.form == "text":
            return str(self.data)
        if self.form == "bytes":
            return "\n".join(hex_rows(self.data))
        return tree_text(self.data, self.kind)

    def lines(self, *, lines_max: int = LINES_MAX) -> list[Line]:
        """Return the value as lines for a terminal or a page, in which every character is visible.

        After `lines_max` lines one more says how many are left out; a line shows at most 1,000
        characters of the value.
        """
        check_int("lines_max", lines_max, 1)
        rows = hex_rows(self.data) if self.form == "bytes" else lines_of(self.text)
        return bounded(((Part(shown(row), "context"),) for row in rows), lines_max)

    def preview(self, chars_max: int = PREVIEW_CHARS_MAX) -> str:
        """Return the value on one line, shortened: for Kubernetes its kind and name.

        JSON, YAML and text are shown as they are stored, msgpack as JSON, bytes in hexadecimal,
        and the rest as its decoder shows it.

        >>> from snapkv.rendering import decode
        >>> print(decode(b"v1").preview(), decode(bytes([0x81, 0xA1, 97, 1])).preview())
        "v1" {"a": 1}
        """
        if self.kind in (REDACTED, ENCRYPTED):
            return str(self.data)
        if self.is_by_decoder or self.kind in ("msgpack", "hex"):
            return self._shown_preview(chars_max)
        metadata = self.data.get("metadata") if isinstance(self.data, dict) else None
        is_object = metadata and self.data.get("kind") and self.data.get("apiVersion")
        if self.kind != "kubernetes" and not is_object:
            return preview(self.value, chars_max)
        names = metadata if isinstance(metadata, dict) else {}
        parts = [names[field] for field in ("namespace", "name") if names.get(field)]
        what = escaped(f"{self.data.get('kind', 'object')} {'/'.join(map(str, parts))}")
        return f"{shortened_text(what, chars_max)} ({counted(len(self.value), 'byte')})"

    def _shown_preview(self, chars_max: int) -> str:
        if self.form == "bytes":
            shown, whole = "0x" + self.value[: chars_max // 2].hex(), len(self.value) * 2
        elif self.form == "tree":
            text = compact(self.data)
            shown, whole = text[:chars_max], len(text)
        else:
            text = self.text.removesuffix("\n")
            shown, whole = quoted(text[:chars_max]), len(text)
        return shown if whole <= chars_max else f"{shown}... ({counted(len(self.value), 'byte')})"


def tree_text(tree: Tree, kind: str) -> str:
    """Return a tree in the format in which values of its kind are read: JSON or YAML."""
    if kind in ("json", "msgpack"):
        return json_text(tree)
    from snapkv.rendering import yaml_text

    return yaml_text.dump(tree).removesuffix("\n")


def hex_rows(value: bytes, start: int = 0) -> Iterator[str]:
    r"""Yield the rows of a dump: offset, 16 bytes in hexadecimal, and the ASCII among them.

    >>> print(*hex_rows(b"k8s\0" + bytes(14)), sep="\n")
    00000000  6b 38 73 00 00 00 00 00 00 00 00 00 00 00 00 00  |k8s.............|
    00000010  00 00                                            |..|
    """
    for at in range(0, len(value), HEX_ROW_BYTES):
        row = value[at : at + HEX_ROW_BYTES]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        yield f"{start + at:08x}  {row.hex(' '):<{HEX_ROW_BYTES * 3 - 1}}  |{shown}|"
