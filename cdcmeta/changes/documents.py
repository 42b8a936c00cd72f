"""Documents: their checks, their JSON, and the edits that they describe."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any, TypeAlias

from cdcmeta.changes.revisions import POSITION_MAX, Leaf, Revision, Tree, path_of
from cdcmeta.changes.sequence import Sequence
from cdcmeta.errors import (
    CDCMetaError,
    DocumentConflictError,
    InvalidDocumentError,
    InvalidIdError,
    InvalidRevisionError,
)
from snapkv.tuples import pack

Doc: TypeAlias = dict[str, Any]
"""A JSON object with `_id`, `_rev`, and `_deleted` if it is deleted."""

ID_BYTES_MAX = 256
"""The most bytes of an id, which is part of keys: LMDB's keys have at most 511 bytes, prefixes
included."""
DEPTH_MAX = 100
TOO_DEEP = f"the document is nested more than {DEPTH_MAX} deep"
MEMBERS = frozenset({"_id", "_rev", "_deleted", "_revisions", "_attachments"})
IGNORED = frozenset({"_local_seq", "_conflicts", "_deleted_conflicts", "_revs_info"})
"""The members that `get` may add, and that CouchDB's clients send back."""
_KNOWN = MEMBERS | IGNORED
quoted = encode_basestring_ascii
"""Returns a text as JSON in ASCII, with lone surrogates escaped."""
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of a document: `base` is the revision it replaces; a replicated edit has `leaf`.

    One that `replaces` has none: it follows the winner, whatever that is. A replicated edit removes
    the leaves that are `superseded`: where it comes from, they are ancestors.
    """

    id: str
    body: bytes
    deleted: bool
    base: Revision | None = None
    leaf: Leaf | None = None
    replaces: bool = False
    superseded: frozenset[Revision] = frozenset()


@dataclass(frozen=True, slots=True)
class Edited:
    """The result of an edit: the document's revision and sequence, or an error.

    `seq` is None if nothing was written, because a replicated revision was stored already.
    """

    id: str
    rev: str | None = None
    seq: Sequence | None = None
    error: CDCMetaError | None = None

    @property
    def ok(self) -> bool:
        """Whether it is stored."""
        return self.error is None


# --- parsing callers' documents ---


def edit_of(doc: object, rev: str | None = None, *, id: str | None = None) -> Edit:
    """Return the edit that a document describes; `rev` overrides its `_rev`.

    Without an `_id` it gets a new one. Raises `InvalidDocumentError`, `InvalidRevisionError`.
    """
    fields = fields_of(doc)
    base = rev if rev is not None else fields.get("_rev")
    own = id if id is not None else fields["_id"] if "_id" in fields else uuid.uuid4().hex
    return Edit(
        checked_id(own),
        encoded(own_members(fields)),
        _deleted(fields),
        base=None if base is None else Revision.parse(base),
    )


def replicated_edit_of(doc: object) -> Edit:
    """Return the edit of a replicated document, with `_revisions` or at least its `_rev`.

    Raises `InvalidDocumentError`, `InvalidRevisionError`.
    """
    fields = fields_of(doc)
    if "_id" not in fields:
        raise InvalidDocumentError("a replicated document needs an _id")
    deleted = _deleted(fields)
    leaf = _leaf(fields, not deleted)
    return Edit(checked_id(fields["_id"]), encoded(own_members(fields)), deleted, leaf=leaf)


def _leaf(fields: Mapping[str, Any], not_deleted: bool) -> Leaf:
    rev = None if fields.get("_rev") is None else Revision.parse(fields["_rev"])
    revisions = fields.get("_revisions")
    if revisions is None:
        if rev is None:
            raise InvalidDocumentError("a replicated document needs a _rev or _revisions")
        return Leaf(not_deleted, rev)
    try:
        start, ids = revisions["start"], revisions["ids"]
        hashes = [Revision.parse(f"1-{each}").hash for each in ids]
    except (TypeError, KeyError) as e:
        raise InvalidDocumentError("_revisions must be an object with start and ids") from e
    if isinstance(start, bool) or not isinstance(start, int) or not isinstance(ids, list):
        raise InvalidDocumentError(
            "_revisions must be an object with a number start and a list ids"
        )
    leaf = path_of(start, hashes, not_deleted)
    if rev is not None and leaf.revision != rev:
        raise InvalidRevisionError(f"_rev {rev} is not the newest of _revisions: {leaf.revision}")
    return leaf


def fields_of(doc: object) -> Mapping[str, Any]:
    """Return a document's members. Raises `InvalidDocumentError` for unknown special ones."""
    if not isinstance(doc, Mapping):
        raise InvalidDocumentError("Document must be a JSON object")
    for name in doc:
        if not isinstance(name, str):
            raise InvalidDocumentError(f"a member's name must be text, not {type(name).__name__}")
        if name.startswith("_") and name not in _KNOWN:
            raise InvalidDocumentError(f"Bad special document member: {name}")
    if doc.get("_attachments"):
        raise InvalidDocumentError("attachments are not supported: this is a store of metadata")
    return doc


