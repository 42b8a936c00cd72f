"""Additions to the page of `snapkv ui`, by the entry point `snapkv.ui.views`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module

from markupsafe import Markup

from cdcmeta import errors
from cdcmeta.ui.changefeed_pages import changefeed_page, changefeeds_page, table_page
from cdcmeta.ui.changefeeds import has_changefeeds
from cdcmeta.ui.databases import (
    ROWS_MAX,
    Document,
    RevisionTree,
    document,
    feed,
    feed_by_id,
    has_databases,
    list_databases,
    winner_body,
)
from cdcmeta.ui.page_requests import looks_longer, needed, store_of
from cdcmeta.ui.past import Edits, edits_back
from cdcmeta.ui.svg import picture, shape, text
from snapkv import SnapshotKV, When
from snapkv.ui import Context, ExtraViews, Link, Page
from snapkv.ui.extending import Row, row, way_of

# --- the pages of changes databases ---

# --- a document's revisions as a picture: branches from left to right, the winner's on top ---

STEP, LANE = 44, 36
MARGIN_X, MARGIN_Y, RADIUS = 34, 22, 8
LABELS = {"wins": "the winner", "conflict": "a conflict", "deleted": "deleted", "inner": ""}


def tree_picture(tree: RevisionTree) -> Markup:
    """Return the newest revisions of a document's branches; each is labelled with its position."""
    parts = []
    places = [(MARGIN_X + n.column * STEP, MARGIN_Y + n.lane * LANE) for n in tree.nodes]
    for node, (x, y) in zip(tree.nodes, places, strict=True):
        if node.parent is not None:
            from_x, from_y = places[node.parent]
            bend = f"M{from_x} {from_y} C{from_x + STEP // 2} {from_y} {from_x + STEP // 2} {y}"
            parts.append(shape("path", "edge", d=f"{bend} {x} {y}"))
        elif tree.older and node.column == 0:
            parts.append(shape("path", "edge older", d=f"M{x - MARGIN_X + 4} {y} L{x} {y}"))
    for node, (x, y) in zip(tree.nodes, places, strict=True):
        title = ": ".join(filter(None, (node.rev, LABELS[node.kind])))
        parts.append(shape("circle", f"node {node.kind}", title, cx=x, cy=y, r=RADIUS))
        parts.append(text(x, y + RADIUS + 11, node.rev.partition("-")[0], "middle small"))
    width = 2 * MARGIN_X + (tree.columns - 1) * STEP
    height = 2 * MARGIN_Y + (tree.lanes - 1) * LANE
    title = f"{len(tree.nodes)} revisions in {tree.lanes} branches"
    return picture(width, height, title, parts, name="revisions")


# --- database_pages ---

ROWS_ASKED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class DocumentData:
    """A document, its edits up to the moment, and what differs from the beginning of the range.

    The bodies of a `hidden` one are redacted.
    """

    document: Document
    edits: Edits
    compared: Row | None
    hidden: bool


def databases_page(c: Context) -> Page:
    """Show the databases of the store at the moment."""
    found = list_databases(store_of(c), c.at, start=c.state["start"], exact=looks_longer(c))
    return Page("cdcmeta/databases.html", "Databases", found)


def database_page(c: Context) -> Page:
    """Show a database's documents at the moment: the newest change first, or by id."""
    name, by = needed(c, "db"), c.state.choice("by", "change", "id")
    limit = c.state.limit(ROWS_MAX, ROWS_ASKED_MAX)
    listed = feed if by == "change" else feed_by_id
    start, exact = c.state["start"], looks_longer(c)
    found = listed(store_of(c), name, c.at, start=start, limit=limit, exact=exact)
    return Page("cdcmeta/database.html", name, found, {"by": by})


def document_page(c: Context) -> Page:
    """Show a document at the moment: its branches, a body, its edits, and what changed.

    It is redacted as a key `DATABASE/ID` is.
    """
    store, name, id = store_of(c), needed(c, "db"), needed(c, "id")
    found = document(store, name, id, c.at, rev=c.state["rev"])
    until = f"rev:{c.state['older']}" if c.state["older"] else c.at
    edits = edits_back(c.source, name, id, until, budget=c.budget())
    compared, key = None, f"{name}/{id}"
    hidden = c.source.hides(key)
    if c.compared and not c.state["rev"]:
        before, after = (winner_body(store, name, id, when) for when in (c.since, c.at))
        compared = row(c.source, key, before, after) if before != after else None
    more = {"picture": tree_picture(found.tree), "way": way_of(c)}
    shown = replace(found, body=None) if hidden else found
    return Page("cdcmeta/document.html", id, DocumentData(shown, edits, compared, hidden), more)


# --- extra ---

GENERATIONS = "generations/"
"""What the names of the spaces of logs begin with; the package of generations needs NumPy."""
NOT_FOUND = (
    errors.DatabaseNotFoundError,
    errors.DocumentNotFoundError,
    errors.GenerationNotFoundError,
    errors.ChangefeedNotFoundError,
)
INVALID = (
    errors.InvalidArgumentError,
    errors.InvalidDocumentError,
    errors.InvalidNameError,
    errors.InvalidRevisionError,
    errors.InvalidSequenceError,
)


def has_generations(store: SnapshotKV, when: When | None = None) -> bool:
    """Return whether a store holds logs of generations at a moment; one round trip."""
    return next(store.spaces(GENERATIONS, when), None) is not None


def _of_generations(name: str) -> Callable[[Context], Page]:
    """Return a page that imports NumPy when it is asked for. It raises `MissingExtraError`."""

    def page(c: Context) -> Page:
        made: Page = getattr(import_module("cdcmeta.ui.generation_pages"), name)(c)
        return made

    return page


views = ExtraViews(
    "cdcmeta",
    "cdcmeta.ui",
    {
        "/databases": databases_page,
        "/database": database_page,
        "/document": document_page,
        "/generations": _of_generations("generations_page"),
        "/generation": _of_generations("generation_page"),
        "/changefeeds": changefeeds_page,
        "/changefeed": changefeed_page,
        "/table": table_page,
    },
    [
        Link("/databases", "Databases", has_databases),
        Link("/generations", "Generations", has_generations),
        Link("/changefeeds", "Changefeeds", has_changefeeds),
    ],
    {"cdcmeta.css": "text/css; charset=utf-8"},
    {
        **dict.fromkeys(NOT_FOUND, 404),
        **dict.fromkeys(INVALID, 400),
        errors.CDCMetaError: 500,
    },
)
