"""Answers beside git's: how many there were, and which of them differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from snapkv.cli.tour.git import SUBMODULE_MODE, TreeEntry, object_id

SHOWN_CHARACTERS = 120


class Mismatch(NamedTuple):
    """An answer that differs from git's."""

    question: str
    key: str
    git: str
    store: str


@dataclass(slots=True)
class Comparison:
    """Counts answers, and keeps those that differ from git's."""

    answers: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)

    def compare(
        self, question: str, found: Mapping[str, bytes], expected: Mapping[str, bytes]
    ) -> int:
        """Count an answer, and keep its differences from git; return their number."""
        self.answers += 1
        if found == expected:
            return 0
        wrong = sorted(k for k in found.keys() | expected.keys() if found.get(k) != expected.get(k))
        self.mismatches += [
            Mismatch(question, key, _shown(expected.get(key)), _shown(found.get(key)))
            for key in wrong
        ]
        return len(wrong)

    def compare_contents(
        self, question: str, found: Mapping[str, bytes], expected: Mapping[str, TreeEntry]
    ) -> int:
        """Compare contents with git's object ids; return the number of mismatches."""
        named = {key: content_name(content, expected.get(key)) for key, content in found.items()}
        wanted = {key: entry.oid for key, entry in expected.items()}
        return self.compare(question, named, wanted)


def content_name(content: bytes, entry: TreeEntry | None) -> bytes:
    """Return the object id of a content, computed as git does; a submodule's value is one.

    `entry` is what git has there, None for nothing.
    """
    if entry is None:
        return b"%d bytes" % len(content)
    if entry.mode == SUBMODULE_MODE:
        return content
    return object_id(content, like=entry.oid)


def _shown(value: bytes | None) -> str:
    return "absent" if value is None else value.decode(errors="backslashreplace")[:SHOWN_CHARACTERS]