def checked_id(id: object, *, local: bool = False) -> str:
    """Return a valid document id. Raises `InvalidIdError`."""
    if not isinstance(id, str):
        raise InvalidIdError("Document id must be a string")
    if not id:
        raise InvalidIdError("Document id must not be empty")
    if not local and id.startswith("_") and not id.startswith("_design/"):
        raise InvalidIdError("Only reserved document ids may start with underscore.")
    try:
        raw = id.encode()
        size = len(raw) + raw.count(0)  # as in keys
    except UnicodeEncodeError:
        raise InvalidIdError("Document id must be valid UTF-8") from None
    if size > ID_BYTES_MAX:
        raise InvalidIdError(f"Document id has {size} bytes, more than {ID_BYTES_MAX}")
    return id


def is_id(id: object) -> bool:
    """Return whether a document may have this id."""
    try:
        checked_id(id)
    except InvalidDocumentError:
        return False
    return True


def own_members(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document without its special members."""
    return {name: value for name, value in fields.items() if not name.startswith("_")}


def _check_depth(value: object, left: int = DEPTH_MAX) -> None:
    """Raise `InvalidDocumentError` for values that are nested deeper than `DEPTH_MAX`."""
    if isinstance(value, dict | list | tuple):
        if left == 0:
            raise InvalidDocumentError(TOO_DEEP)
        for inner in value.values() if isinstance(value, dict) else value:
            if isinstance(inner, dict | list | tuple):
                _check_depth(inner, left - 1)


def encoded(value: object) -> bytes:
    """Return a value as JSON with sorted members: equal values have equal bytes.

    Raises `InvalidDocumentError` for values that JSON cannot express.
    """
    try:
        text = _JSON.encode(value)
        raw = text.encode()
    except (TypeError, ValueError) as e:
        raise InvalidDocumentError(f"the document is not valid JSON: {e}") from e
    except RecursionError:
        raise InvalidDocumentError(TOO_DEEP) from None
    if text.count("[") + text.count("{") > DEPTH_MAX:  # fewer cannot be nested any deeper
        _check_depth(value)
    return raw


def _deleted(fields: Mapping[str, Any]) -> bool:
    deleted = fields.get("_deleted", False)
    if not isinstance(deleted, bool):
        raise InvalidDocumentError("_deleted is true or false")
    return deleted


# --- applying edits ---


def edited(tree: Tree | None, edit: Edit, revs_limit: int) -> tuple[Tree, Revision]:
    """Return a document's tree after an edit, and the edit's revision.

    The same tree means that nothing changes. The rules are RFC 001's. An edit names the leaf that
    it replaces, which must not be deleted. An edit that names none creates a document, or continues
    a deleted winner. A replicated edit never conflicts. Raises `DocumentConflictError`.
    """
    if edit.leaf is not None:
        new = edit.leaf.revision
        if tree is None:
            return Tree.of([edit.leaf.stemmed(revs_limit)]), new
        return tree.merged(edit.leaf, revs_limit).without(edit.superseded), new
    parent = _parent(tree, edit)
    new = revision_of(edit, parent)
    if tree is None or parent is None:
        return Tree.of([Leaf(not edit.deleted, new)]), new
    return tree.extended(parent, new, not edit.deleted, revs_limit), new


def _parent(tree: Tree | None, edit: Edit) -> Leaf | None:
    if edit.replaces:
        return None if tree is None else tree.winner
    if tree is None:
        parent, fits = None, edit.base is None
    elif edit.base is None:
        parent = tree.winner
        fits = not parent.not_deleted and not edit.deleted
    else:
        parent = tree.leaf(edit.base)
        fits = parent is not None and parent.not_deleted
    if not fits:
        raise DocumentConflictError(edit.id)
    return parent


def revision_of(edit: Edit, parent: Leaf | None) -> Revision:
    """Return the revision of an edit; the same edit has the same revision on every node."""
    position, hash = (0, b"") if parent is None else parent.revision
    if position == POSITION_MAX:
        raise DocumentConflictError(edit.id, "no revision can follow this one")
    named = pack((edit.deleted, position, hash, edit.body))
    digest = hashlib.md5(named, usedforsecurity=False)
    return Revision(position + 1, digest.digest())


def shown(id: str, leaf: Leaf, body: bytes, **more: Any) -> Doc:
    """Return a stored leaf as callers see it, with more members after its own."""
    doc: Doc = {"_id": id, "_rev": str(leaf.revision)}
    if not leaf.not_deleted:
        doc["_deleted"] = True
    doc.update(json.loads(body))
    return doc | more


def shown_as_json(id: str, leaf: Leaf, body: bytes, **more: Any) -> bytes:
    """Return the result of `shown` as JSON, built from the stored bytes without parsing them."""
    position, hash = leaf.revision
    deleted = "" if leaf.not_deleted else ',"_deleted":true'
    head = f'{{"_id":{quoted(id)},"_rev":"{position}-{hash.hex()}"{deleted}'.encode()
    tail = b"," + encoded(more)[1:] if more else b"}"
    return b"%b,%b%b" % (head, body[1:-1], tail) if len(body) > 2 else head + tail


def revisions_member(leaf: Leaf) -> dict[str, Any]:
    """Return the value of a leaf's `_revisions`."""
    hashes = (leaf.revision.hash, *leaf.ancestors)
    return {"start": leaf.revision.position, "ids": [each.hex() for each in hashes]}
