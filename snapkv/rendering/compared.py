"""Differences of two values, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from snapkv.base.text import counted, stored_text
from snapkv.rendering.decoded import Decoded, tree_text
from snapkv.rendering.paths import Patterns
from snapkv.rendering.pieces import LineEdits, Piece, byte_edits, line_edits, line_pair
from snapkv.rendering.tree import leaves
from snapkv.rendering.tree_changes import PathChange, without

State = Literal["equal", "formatting", "ignored", "changed", "added", "removed", "redacted"]
Unit = Literal["path", "line", "byte"]


class Stat(NamedTuple):
    """How much differs, counted in `unit`; a changed path counts in `changed` only."""

    added: int
    removed: int
    changed: int
    unit: Unit

    def __str__(self) -> str:
        counts = f"+{self.added:,} -{self.removed:,}"
        return (
            f"{counts} ~{self.changed:,} {self.unit}s" if self.changed else f"{counts} {self.unit}s"
        )


@dataclass(frozen=True, eq=False)
class Compared:
    """What two values differ in; see `ValueDifference`."""

    before: Decoded | None
    after: Decoded | None
    state: State
    unit: Unit
    changes: tuple[PathChange, ...] = ()
    ignored: int = 0
    """How many ignored paths differ."""
    _ignore: Patterns = field(default_factory=Patterns, repr=False)

    def __bool__(self) -> bool:
        return self.state != "equal"

    @cached_property
    def texts(self) -> tuple[str, str]:
        """Both sides as text, without ignored paths; an absent side is empty."""
        if self.state == "formatting":
            stored = [stored_text(each.value) for each in (self.before, self.after) if each]
            if None not in stored and stored[0] != stored[1]:
                return str(stored[0]), str(stored[1])
        return self._text(self.before), self._text(self.after)

    def _text(self, side: Decoded | None) -> str:
        if side is None:
            return ""
        if side.form == "tree" and self._ignore:
            return tree_text(without(side.data, self._ignore), side.kind) + "\n"
        return side.text.removesuffix("\n") + "\n" if side.form == "tree" else side.text

    @cached_property
    def line_edits(self) -> LineEdits:
        """The lines of `texts` that differ, as `line_pair` makes them.

        Cost: see `snapkv.rendering.alignment`.
        """
        return line_edits(*line_pair(*self.texts))

    @cached_property
    def byte_edits(self) -> tuple[Piece[bytes], ...]:
        """The stored bytes that differ."""
        sides = [b"" if each is None else each.value for each in (self.before, self.after)]
        return byte_edits(*sides)

    @cached_property
    def stat(self) -> Stat:
        """How many paths, lines or bytes are added, removed and changed."""
        if self.state in ("equal", "formatting", "ignored", "redacted"):
            return Stat(0, 0, 0, self.unit)
        if self.unit == "path":
            added = sum(leaves(each.after) for each in self.changes if each.kind == "added")
            removed = sum(leaves(each.before) for each in self.changes if each.kind == "removed")
            changed = sum(each.kind in ("changed", "moved") for each in self.changes)
            return Stat(added, removed, changed, "path")
        pieces = self.line_edits if self.unit == "line" else self.byte_edits
        added, removed = sum(len(e.after) for e in pieces), sum(len(e.before) for e in pieces)
        return Stat(added, removed, 0, self.unit)

    @property
    def _decoders(self) -> list[str]:
        sides = (self.before, self.after)
        return list(dict.fromkeys(each.kind for each in sides if each and each.is_by_decoder))

    @property
    def summary(self) -> str:
        """One phrase: what differs and how much."""
        if self.state == "formatting":
            if decoders := self._decoders:
                name, said = " and ".join(decoders), "show" if len(decoders) > 1 else "shows"
                return f"{name} {said} the same for both; the stored bytes differ"
            kinds = dict.fromkeys(each.kind for each in (self.before, self.after) if each)
            also = f" ({' -> '.join(kinds)})" if len(kinds) > 1 else ""
            return f"same data, other formatting{also}"
        if self.state == "ignored":
            return f"only ignored paths differ ({self.ignored:,})"
        if self.state == "redacted":
            return f"{_redacted(self.before)} -> {_redacted(self.after)}"
        if self.state == "equal":
            return "equal"
        also = f", {counted(self.ignored, 'ignored path')}" if self.ignored else ""
        return f"{self.stat}{also}"


def _redacted(side: Decoded | None) -> str:
    return "absent" if side is None else side.text
