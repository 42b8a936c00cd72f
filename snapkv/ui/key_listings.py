"""The keys of a moment: a level of their tree, a search in them and their values, and an export."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from snapkv.base.text import key_json, value_json
from snapkv.base.waiting import check_in_time
from snapkv.engine.contract import PAIRS
from snapkv.errors import InvalidOptionError
from snapkv.layout import prefix_end
from snapkv.reading.snapshot import Snapshot
from snapkv.reading.snapshot import StateReads as Moment
from snapkv.reading.text_search import TextSearch
from snapkv.rendering.kubernetes import STARTS
from snapkv.times import When
from snapkv.ui.key_differences import REMOVED, differences
from snapkv.ui.key_versions import newest_versions
from snapkv.ui.page_source import Budget, Source

# --- one level of the tree, without reading what lies below its children ---

NODES_MAX = 200
PREVIEW_BYTES = 200
KUBERNETES_BYTES = 16 << 10
"""Objects of Kubernetes are named by what may be at their end, so more of them is read."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A key, or all keys below a `/`, with what changed there in the range.

    `path` is the key, or the prefix with its `/`. A `gone` one existed at the beginning of the
    range, and does not at its end. `timestamp` and `writer` are of its newest commit.
    """

    path: str
    name: str
    folder: bool
    size: int | None = None
    revision: int | None = None
    preview: bytes | None = None
    changed: Counter[str] = field(default_factory=Counter)
    gone: bool = False
    timestamp: int | None = None
    writer: str | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """The children of a prefix; `after` continues behind the last one, None at the end.

    `complete` is False if the changes of the range were not all counted. `cut_short` says that the
    time was used up before the level had its limit or its end, even if `nodes` is empty.
    """

    nodes: list[TreeNode]
    after: str | None
    complete: bool = True
    cut_short: bool = False


def level(
    source: Source,
    when: When | None,
    prefix: str = "",
    *,
    since: When | None = None,
    compared: bool = False,
    after: str | None = None,
    name: str = "",
    limit: int = NODES_MAX,
    budget: Budget,
    counting: Budget | None = None,
) -> Level:
    """Return the children of a prefix at a moment, at most `limit`, in order.

    One seek for each folder, however many keys it has, and a read for the keys. With `compared`
    each child has what changed since `since`, and children that are gone are included; `counting`
    bounds that. What the first seek returns is shown, however slow the engine is.
    """
    prefix = prefix or source.root
    moment = source.reader.source(when, None, False)
    start, end = source.span(prefix)
    low = _after_child(source, prefix, after) if after is not None else start
    nodes, following = _children(source, moment, low, end, prefix, name, limit, budget)
    cut_short = following is not None and len(nodes) < limit
    nodes = _with_entries(source, moment, nodes, budget)
    if not compared:
        return Level(nodes, following, cut_short=cut_short)
    until = None if following is None else _after_child(source, prefix, following)
    found = differences(
        source,
        since,
        when,
        prefix,
        start=after if after is not None and not after.endswith("/") else None,
        until=until,
        limit=0,
        budget=counting or budget,
    )
    changed = {child: n for child, n in found.children.items() if name.lower() in child.lower()}
    merged = _merged(nodes, changed, prefix, after)
    if len(merged) > limit:
        return Level(merged[:limit], merged[limit - 1].path, found.complete)
    return Level(merged, following, found.complete, cut_short)


def _after_child(source: Source, prefix: str, path: str) -> bytes:
    """Return the first stored key behind a child."""
    if path.endswith("/") and path != prefix:
        return prefix_end(source.span(path)[0])
    return source.encode(path) + b"\0"


def _children(
    source: Source,
    moment: Moment,
    low: bytes,
    end: bytes,
    prefix: str,
    name: str,
    limit: int,
    budget: Budget,
) -> tuple[list[TreeNode], str | None]:
    """Return the children from a stored key on, and the last one if there may be more."""
    nodes: list[TreeNode] = []
    base = source.span(prefix)[0] if prefix else source.base
    last: str | None = None
    while low < end or end == b"\0":
        pages = moment.pages(PAIRS, low, end, keys_only=True)
        page = next(pages, None)
        if page is None or not page.keys:
            return nodes, None
        for stored in page.keys:
            if stored < low:
                continue
            if len(nodes) >= limit:
                return nodes, last
            cut = stored.find(b"/", len(base))
            path = stored if cut < 0 else stored[: cut + 1]
            low = stored + b"\0" if cut < 0 else prefix_end(path)
            last = text = source.decode(path)
            if name.lower() in text[len(prefix) :].lower():
                nodes.append(TreeNode(text, text[len(prefix) :], cut >= 0))
        if budget.over:
            return nodes, None if next(pages, None) is None else last
    return nodes, None


def _with_entries(
    source: Source, moment: Moment, nodes: list[TreeNode], budget: Budget
) -> list[TreeNode]:
    """Return the nodes, the keys among them with size, newest commit and the value's beginning."""
    leaves = [source.encode(node.path) for node in nodes if not node.folder]
    found = dict(zip(leaves, moment.get(leaves), strict=True))
    written = {source.decode(stored): kv for stored, kv in found.items()}
    versions, made = newest_versions(source, written, moment.timestamp, budget), []
    for node in nodes:
        kv = None if node.folder else found[source.encode(node.path)]
        if kv is not None:
            size = KUBERNETES_BYTES if kv.value.startswith(STARTS) else PREVIEW_BYTES
            preview = None if source.hides(node.path) else kv.value[:size]
            node = replace(node, size=len(kv.value), revision=kv.mod_revision, preview=preview)
            if (last := versions.get(node.path)) is not None:
                node = replace(node, timestamp=last.ts, writer=last.writer)
        made.append(node)
    return made


