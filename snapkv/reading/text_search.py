"""Searches for a text: in what commits say, and in values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from snapkv.errors import InvalidOptionError
from snapkv.model import Scalar

WILDCARDS = frozenset("*?[")
TEXT_BYTES_MAX = 1_000
AROUND_BYTES = 60
"""The most bytes that are shown on each side of a text that was found."""


@dataclass(frozen=True, slots=True)
class CommitFilter:
    """Which commits are wanted: by their writer, a text in what they say, their facts; None: any.

    `text` is looked for in the note, in the writer, and in facts as `name=value`.
    """

    writer: str | None = None
    text: str | None = None
    meta: Mapping[str, Scalar] = field(default_factory=dict)
    ignore_case: bool = False

    def __bool__(self) -> bool:
        return self.writer is not None or self.text is not None or bool(self.meta)

    def __call__(self, commit: Any) -> bool:
        """Return whether a commit, or the one of a version, is wanted.

        >>> from snapkv import Commit
        >>> wanted = CommitFilter("ann*", "Undo", ignore_case=True)
        >>> wanted(Commit(1, 0, 1, "ann@laptop", "undo rm")), wanted(Commit(1, 0, 1, "bob", "undo"))
        (True, False)
        """
        facts, fold = _facts(commit.meta or {}), str.casefold if self.ignore_case else str
        said = [fold(each) for each in (commit.writer, commit.note, *facts) if each is not None]
        if self.text is not None and not any(fold(self.text) in each for each in said):
            return False
        if self.writer is not None and not _is_like(commit.writer, self.writer, fold):
            return False
        return _facts(self.meta) <= facts


def _facts(meta: Mapping[str, Scalar]) -> set[str]:
    facts = meta.items()
    return {f"{name}={each if isinstance(each, str) else json.dumps(each)}" for name, each in facts}


def _is_like(text: str | None, pattern: str, fold: Callable[[str], str]) -> bool:
    """Return whether a text has a part, or, as a whole, matches a pattern with wildcards."""
    if text is None:
        return False
    text, pattern = fold(text), fold(pattern)
    return fnmatchcase(text, pattern) if WILDCARDS & set(pattern) else pattern in text


class TextSearch(NamedTuple):
    """A text that is searched for in stored values, of the keys that `shows` allows.

    With `ignore_case` the case of ASCII letters does not count.
    """

    needle: bytes
    ignore_case: bool = False
    shows: Callable[[str], bool] = lambda _: True

    @classmethod
    def of(cls, text: str, ignore_case: bool = False, **more: Any) -> TextSearch:
        """Return a search. Raises `InvalidOptionError` for an empty or a long text."""
        needle = text.encode(errors="surrogateescape")
        if not 0 < len(needle) <= TEXT_BYTES_MAX:
            raise InvalidOptionError(
                f"search for 1 to {TEXT_BYTES_MAX:,} bytes, not {len(needle):,}: {text[:40]!r}"
            )
        return cls(needle.lower() if ignore_case else needle, ignore_case, **more)

    def find(self, value: bytes) -> int:
        """Return where a value has the text first, -1 if it does not have it."""
        return (value.lower() if self.ignore_case else value).find(self.needle)

    def around(self, value: bytes) -> tuple[bytes, bytes, bytes]:
        """Return what is before the text where a value has it first, the text, and what follows."""
        end = (at := self.find(value)) + len(self.needle)
        return value[max(0, at - AROUND_BYTES) : at], value[at:end], value[end:][:AROUND_BYTES]

    def count(self, value: bytes) -> int:
        """Return how often a value has the text."""
        return (value.lower() if self.ignore_case else value).count(self.needle)
