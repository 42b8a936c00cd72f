"""Documents that captures write into CouchDB: their ids, their revisions, and lists of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from cdcmeta.scheduler.executors.sinks.couch_client import CouchClient

ESCAPE = "~"
LISTED_DOCS = 1_000
"""The most documents that one request lists."""


class Revision(NamedTuple):
    """A revision of a document; generation 0 is before the first one."""

    generation: int
    hash: str

    def __str__(self) -> str:
        return f"{self.generation}-{self.hash}"


class Head(NamedTuple):
    """The newest revision of a key, and its timestamp; 0 if no capture wrote it."""

    revision: Revision
    ts: int


def id_of(key: str) -> str:
    """Return the document id of a key.

    >>> [id_of(key) for key in ("a/b", "", "_design/x", "~a")]
    ['a/b', '~', '~_design/x', '~~a']
    """
    return ESCAPE + key if not key or key[0] in ("_", ESCAPE) else key


def key_of(id: str) -> str:
    """Return the key of a document id.

    >>> key_of("~_design/x")
    '_design/x'
    """
    return id.removeprefix(ESCAPE)


def hash_of(id: str, ts: int) -> str:
    """Return the hash of a commit's revision: 16 hexadecimal digits of its timestamp, and 16 more.

    Of two revisions of the same generation CouchDB prefers the greater hash, so the later commit.

    >>> hash_of("orders/1", 466)
    '00000000000001d2acba6f0d9654d7ce'
    """
    digest = hashlib.blake2b(f"{ts} {id}".encode(), digest_size=8)
    return f"{ts:016x}{digest.hexdigest()}"


def head_of(row: Mapping[str, Any]) -> Head:
    """Return the newest revision that a row of `_all_docs` has. Raises `ValueError`, `KeyError`."""
    if row.get("error") == "not_found":
        return Head(Revision(0, ""), 0)
    generation, _, hash = str(row["value"]["rev"]).partition("-")
    revision = Revision(int(generation), hash)
    try:
        ts = int(hash[:16], 16)
    except ValueError:
        ts = 0
    return Head(revision, ts if hash == hash_of(row["key"], ts) else 0)


def written_keys(client: CouchClient, prefix: str) -> list[str]:
    """Return the keys that begin with a prefix and whose newest revision a capture wrote, in order.

    A request for each 1,000 documents from the first such one on. Raises `SinkError`.
    """
    low, found = id_of(prefix) if prefix else "", list[str]()
    first, skip = low, 0
    while True:
        client.begin_call()
        start = f"startkey={quote(json.dumps(first, ensure_ascii=False))}&" if first else ""
        answer = client.request("GET", f"_all_docs?{start}limit={LISTED_DOCS}&skip={skip}")
        if answer.status != 200:
            raise client.rejected("a list of documents", answer)
        try:
            rows = answer.value["rows"]
            found += [key_of(row["id"]) for row in rows if head_of(row).ts]
            last = rows[-1]["id"] if rows else low
        except (ValueError, TypeError, KeyError, AttributeError):
            raise client.error("lists documents in an unknown format") from None
        if len(rows) < LISTED_DOCS or (last > low and not last.startswith(low)):
            return sorted({key for key in found if key.startswith(prefix)})
        first, skip = last, 1
