"""The tree of keys at a moment: one level, without reading what lies below its children."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from snapkv.engine.contract import PAIRS
from snapkv.layout import prefix_end
from snapkv.reading.sources import Source as Moment
from snapkv.times import When
from snapkv.ui.differences import REMOVED, differences
from snapkv.ui.source import Budget, Source

NODES_MAX = 200
PREVIEW_BYTES = 200
KUBERNETES = b"k8s\0"
"""Objects of Kubernetes are named by what may be at their end, so more of them is read."""
KUBERNETES_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Node:
    """A key, or all keys below a `/`, with what changed there in the range.

    `path` is the key, or the prefix with its `/`. A `gone` one existed at the beginning of the
    range, and does not at its end.
    """

    path: str
    name: str
    folder: bool
    size: int | None = None
    revision: int | None = None
    preview: bytes | None = None
    changed: Counter[str] = field(default_factory=Counter)
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """The children of a prefix; `after` continues behind the last one, None at the end.

    `complete` is False if the changes of the range were not all counted. `cut_short` says that the
    time was used up before the level had its limit or its end, even if `nodes` is empty.
    """

    nodes: list[Node]
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
    low = _behind(source, prefix, after) if after is not None else start
    nodes, following = _children(source, moment, low, end, prefix, name, limit, budget)
    cut_short = following is not None and len(nodes) < limit
    nodes = _with_entries(source, moment, nodes)
    if not compared:
        return Level(nodes, following, cut_short=cut_short)
    until = None if following is None else _behind(source, prefix, following)
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


def _behind(source: Source, prefix: str, path: str) -> bytes:
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
) -> tuple[list[Node], str | None]:
    """Return the children from a stored key on, and the last one if there may be more."""
    nodes: list[Node] = []
    base = source.encode(prefix) if prefix else source.base
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
                nodes.append(Node(text, text[len(prefix) :], cut >= 0))
        if budget.over:
            return nodes, None if next(pages, None) is None else last
    return nodes, None


def _with_entries(source: Source, moment: Moment, nodes: list[Node]) -> list[Node]:
    """Return the nodes, the keys among them with size, revision and the beginning of the value."""
    leaves = [source.encode(node.path) for node in nodes if not node.folder]
    found = dict(zip(leaves, moment.get(leaves), strict=True))
    made = []
    for node in nodes:
        kv = None if node.folder else found[source.encode(node.path)]
        if kv is not None:
            node = replace(
                node,
                size=len(kv.value),
                revision=kv.mod_revision,
                preview=None if source.hides(node.path) else _beginning(kv.value),
            )
        made.append(node)
    return made


def _beginning(value: bytes) -> bytes:
    return value[: KUBERNETES_BYTES if value.startswith(KUBERNETES) else PREVIEW_BYTES]


def _merged(
    nodes: list[Node], changed: dict[str, Counter[str]], prefix: str, after: str | None
) -> list[Node]:
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
            known[path] = Node(path, name, folder, changed=counts, gone=True)
    return [known[path] for path in sorted(known, key=_encoded)]


def _encoded(path: str) -> bytes:
    return path.encode(errors="surrogateescape")
