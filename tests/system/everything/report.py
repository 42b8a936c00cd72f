"""The answers of a tour: which question, asked in which way, and whether it is equal to git's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from snapkv.cli.git_clone import GitChange, TreeEntry
from snapkv.cli.tour.examiner import AskedDate, TourReport, content_name
from system.everything.clone_sparked import content_id
from system.everything.clones import History

STATES = "What did the clones look like?"
CHANGES = "What changed between two dates, and which author changed it?"
PLACES = "Which capture replicated what?"
REPLICAS = "Did everything arrive, and once?"
VIEWS = "What does the page show?"
ONE_CLONE = "What does the tour of one clone say?"

ABSENT = b"absent"


class Answer(NamedTuple):
    """The answer to a row's question in one way; `note` takes the place of a verdict."""

    section: str
    row: str
    way: str
    equal: bool
    note: str = ""


class Changed(NamedTuple):
    """What a key's content was, what it became (None: absent), and the author of the newest."""

    before: bytes | None
    after: bytes | None
    author: str


@dataclass(slots=True)
class Report(TourReport):
    """All answers, and why some were not asked for."""

    given: list[Answer] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, section: str, row: str, way: str, wrong: int, note: str = "") -> None:
        """Keep an answer that differs in so many places."""
        self.given.append(Answer(section, row, way, not wrong, note))

    # --- the kinds of answers ---

    def state(
        self, history: History, moment: AskedDate, way: str, found: Mapping[str, bytes]
    ) -> None:
        """Compare the contents of all keys at a moment with `git ls-tree`."""
        question = f"{way}: the contents at {moment.date}"
        wrong = self.compare_contents(question, found, history.tree(moment.ms))
        self.add(STATES, moment.date, way, wrong)

    def lines(
        self, history: History, moment: AskedDate, way: str, found: Mapping[str, bytes]
    ) -> None:
        """Compare lines of `git ls-tree` at a moment: modes and ids."""
        wanted = {key: entry.line for key, entry in history.tree(moment.ms).items()}
        wrong = self.compare(f"{way}: the lines at {moment.date}", found, wanted)
        self.add(STATES, moment.date, way, wrong)

    def ids(
        self, history: History, moment: AskedDate, way: str, found: Mapping[str, bytes]
    ) -> None:
        """Compare the ids of all contents at a moment; of a submodule that of its value."""
        wanted = {key: content_id(entry) for key, entry in history.tree(moment.ms).items()}
        wrong = self.compare(f"{way}: the contents at {moment.date}", found, wanted)
        self.add(STATES, moment.date, way, wrong)

    def changed(
        self, history: History, a: AskedDate, b: AskedDate, way: str, found: Mapping[str, Changed]
    ) -> None:
        """Compare what changed between two moments and the authors with `git`."""
        wanted, authors = history.changes(a.ms, b.ms), history.authors(a.ms, b.ms)
        named = {key: _line_of(change, wanted.get(key)) for key, change in found.items()}
        self.changed_lines(a, b, way, named, changed_ids(wanted, authors))

    def changed_lines(
        self,
        a: AskedDate,
        b: AskedDate,
        way: str,
        found: Mapping[str, bytes],
        wanted: Mapping[str, bytes],
    ) -> None:
        """Compare changes that are lines already."""
        wrong = self.compare(f"{way}: what changed from {a.date} to {b.date}", found, wanted)
        self.add(CHANGES, pair_text(a, b), way, wrong)

    def failed(self, section: str, row: str, way: str, why: str) -> None:
        """Count a question without an answer as a mismatch."""
        self.compare(f"{way}: {row}", {"*": why.encode()}, {"*": b"an answer"})
        self.add(section, row, way, 1)

    # --- for tables ---

    def ways(self, section: str) -> list[str]:
        """Return the ways in which a section was asked, in order."""
        return list(dict.fromkeys(each.way for each in self.given if each.section == section))

    def rows(self, section: str) -> dict[str, dict[str, Answer]]:
        """Return the answers of a section, by row and way."""
        found: dict[str, dict[str, Answer]] = {}
        for each in self.given:
            if each.section == section:
                before = found.setdefault(each.row, {}).get(each.way)
                if before is None or before.equal:  # one that differs stays
                    found[each.row][each.way] = each
        return found


def pair_text(a: AskedDate, b: AskedDate) -> str:
    """Return how a pair of moments is shown."""
    return f"{a.date} to {b.date}"


def changed_ids(
    wanted: Mapping[str, GitChange],
    authors: Mapping[str, str],
    id_of: Callable[[TreeEntry], bytes] = lambda entry: entry.oid,
) -> dict[str, bytes]:
    """Return git's changes as lines: the ids before and after, and the author."""
    found = {}
    for key, change in wanted.items():
        before, after = (entry and id_of(entry) for entry in (change.before, change.after))
        found[key] = line(before, after, authors.get(key, "?"))
    return found


def line(before: bytes | None, after: bytes | None, author: str) -> bytes:
    """Return a change as a line.

    >>> line(None, b"4b825dc6", "Ada")
    b'absent -> 4b825dc6 by Ada'
    """
    return b"%b -> %b by %b" % (before or ABSENT, after or ABSENT, author.encode())


def changes_of(
    befores: Mapping[str, bytes], afters: Mapping[str, bytes], authors: Mapping[str, str]
) -> dict[str, Changed]:
    """Return what differs between two states, with the newest author of each key."""
    return {
        key: Changed(befores.get(key), afters.get(key), authors.get(key, "?"))
        for key in befores.keys() | afters.keys()
        if befores.get(key) != afters.get(key)
    }


def _line_of(change: Changed, expected: GitChange | None) -> bytes:
    """Return a change as a line, with contents named as git names them."""
    entries = (expected.before, expected.after) if expected else (None, None)
    before, after = (
        None if content is None else content_name(content, entry)
        for content, entry in zip((change.before, change.after), entries, strict=True)
    )
    return line(before, after, change.author)
