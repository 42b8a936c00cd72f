"""Views of `snapkv ui` for cdcmeta's data: databases, generations, changefeeds.

Each module of *pages* has queries, which answer as of a moment, as plain data, and the pages that
join an answer with a request: `database_pages`, `changefeed_pages` with `table_moves`,
`generation_pages` with `generation_logs`. *Pictures* are SVG: a tree of revisions, a ring of token
ranges, lanes over time. `views` is what the page of snapkv finds by its entry point
`snapkv.ui.views`.

Needs the extra `ui`, and for generations the extra `generations`.
"""

from collections.abc import Callable
from importlib import import_module

from cdcmeta import errors
from snapkv import SnapshotKV, When
from snapkv.base.extras import requires_extra

with requires_extra("ui", "the page"):
    from cdcmeta.ui.changefeed_pages import (
        changefeed_page,
        changefeeds_page,
        has_changefeeds,
        table_page,
    )
    from cdcmeta.ui.database_pages import (
        database_page,
        databases_page,
        document_page,
        has_databases,
    )
    from snapkv.ui import Context, ExtraViews, Link, Page

__all__ = ["views"]

GENERATIONS = "generations/"
"""The prefix of the names of the spaces of logs; the package of generations needs NumPy."""
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
    {**dict.fromkeys(NOT_FOUND, 404), **dict.fromkeys(INVALID, 400), errors.CDCMetaError: 500},
)