def _merged(
    nodes: list[TreeNode], changed: dict[str, Counter[str]], prefix: str, after: str | None
) -> list[TreeNode]:
    """Return the nodes with their changes, and between them the nodes that are gone, in order."""
    known = {node.path: replace(node, changed=changed.get(node.path, Counter())) for node in nodes}
    for path, counts in changed.items():
        if (
            path not in known
            and counts[REMOVED]
            and (after is None or _encoded(path) > _encoded(after))
        ):
            name = path[len(prefix) :]
            folder = path.endswith("/") and bool(name)
            known[path] = TreeNode(path, name, folder, changed=counts, gone=True)
    return [known[path] for path in sorted(known, key=_encoded)]


def _encoded(path: str) -> bytes:
    return path.encode(errors="surrogateescape")


# --- search ---

HITS_MAX = 100


@dataclass(frozen=True, slots=True)
class Hit:
    """A key that contains the text, or whose value does: `around` is a part of that."""

    key: str
    in_key: bool
    size: int
    before: bytes = b""
    match: bytes = b""
    behind: bytes = b""


@dataclass(frozen=True, slots=True)
class Hits:
    """The first hits in key order; `after` is the key behind which to go on, None at the end."""

    hits: list[Hit]
    looked_at: int
    after: str | None


def search(
    source: Source,
    when: When | None,
    text: str,
    *,
    prefix: str = "",
    where: str = "both",
    after: str | None = None,
    limit: int = HITS_MAX,
    budget: Budget,
) -> Hits:
    """Return the keys at a moment that contain a text, or whose values do; ASCII case is ignored.

    `where` is `keys`, `values` or `both`. One pass over the state, as long as there is time.
    """
    if where not in ("keys", "values", "both"):
        raise InvalidOptionError(f"where={where[:40]!r}: give keys, values or both")
    wanted = TextSearch.of(text, True)
    moment = source.reader.source(when, None, False)
    low, end = source.span(prefix)
    if after is not None:
        low = max(low, source.encode(after) + b"\0")
    base, hits, looked_at = len(source.base) if not source.observed else 0, list[Hit](), 0
    for page in moment.pages(PAIRS, low, end, keys_only=where == "keys"):
        check_in_time()
        values = page.values or [b""] * len(page.keys)
        for stored, value in zip(page.keys, values, strict=True):
            looked_at += 1
            in_key = where != "values" and wanted.find(stored[base:]) >= 0
            in_value = where != "keys" and wanted.find(value) >= 0
            key = source.decode(stored) if in_key or in_value else ""
            in_value = in_value and not source.hides(key)
            if in_key or in_value:
                around = wanted.around(value) if in_value else ()
                hits.append(Hit(key, in_key, len(value), *around))
                if len(hits) == limit:
                    return Hits(hits, looked_at, hits[-1].key)
        if budget.over:
            return Hits(hits, looked_at, source.decode(page.keys[-1]))
    return Hits(hits, looked_at, None)


