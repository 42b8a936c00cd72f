"""Values, times and commits as text for people and as JSON for programs."""

from __future__ import annotations

import codecs
import json
import os
from datetime import UTC, tzinfo
from math import isfinite
from typing import Any

from snapkv.base.text import PREVIEW_CHARS_MAX, escaped, shortened_text
from snapkv.base.text import counted as counted
from snapkv.base.text import key_json as key_json
from snapkv.base.text import key_text as key_text
from snapkv.base.text import preview as preview
from snapkv.base.text import quoted as quoted
from snapkv.base.text import text_of as text_of
from snapkv.base.text import value_json as value_json
from snapkv.errors import InvalidOptionError
from snapkv.model import Change, Commit, Difference, Entry, Meta, Scalar, Version
from snapkv.times import format_time

Json = dict[str, Any]
ZONE_VARIABLE = "SNAPKV_TZ"


class Zones:
    """The time zones of a command, of times that are typed and shown; None is this machine's."""

    typed: tzinfo | None = None
    shown: tzinfo | None = UTC
    remark = ""
    """What the output says of typed times that are in another zone than it."""

    def choose(self, *, local: bool) -> None:
        """Take the zone that the environment names for both, or with `local` this machine's."""
        name, self.typed, self.remark = os.environ.get(ZONE_VARIABLE), None, ""
        if name:
            from zoneinfo import ZoneInfo

            try:
                self.typed = ZoneInfo(name)
            except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
                message = f"{ZONE_VARIABLE} is {name!r}, not a time zone: write Europe/Berlin"
                raise InvalidOptionError(message) from None
        self.shown = self.typed if name or local else UTC


ZONES = Zones()


def time_text(timestamp: int, *, raw: bool = False) -> str:
    """Return a timestamp as a date, or with `raw` as the number that names one commit.

    >>> time_text(445644802596110336), time_text(445644802596110336, raw=True)
    ('2023-11-14T22:13:29.903Z', '445644802596110336')
    """
    return str(timestamp) if raw else format_time(timestamp, ZONES.shown)


def json_line(fields: Json) -> str:
    """Return one JSON document on one line, in ASCII."""
    return json.dumps(fields, separators=(", ", ": "))


def yaml_document(fields: Json, encoding: str = "utf-8") -> str:
    r"""Return one YAML document; text of several lines is readable, what does not print escaped.

    >>> print(yaml_document({"note": "two\nlines", "bell": "\a", "n": None}), end="")
    ---
    note: |-
      two
      lines
    bell: "\a"
    n: null

    For a stream with another `encoding` than UTF-8 the document is in ASCII: YAML is not written in
    Latin-1, say, and what the stream itself escapes is read as a text with backslashes.

    >>> print(yaml_document({"key": "\u0431"}, "koi8-r"), end="")
    ---
    key: "\u0431"
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes text of several lines as a block, where YAML allows it."""

    def block(dumper: Any, text: str) -> Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, block)

    def dumped(*, allow_unicode: bool) -> str:
        return "---\n" + str(
            yaml.dump_all(
                [fields], Dumper=Dumper, sort_keys=False, width=1_000, allow_unicode=allow_unicode
            )
        )

    text = dumped(allow_unicode=codecs.lookup(encoding).name == "utf-8")
    return text if escaped(text, keep="\n") == text else dumped(allow_unicode=False)


def cell_text(value: Any) -> str:
    """Return a field of a record as a cell of a table.

    >>> cell_text("v1"), cell_text(None), cell_text(7), cell_text({"keys": 1})
    ('v1', '', '7', '{"keys": 1}')
    """
    if value is None:
        return ""
    text = escaped(value if isinstance(value, str) else json_line(value))
    return shortened_text(text, PREVIEW_CHARS_MAX)


def tree_json(tree: Any) -> Any:
    r"""Return what a value says for JSON, which has neither bytes nor infinite numbers.

    >>> tree_json({"a": [b"v1", 1.5, float("inf")]})
    {'a': ['v1', 1.5, 'inf']}
    """
    if isinstance(tree, dict):
        return {name: tree_json(part) for name, part in tree.items()}
    if isinstance(tree, list):
        return [tree_json(part) for part in tree]
    if isinstance(tree, bytes):
        return value_json(tree)
    if isinstance(tree, float):
        return float(tree) if isfinite(tree) else str(tree)
    return str(tree) if isinstance(tree, str) else tree  # trees have subclasses of both


def time_json(timestamp: int | None) -> Json:
    """Return a timestamp as number and date; the number as text, as JSON numbers have 53 bits."""
    if timestamp is None:
        return {"timestamp": None, "time": None}
    return {"timestamp": str(timestamp), "time": format_time(timestamp)}


def said_json(said: Commit | Version) -> Json:
    """Return the writer, the note and, if it has one, the meta of a commit for JSON."""
    meta = {} if said.meta is None else {"meta": dict(said.meta)}
    return {"writer": said.writer, "note": said.note, **meta}


def meta_text(meta: Meta) -> str:
    r"""Return a meta on one line, strings in quotes if they have a space or do not print.

    >>> print(meta_text(Meta({"request": "r-17", "ticket": 4, "why": "a\nb", "dry run": True})))
    "dry run"=true request=r-17 ticket=4 why="a\nb"
    """
    return " ".join(f"{_word(name)}={_word(value)}" for name, value in meta.items())


def _word(value: Scalar) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    plain = value.isprintable() and value and not set(value) & set(' "=')
    return value if plain else quoted(value)


def revision_text(revision: int, source_revision: int | None) -> str:
    """Return a revision, and beside it the one that it recorded: of Kubernetes, a resourceVersion.

    >>> revision_text(7, None), revision_text(7, 1204)
    ('7', '7 rv 1204')
    """
    return str(revision) if source_revision is None else f"{revision} rv {source_revision}"


def revision_json(of: Commit | Version) -> Json:
    """Return a revision for JSON, and of a recorded commit the one that it recorded."""
    source = {} if of.source_revision is None else {"source_revision": of.source_revision}
    return {"revision": of.revision, **source}


def commit_json(commit: Commit) -> Json:
    """Return a commit for JSON."""
    return {**time_json(commit.ts), **revision_json(commit), **said_json(commit)}


def version_json(version: Version) -> Json:
    """Return a version of a key for JSON."""
    return {
        **time_json(version.ts),
        **revision_json(version),
        **said_json(version),
        "value": value_json(version.value),
    }


def entry_json(key: str, entry: Entry) -> Json:
    """Return a key and its value at a moment for JSON."""
    return {
        "key": key_json(key),
        "value": value_json(entry.value),
        "revision": entry.revision,
        "created": entry.created,
        "version": entry.version,
    }


def difference_json(difference: Difference[str]) -> Json:
    """Return a difference for JSON."""
    return {
        "key": key_json(difference.key),
        "before": value_json(difference.before),
        "after": value_json(difference.after),
    }


def change_json(change: Change[str]) -> Json:
    """Return a change for JSON."""
    return {"key": key_json(change.key), "value": value_json(change.value)}


def written_change_json(change: Change[str]) -> Json:
    """Return a change for JSON with the revision, writer, note and meta of its commit."""
    commit = change.commit
    return {**change_json(change), **revision_json(commit), **said_json(commit)}
