"""The query, headers and body of a request to `_changes`, checked and decoded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdcmeta.changes.feed import ALL_DOCS, MAIN_ONLY, Form
from cdcmeta.changes.selector import Selector
from cdcmeta.couch_http.bodies import decoded
from cdcmeta.couch_http.errors import HTTPError, bad_request
from cdcmeta.couch_http.http_request import integer, whole
from snapkv.times import pack

NORMAL, LONGPOLL, CONTINUOUS, EVENTSOURCE = "normal", "longpoll", "continuous", "eventsource"
FEEDS = (NORMAL, LONGPOLL, CONTINUOUS, EVENTSOURCE)
FEED_RULE = "Supported `feed` types: normal, continuous, live, longpoll, eventsource"
BEAT_INVALID = "Invalid heartbeat value. Expecting a positive integer value (in milliseconds)."
BEAT_NEGATIVE = "The heartbeat value should be a positive integer (in milliseconds)."
DOC_IDS_RULE = "`doc_ids` filter parameter is not a list of doc ids."
_DIGITS = re.compile(r"\d{1,19}", re.ASCII)
_OLDEST, _NEWEST = (pack(ms) for ms in (946_684_800_000, 4_102_444_800_000))
"""Digits mean a time of the years 2000 to 2099; a truncated sequence is never in that range."""
_TIME = re.compile(r"\d{4}-\d\d?-\d\d?(?:[T ].*)?")


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a design document, as a filter; `kind` is `filters` or `views`."""

    ddoc: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """The options of a feed; `timeout` and `heartbeat` are in seconds."""

    feed: str
    since: str
    descending: bool
    limit: int | None
    timeout: float
    heartbeat: float | None
    seq_interval: int
    as_of: str | None
    form: Form
    fields: tuple[tuple[str, ...], ...] | None
    function: Function | None

    @property
    def waits(self) -> bool:
        """Whether the feed waits for changes after the existing ones."""
        return self.feed != NORMAL and not self.descending and self.limit != 0


def feed_request(
    query: Iterable[tuple[str, str]],
    body: Mapping[str, Any],
    last_event_id: str | None,
    wait_ms_max: int,
) -> FeedRequest:
    """Return the options of a request. Raises `HTTPError`, `InvalidArgumentError`."""
    params = {name.lower(): value for name, value in query}
    feed = params.get("feed", NORMAL)
    feed = CONTINUOUS if feed == "live" else feed
    if feed not in FEEDS:
        raise bad_request(FEED_RULE)
    if params.get("as_of") is not None and feed != NORMAL:
        raise bad_request("`as_of` goes with the feed `normal`: the past does not change")
    since = params.get("last-event-id", params.get("since", "0"))
    if feed == EVENTSOURCE and last_event_id is not None:
        since = last_event_id
    form, function = _form(params, body)
    fields = _fields(params, body)
    return FeedRequest(
        feed=feed,
        since=_checked_since(since.strip('"')),
        descending=params.get("descending") == "true",
        limit=whole("limit", params["limit"]) if "limit" in params else None,
        timeout=min(wait_ms_max, whole("timeout", params.get("timeout", str(wait_ms_max)))) / 1_000,
        heartbeat=_heartbeat(params.get("heartbeat"), wait_ms_max),
        seq_interval=_seq_interval(params.get("seq_interval", "1")),
        as_of=params.get("as_of"),
        form=replace(form, as_json=fields is None),
        fields=fields,
        function=function,
    )


def _checked_since(since: str) -> str:
    digits = since.strip()
    if digits != "0" and _DIGITS.fullmatch(digits) and not _OLDEST <= int(digits) < _NEWEST:
        raise malformed_since(since)
    return since


def malformed_since(since: str) -> HTTPError:
    """Return the answer to an invalid `since`."""
    if _TIME.fullmatch(since):
        return bad_request("invalid_time_format")
    return bad_request("Malformed sequence supplied in 'since' parameter.")


def _heartbeat(text: str | None, ms_max: int) -> float | None:
    if text is None:
        return None
    if text == "true":
        return ms_max / 1_000
    if (ms := integer(text)) is None:
        raise bad_request(BEAT_INVALID)
    if ms <= 0:
        raise bad_request(BEAT_NEGATIVE)
    return min(ms_max, ms) / 1_000


def _seq_interval(text: str) -> int:
    rows = integer(text)
    if rows is None or rows <= 0:
        raise bad_request("invalid_seq_interval")
    return rows


def _form(params: Mapping[str, str], body: Mapping[str, Any]) -> tuple[Form, Function | None]:
    style = params.get("style", MAIN_ONLY)
    if style not in (MAIN_ONLY, ALL_DOCS):
        raise bad_request("Supported `style` values: main_only, all_docs")
    options: dict[str, Any] = {
        "style": style,
        "include_docs": params.get("include_docs") == "true",
        "conflicts": params.get("conflicts") == "true",
    }
    name = params.get("filter", "")
    if name == "_doc_ids":
        options["doc_ids"] = _doc_ids(params, body)
    elif name == "_selector":
        options["selector"] = _selector(body)
    elif name == "_design":
        options["prefix"] = "_design/"
    elif name == "_view":
        return Form.of(**options), _function("views", "view", params.get("view"))
    elif name.startswith("_"):
        raise bad_request("unknown builtin filter name")
    elif name:
        return Form.of(**options), _function("filters", "filter", name)
    return Form.of(**options), None


def _doc_ids(params: Mapping[str, str], body: Mapping[str, Any]) -> list[str]:
    ids = body.get("doc_ids")
    if ids is None and "doc_ids" in params:
        ids = decoded(params["doc_ids"].encode(errors="surrogatepass"))
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise bad_request(DOC_IDS_RULE)
    return ids


def _selector(body: Mapping[str, Any]) -> Selector:
    if "selector" not in body:
        raise bad_request("Selector must be specified in POST payload")
    return Selector(body["selector"], regex=False)


def _fields(
    params: Mapping[str, str], body: Mapping[str, Any]
) -> tuple[tuple[str, ...], ...] | None:
    fields = body.get("fields") if params.get("filter") == "_selector" else None
    if fields is None:
        return None
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        raise bad_request("Selector error: fields must be JSON array")
    return tuple(tuple(field.split(".")) for field in fields) or None


def _function(kind: str, parameter: str, text: str | None) -> Function:
    if text is None:
        raise bad_request(f"`{parameter}` filter parameter is not provided.")
    ddoc, slash, name = text.partition("/")
    if not (ddoc and slash and name) or "/" in name:
        raise bad_request(f"`{parameter}` must be of the form `designname/{parameter}name`")
    return Function(f"_design/{ddoc}", kind, name)


def projected(
    doc: Mapping[str, Any] | None, fields: tuple[tuple[str, ...], ...] | None
) -> Mapping[str, Any] | None:
    """Return a document with the wanted fields only.

    >>> projected({"a": {"b": 1, "c": 2}, "d": 3}, (("a", "b"), ("d",), ("e",)))
    {'a': {'b': 1}, 'd': 3}
    """
    if doc is None or fields is None:
        return doc
    found: dict[str, Any] = {}
    for path in fields:
        value: Any = doc
        for name in path:
            value = value.get(name, _NONE) if isinstance(value, Mapping) else _NONE
        if value is not _NONE:
            into = found
            for name in path[:-1]:
                into = into.setdefault(name, {})
            into[path[-1]] = value
    return found


_NONE = object()
