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


def tree(db, id: str) -> list[str]:
    """Return a document's leaves, winner first; deleted ones stand in brackets."""
    (row,) = db.changes(style="all_docs", doc_ids=[id]).rows
    leaves = {doc["_rev"]: doc.get("_deleted", False) for doc in db.open_revs(id)}
    assert list(leaves) == list(row.revs)
    return [f"({short(each)})" if gone else short(each) for each, gone in leaves.items()]
