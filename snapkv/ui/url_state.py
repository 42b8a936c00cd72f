"""The state of a page: all of it is in its URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote

from markupsafe import Markup

from snapkv.base.arguments import whole_number
from snapkv.errors import InvalidOptionError

SHARED = ("at", "from", "span", "prefix", "tz", "follow", "ignore", "member", "members")
"""The fields that a link from one view to another keeps."""
OF_MEMBER = ("member", "a", "b", "after", "older", "start", "follow", "look", "limit")
"""The fields that a link to another member of a fleet leaves out."""
TIMES = ("at", "from")
MANY = "revert"
"""The field that a form may send several times: its values become one, with commas."""
FIELDS_MAX = 40
QUERY_BYTES_MAX = 20_000
"""The most bytes that a URL's fields take as a query. A page repeats them in each of its links."""
UNFIT = "unfit"
"""The field that names another one, whose value is too long for the URL of a link."""
KEPT = "_"
"""The field in which a form keeps all other fields, as a query."""


@dataclass(frozen=True)
class State:
    """The path of a view and the fields of its query; text is UTF-8, other bytes are escaped.

    >>> state = State.of("/keys", b"prefix=a%2F&at=rev%3A4&after=a%2Fx")
    >>> state["prefix"], state.url("/changes", at=None), state.url(after=None)
    ('a/', '/changes?prefix=a/', '/keys?prefix=a/&at=rev:4')
    """

    path: str
    fields: Mapping[str, str] = field(default_factory=dict)
    moved: bool = False
    """Whether a form sent it, so that `url()` is its proper URL."""
    share: int = 1
    """What the limits of the page are divided by, because it was too large with the whole ones."""

    @classmethod
    def of(cls, path: str, query: bytes) -> State:
        """Return the state of a request; raises `InvalidOptionError` for too large a query."""
        fields = _parsed(query)
        kept = _parsed(fields.pop(KEPT, "").encode(errors="surrogateescape"))
        kept.pop(KEPT, None)  # a form keeps no form
        found = cls(path, {**kept, **fields}, moved=bool(kept))
        if found.has(UNFIT):
            raise InvalidOptionError(
                f"{found[UNFIT][:40]} is too long for a URL of this page: use the command line"
            )
        size = sum(len(name) + len(_quoted(text)) + 2 for name, text in found.fields.items())
        if size > QUERY_BYTES_MAX:
            raise InvalidOptionError(
                f"the query of the URL has {size:,} bytes: give at most {QUERY_BYTES_MAX:,}; the "
                "command line takes longer keys"
            )
        return found

    def __getitem__(self, name: str) -> str:
        """Return a field, "" if the URL does not have it."""
        return self.fields.get(name, "")

    def has(self, name: str) -> bool:
        """Return whether the URL has a field."""
        return name in self.fields

    def number(self, name: str, otherwise: int, most: int) -> int:
        """Return a field as a number from 1 to `most`; raises `InvalidOptionError`."""
        text = self[name]
        if not text:
            return otherwise
        number = whole_number(text)
        if number is None:
            raise InvalidOptionError(f"{name}={text[:40]!r} is not a number: give 1 to {most:,}")
        return min(most, max(1, number))

    def limit(self, otherwise: int, most: int) -> int:
        """Return how many rows the page may have: its field `limit`, or its share of that."""
        return self.part(self.number("limit", otherwise, most))

    def part(self, most: int) -> int:
        """Return the share of a limit that this page may use, at least 1."""
        return max(1, most // self.share)

    def choice(self, name: str, *choices: str) -> str:
        """Return a field that has one of some values, the first by default."""
        text = self[name] or choices[0]
        if text not in choices:
            raise InvalidOptionError(f"{name}={text[:40]!r}: give {', '.join(choices)}")
        return text

    def url(self, path: str | None = None, **changes: object) -> str:
        """Return the URL of a view, this one by default, with some fields changed.

        A link to another view keeps the shared fields only. `from_` names the field `from`.
        """
        kept = self.fields
        if path is not None and path != self.path:
            kept = {name: value for name, value in kept.items() if name in SHARED}
        fields: dict[str, object] = dict(kept)
        fields |= {name.rstrip("_"): value for name, value in changes.items()}
        query = "&".join(
            _field(name, str(value)) for name, value in fields.items() if value not in ("", None)
        )
        return (path or self.path) + (f"?{query}" if query else "")

    def of_fleet(self, **changes: str) -> State:
        """Return the state of this view without a member and what means something in one only."""
        kept = {
            name: value
            for name, value in self.fields.items()
            if name not in OF_MEMBER and not (name in TIMES and value.startswith(("rev:", "rv:")))
        }
        return State(self.path, {**kept, **changes})

    def permanent_url(self, path: str, **fields: object) -> str:
        """Return the URL of a view with these fields alone, of the same member of a fleet."""
        kept = {n: v for n, v in self.fields.items() if n == "member"}
        return State(path, kept).url(None, **fields)

    def json_url(self) -> str:
        """Return the URL of the plain data of this view."""
        path = "/commits" if self.path == "/" else self.path
        return State(f"{path}.json", self.fields).url()

    def step_url(self, to: str) -> str:
        """Return the URL that leads to this view one commit before or after the moment."""
        return State("/step", {**self.fields, "to": to, "of": self.path}).url()

    def export_url(self, kind: str) -> str:
        """Return the URL of the keys at the moment as a file."""
        return self.url("/export", format=kind, from_=None, span=None, follow=None, tz=None)

    def hidden(self, *without: str) -> Markup:
        """Return the hidden field with which a form keeps all fields but its own.

        It is one field of ASCII, because browsers change some characters of the fields of forms.
        """
        kept = State(self.path, {n: v for n, v in self.fields.items() if n not in without}).url()
        query = kept.partition("?")[2]
        if not query:
            return Markup("")
        return Markup('<input type="hidden" name="{}" value="{}">').format(KEPT, query)


def _parsed(query: bytes) -> dict[str, str]:
    """Return the fields of a query that are not empty; raise if one but `MANY` has two values."""
    text = query.decode("latin-1")
    pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
    fields: dict[str, str] = {}
    for name, value in pairs:
        if value and name == MANY and name in fields:
            fields[name] += f",{value}"
        elif value and fields.setdefault(name, value) != value:
            raise InvalidOptionError(
                f"the URL has {name[:40]}= twice: {fields[name][:40]!r} and {value[:40]!r}; "
                "give it once"
            )
    count = sum(name != MANY for name, _ in pairs)
    if count > FIELDS_MAX:
        raise InvalidOptionError(f"the URL has {count:,} fields: give at most {FIELDS_MAX}")
    return fields


def _field(name: str, value: str) -> str:
    if len(value) <= QUERY_BYTES_MAX and len(quoted := _quoted(value)) <= QUERY_BYTES_MAX:
        return f"{name}={quoted}"
    return f"{UNFIT}={name}"


def _quoted(text: str) -> str:
    return quote(text, safe="/:,", errors="surrogateescape")
