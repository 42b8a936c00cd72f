"""Revisions by letters, as CouchDB's own tests write them: `rev(2, "c")` is 2-cccc..."""


def rev(position: int, letter: str) -> str:
    """Return a revision whose hash is one letter (a to f) or digit, over and over."""
    return f"{position}-{letter * 32}"


def replicated(id: str, path: str, *, deleted: bool = False, start: int | None = None, **body):
    """Return a document with history: `path` has the newest letter first."""
    doc = {
        "_id": id,
        "_revisions": {"start": start or len(path), "ids": [letter * 32 for letter in path]},
        **body,
    }
    return doc | {"_deleted": True} if deleted else doc


def shape(page) -> list[tuple[str, str, bool]]:
    """Return a page's rows as (id, short revision, deleted)."""
    return [(row.id, short(row.rev), row.deleted) for row in page.rows]


def short(revision: str) -> str:
    """Return `2-c` for 2-cccc..."""
    position, _, hash = revision.partition("-")
    return f"{position}-{hash[0]}"
