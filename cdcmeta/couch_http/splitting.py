"""The body of `_bulk_docs`, split into the JSON of its documents without parsing all of it.

A body may be large, and the values that a parser makes of it are many times larger. So one document
is parsed at a time, and a document that cannot be parsed leaves the others alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cdcmeta.changes.documents import TOO_DEEP, Edited
from cdcmeta.couch_http.errors import HTTPError, bad_request
from cdcmeta.couch_http.request import INVALID_JSON, NumberTooLongError, parsed, parsed_size
from cdcmeta.errors import InvalidDocumentError

Span: TypeAlias = tuple[int, int]
"""The places where a value begins and ends."""
SMALL_BYTES = 16 << 10
"""The value of a document that is no larger takes a megabyte at most."""
MEMBERS_BYTES_MAX = 256_000_000
"""The most memory that members of a body, or of one document, may take without their contents."""
DEPTH_MAX = 20_000
"""The deepest nesting of a document that is left out by itself; a deeper one spoils the request."""
DIGITS_MAX = 18
"""So many digits of an integer are read where only a document's id is looked for."""
LEVELS = 4
"""Nesting that one match of a pattern passes over; Python walks through a deeper one."""
BLANK_MAX = 16
_OPENING = b"[{"
_TEXT = rb'"(?:[^"\\]++|\\.)*+"'


def _balanced(plain: bytes, levels: int) -> bytes:
    """Return the pattern of a text whose brackets are balanced, up to so many levels deep."""
    deeper = rb"|[\[{]" + _balanced(_PLAIN, levels - 1) + rb"[\]}]" if levels else b""
    return b"(?:" + plain + b"++|" + _TEXT + deeper + b")*+"


_PLAIN = rb'[^"\[\]{}]'
_FLAT = re.compile(_balanced(_PLAIN, 0), re.DOTALL)
_BRACKETS = re.compile(_balanced(_PLAIN, LEVELS) + rb"([\[{]++|[\]}]++)", re.DOTALL)
_ELEMENT = re.compile(_balanced(rb'[^"\[\]{},]', LEVELS), re.DOTALL)


@dataclass(slots=True)
class Posted:
    """The documents of a body; `refused` holds those that cannot be stored, by their number."""

    raw: bytes
    spans: list[Span]
    refused: dict[int, Edited] = field(default_factory=dict)

    @property
    def parsed_size(self) -> int:
        """About how much memory the value of the largest document takes; 0 if all are small."""
        large = (span for span in self.spans if span[1] - span[0] > SMALL_BYTES)
        return max((parsed_size(self.raw, *span) for span in large), default=0)

    def check(self, bytes_max: int) -> None:
        """Parse every document once. Raises `HTTPError` (400) if one is not valid JSON.

        Those that are too large or too deep to be parsed, or have a number that is, are `refused`.
        """
        for number, (start, end) in enumerate(self.spans):
            if end - start > bytes_max:
                reason = f"the document has {end - start} bytes, more than {bytes_max}"
                self._refuse(number, reason)
                continue
            try:
                parsed(self.raw[start:end], pausing=True)
            except RecursionError:
                self._refuse(number, TOO_DEEP)
            except NumberTooLongError as e:
                self._refuse(number, str(e))
            except ValueError:
                raise bad_request(INVALID_JSON) from None

    def documents(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield the values of some documents; each is parsed when it is asked for."""
        for number in numbers:
            start, end = self.spans[number]
            yield parsed(self.raw[start:end], pausing=True)

    def id(self, number: int) -> str:
        """Return the `_id` of a document, which need not be parsed for it; empty without one."""
        value, _ = shallow(self.raw, *self.spans[number])
        id = value.get("_id") if isinstance(value, dict) else None
        return id if isinstance(id, str) else ""

    def _refuse(self, number: int, reason: str) -> None:
        self.refused[number] = Edited(self.id(number), error=InvalidDocumentError(reason))


def split(raw: bytes, docs_max: int) -> tuple[dict[str, Any], Posted | None]:
    """Return the members of a body (as `shallow` does), and its documents if `docs` is a list.

    Raises `HTTPError`: 400 if the body is not a JSON object, 413 for too many documents.
    """
    members, spans = shallow(raw, 0, len(raw))
    if not isinstance(members, dict):
        raise bad_request("Request body must be a JSON object")
    docs = members.get("docs")
    if not isinstance(docs, list):
        return members, None
    found: list[Span] = []
    for span in _elements(raw, *spans[docs[0]]):
        if len(found) == docs_max:
            raise HTTPError(413, "too_large", f"the request has more than {docs_max} documents")
        found.append(span)
    return members, Posted(raw, found)


def shallow(raw: bytes, start: int, end: int) -> tuple[Any, list[Span]]:
    """Return a value without what is nested in its members, and where that is.

    An array in it becomes `[n]`, where n is the number of its span; an object becomes `{}`.
    Raises `HTTPError` (400) if it is not valid JSON.
    """
    own = _skipped(_FLAT, raw, start, end)  # the value's own bracket
    at = min(own + 1, end)
    pieces, spans = [raw[start:at]], list[Span]()
    while at < end:
        stop = _skipped(_FLAT, raw, at, end)
        if stop == end or raw[stop] not in _OPENING:
            pieces.append(raw[at:end])
            break
        pieces.append(raw[at:stop])
        pieces.append(b"[%d]" % len(spans) if raw[stop] == _OPENING[0] else b"{}")
        at = _end_of(raw, stop, end)
        spans.append((stop, at))
    text = b"".join(pieces)
    if parsed_size(text, 0, len(text)) > MEMBERS_BYTES_MAX:
        raise bad_request("the request has too many members")
    try:
        return json.loads(text, parse_int=_shortened), spans
    except ValueError:
        raise bad_request(INVALID_JSON) from None


def _shortened(digits: str) -> int:
    return int(digits[:DIGITS_MAX])  # nobody needs a longer one here


def _elements(raw: bytes, start: int, end: int) -> Iterator[Span]:
    """Yield where the elements of an array are; those of an invalid one may be empty."""
    last = end - 1
    if raw[last:end] != b"]":
        raise bad_request(INVALID_JSON)
    at = first = start + 1
    if not raw[first : min(last, first + BLANK_MAX)].strip() and not raw[first:last].strip():
        return
    while True:
        at = _skipped(_ELEMENT, raw, at, last)
        if at < last and raw[at] in _OPENING:
            at = _end_of(raw, at, last)
            continue
        yield first, at
        if at == last:
            return
        first = at = at + 1


def _end_of(raw: bytes, at: int, end: int) -> int:
    """Return where the array or object that begins at `at` ends."""
    depth = 1
    at += 1
    while True:
        run = _BRACKETS.match(raw, at, end)
        if run is None:
            raise bad_request(INVALID_JSON)
        length = run.end() - run.start(1)
        if raw[run.start(1)] in _OPENING:
            depth += length
        elif depth > length:
            depth -= length
        else:
            return run.start(1) + depth
        if depth > DEPTH_MAX:
            raise bad_request(f"the request is nested more than {DEPTH_MAX} deep")
        at = run.end()


def _skipped(pattern: re.Pattern[bytes], raw: bytes, at: int, end: int) -> int:
    found = pattern.match(raw, at, end)
    assert found is not None  # it matches the empty text, too
    return found.end()
