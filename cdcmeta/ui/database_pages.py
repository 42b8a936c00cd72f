"""The pages of changes databases."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdcmeta.ui.databases import (
    ROWS_MAX,
    Document,
    document,
    feed,
    feed_by_id,
    list_databases,
    winner_body,
)
from cdcmeta.ui.past import Edits, edits_back
from cdcmeta.ui.requests import looks_longer, needed, store_of
from cdcmeta.ui.tree_picture import tree_picture
from snapkv.ui import Context, Page
from snapkv.ui.differences import Row, row
from snapkv.ui.views import way_of

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
