"""What a value says: its kind, its data, and a text for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from snapkv.rendering.text import escaped
from snapkv.rendering.tree import Tree, json_text

KINDS = ("json", "yaml", "text", "msgpack", "kubernetes", "hex")
"""The kinds that `decode` finds by itself; the name of a decoder is one, too."""

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

    @cached_property
    def text(self) -> str:
        """Return the value to read: a text as it is, indented JSON or YAML, or a dump in hex.

        It is made when it is first asked for. A text may contain control characters: show
        `lines()` to a person instead.
        """
        if self.form == "text":
            return str(self.data)
        if self.form == "bytes":
            return "\n".join(hex_rows(self.data))
        stored = stored_text(self.value) if self.kind == "yaml" else None
        return tree_text(self.data, self.kind) if stored is None else stored


def tree_text(tree: Tree, kind: str) -> str:
    """Return a tree in the format in which values of its kind are read: JSON or YAML."""
    if kind in ("json", "msgpack"):
        return json_text(tree)
    from snapkv.rendering import yaml_text

    return yaml_text.dump(tree).removesuffix("\n")


def stored_text(value: bytes) -> str | None:
    """Return a value as text, None if it is not valid UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


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


def shown_rows(text: str) -> list[str]:
    """Return the lines of a text, each with every character visible."""
    return [escaped(line, keep="\t") for line in text.removesuffix("\n").split("\n")]