# --- export, streamed: lines of JSON, CSV, or a dump ---

KINDS = {
    "json": ("application/x-ndjson", "ndjson"),
    "csv": ("text/csv; charset=utf-8", "csv"),
    "dump": ("application/octet-stream", "dump"),
}
PART_BYTES = 64 << 10


def exported(source: Source, when: When | None, prefix: str, kind: str) -> Iterator[bytes]:
    """Return the keys of a moment in parts; a dump has the whole store, spaces included.

    The first read has been made when this returns, so that it raises what a moment can raise.
    Raises `InvalidOptionError` for another kind, or a dump of an observed prefix.
    """
    if kind not in KINDS:
        raise InvalidOptionError(f"format={kind[:40]!r}: give {', '.join(KINDS)}")
    if kind == "dump":
        if source.redaction.prefixes:
            raise InvalidOptionError("a dump has every value: this page redacts some, use json")
        if source.store is None:
            raise InvalidOptionError("a dump is of a store: export an observed prefix as json")
        return _dumped(source, source.store.at(when).timestamp)
    snapshot = source.keys.at(when)
    rows = (_json if kind == "json" else _csv)(source, snapshot, prefix)
    return _parts(rows)


def _json(source: Source, snapshot: Snapshot[str], prefix: str) -> Iterator[str]:
    for key, value in snapshot.items(prefix or None):
        shown = {"redacted": len(value)} if source.hides(key) else value_json(value)
        yield json.dumps({"key": key_json(key), "value": shown}) + "\n"


def _csv(source: Source, snapshot: Snapshot[str], prefix: str) -> Iterator[str]:
    yield "key,encoding,value,key_encoding\r\n"
    for key, value in snapshot.items(prefix or None):
        line = io.StringIO()
        named = ("redacted", str(len(value))) if source.hides(key) else _named(value)
        name_encoding, name = _named(key.encode(errors="surrogateescape"))
        csv.writer(line).writerow((name, *named, name_encoding))
        yield line.getvalue()


def _named(value: bytes) -> tuple[str, str]:
    found = value_json(value)
    return ("text", found) if isinstance(found, str) else ("base64", found["base64"])


def _parts(rows: Iterator[str]) -> Iterator[bytes]:
    part: list[str] = []
    size = 0
    for text in rows:
        part.append(text)
        size += len(text)
        if size >= PART_BYTES:
            yield "".join(part).encode()
            part, size = [], 0
    if part:
        yield "".join(part).encode()


def _dumped(source: Source, timestamp: int) -> Iterator[bytes]:
    """Yield a dump that another thread writes into a pipe."""
    reading, writing = os.pipe()
    failed: list[BaseException] = []

    def write() -> None:
        assert source.store is not None
        try:
            with open(writing, "wb") as file:
                source.store.dump(file, timestamp)
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=write, name="snapkv-ui-dump", daemon=True)
    thread.start()
    try:
        with open(reading, "rb", buffering=0) as file:
            while part := file.read(PART_BYTES):
                yield part
    finally:  # closing the pipe ends the writer, too
        thread.join()
    if failed:
        raise failed[0]
