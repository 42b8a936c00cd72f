r"""A CouchDB database as a sink: a document for each key, over HTTP.

    {"_id": "orders/1", "table": "orders/", "ts": 466..., "token": [9, 1], "value": {"apples": 2}}

A value that is a JSON object or array is one in the document, any other is its text. Bytes that are
not UTF-8 are in `value_base64`, and `value` is null. A removal is a deleted document. CouchDB has
no empty ids and reserves ids with a `_` at the beginning: such keys, and keys that begin with
`~`, get a `~` before them; take one away to get the key.

**Revisions.** Each commit of a key has one revision. It follows the revision of the key's commit
before, and its hash contains the commit's timestamp and no random part. So every writer makes the
same chain, and sends the part that the document lacks with `new_edits` false, ancestors included:
CouchDB joins it where they are equal: repeated and late writes change nothing.
The limit: CouchDB keeps 1,000 revisions of a document (`_revs_limit`). A request that is late by
more revisions than that makes a conflict. And only captures may write these documents.

**Checkpoints.** `_local/cdcmeta-...` has the table's checkpoint and token, and is written after the
data. A writer reads it before each batch: a later token fences it. CouchDB 2 and 3 do not compare
the `_rev` of local documents (CouchDB 1, PouchDB and `cdcmeta serve` do), so an earlier writer may
replace it once. That is harmless: it wrote all up to that checkpoint, too, and the later writer
puts its own token back. If the earlier writer is of an earlier changefeed of the same id (`place`
and `created` are the sink's origin), its checkpoint does not count.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import quote

from cdcmeta.argument_checks import bounded_batches
from cdcmeta.errors import SinkError
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.executors.contracts import NOTHING, Claim, Origin, SinkRecord, TableWriter
from cdcmeta.scheduler.executors.couch_client import CouchClient, CouchDatabase
from cdcmeta.scheduler.executors.store_sink import prefix_of
from snapkv import Changes

ESCAPE = "~"
LISTED_DOCS = 1_000
"""The most documents that one request lists."""


class CouchRevision(NamedTuple):
    """A revision of a document; generation 0 is before the first one."""

    generation: int
    hash: str

    def __str__(self) -> str:
        return f"{self.generation}-{self.hash}"


class Head(NamedTuple):
    """The newest revision of a key, and its timestamp; 0 if no capture wrote it."""

    revision: CouchRevision
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
        return Head(CouchRevision(0, ""), 0)
    generation, _, hash = str(row["value"]["rev"]).partition("-")
    revision = CouchRevision(int(generation), hash)
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
        path = f"_all_docs?{start}limit={LISTED_DOCS}&skip={skip}"
        keys, last, count = client.listed("GET", path, _page_of)
        found += keys
        last = last or low
        if count < LISTED_DOCS or (last > low and not last.startswith(low)):
            return sorted({key for key in found if key.startswith(prefix)})
        first, skip = last, 1


def _page_of(rows: list[Any]) -> tuple[list[str], str, int]:
    """Return the keys in rows that captures have written, the last id, and how many rows."""
    keys = [key_of(row["id"]) for row in rows if head_of(row).ts]
    return keys, rows[-1]["id"] if rows else "", len(rows)


WRITE_S = 3.0
"""The longest that a call of a writer may take, in seconds."""
BATCH_BYTES, BATCH_DOCS = 4 << 20, 500
"""What one request has at most, but for one document."""
HEADS_MAX = 10_000
"""The most keys whose newest revisions a writer remembers."""
DEPTH_MAX = 90
"""The depth of the deepest JSON that becomes part of a document; a deeper one is a text, because
servers limit the depth."""
TRIES = 5


class KeyVersion(NamedTuple):
    """The value of a key after a commit; None if it was removed."""

    ts: int
    value: bytes | None


class CouchWriter(TableWriter):
    """Writes a table into a database, each change once in effect; creates it if it is missing.

    Four requests for a batch, three if it wrote these keys before, over a connection of its own.
    `changefeed` names the records of tables, and `origin` says which one of that name it is.
    """

    def __init__(
        self,
        database: CouchDatabase,
        changefeed: str,
        table: str,
        token: Token,
        *,
        write_s: float = WRITE_S,
        origin: Origin | None = None,
    ) -> None:
        self._client, self._claim = CouchClient(database, write_s), Claim(table, token, origin)
        self._table, self._token, self._rev = table, token, ""
        name = hashlib.sha256(f"{changefeed}\n{table}".encode()).hexdigest()[:32]
        self._local = f"_local/cdcmeta-{name}"
        feed = origin._asdict() if origin is not None else {}
        self._about = {"changefeed": changefeed, "table": table, **feed}
        self._heads: dict[str, Head] = {}

    def begin(self, start: int) -> int:
        """Write the token into the table's record; return the checkpoint that counts in it."""
        self._client.begin_call()
        for _ in range(TRIES):
            found = self._read_record()
            if found is None:
                self._create_database()
                found = NOTHING
            reached = max(start, found.checkpoint)
            if self._write_record(reached):
                return reached
        raise self._busy()

    def replace(self) -> Iterator[str]:
        """Return the keys of the table that captures have written, and that are not deleted."""
        return iter(written_keys(self._client, prefix_of(self._table)))

    def write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        """Send what the documents lack, then the checkpoint."""
        self._client.begin_call()
        found = self._own_record()
        if checkpoint and found.token == self._token and found.checkpoint >= checkpoint:
            return  # an earlier try landed
        self._send_all(commits)
        for _ in range(TRIES):
            if not checkpoint or self._write_record(max(checkpoint, found.checkpoint)):
                return
            found = self._own_record()
        raise self._busy()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    # --- the record of the table ---

    def _own_record(self) -> SinkRecord:
        found = self._read_record()
        if found is None:
            raise self._client.error(
                f"has lost the record of table {self._table!r}",
                hint="if the database was deleted, remove the changefeed, and create it again",
            )
        return found

    def _read_record(self) -> SinkRecord | None:
        """Return what counts of the record, None without one; keep its revision."""
        answer = self._client.request("GET", self._local)
        self._rev = ""
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self._client.rejected("a read", answer)
        try:
            record = answer.value
            origin = (record["place"], record["created"]) if "place" in record else ()
            kept = SinkRecord.read(record["token"], record["checkpoint"], origin)
            self._rev = str(record["_rev"])
        except (ValueError, TypeError, KeyError, OverflowError):
            raise self._client.error(
                f"has an invalid record of table {self._table!r}", hint=f"delete {self._local}"
            ) from None
        return self._claim.counting(kept)

    def _write_record(self, checkpoint: int) -> bool:
        """Replace the record; False if it has changed."""
        # a text: servers in JavaScript, such as PouchDB's, round large numbers
        record = {**self._about, "checkpoint": str(checkpoint), "token": list(self._token)}
        if self._rev:
            record["_rev"] = self._rev
        answer = self._client.request("PUT", self._local, _encoded(record))
        if answer.status not in (200, 201, 202, 409):
            raise self._client.rejected("a checkpoint", answer)
        return answer.status != 409

    def _create_database(self) -> None:
        """Create the database unless it exists: that may need more rights than to write."""
        if self._client.request("GET", "").status == 200:
            return
        answer = self._client.request("PUT", "")
        if answer.status not in (200, 201, 202, 412):  # 412: another writer was faster
            raise self._client.rejected("the creation of the database", answer)

    def _busy(self) -> SinkError:
        what = f"reports a conflict of table {self._table!r} {TRIES} times"
        return self._client.error(what, hint="do other programs write its local documents?")

    # --- documents ---

    def _send_all(self, commits: Sequence[Changes[str]]) -> None:
        items = iter(versions_of(commits).items())
        while batch := dict(islice(items, BATCH_DOCS)):
            self._send(batch)

    def _send(self, batch: Mapping[str, list[KeyVersion]]) -> None:
        """Send the commits of some keys, by document id, that the documents lack."""
        self._read_heads([id for id in batch if id not in self._heads])
        known = {id: self._heads[id] for id in batch}
        lacking = ((id, [x for x in own if x.ts > known[id].ts]) for id, own in batch.items())
        made = ((id, *self._doc(id, known[id].revision, own)) for id, own in lacking if own)
        for docs in bounded_batches(made, lambda each: len(each[1]), BATCH_DOCS, BATCH_BYTES):
            self._post_docs([doc for _, doc, _ in docs])
            self._heads |= {id: head for id, _, head in docs}
        while len(self._heads) > HEADS_MAX:
            del self._heads[next(iter(self._heads))]

    def _doc(
        self, id: str, base: CouchRevision, lacking: Sequence[KeyVersion]
    ) -> tuple[bytes, Head]:
        """Return a document with the revisions that follow `base`, and its new head."""
        last, hashes = lacking[-1], [hash_of(id, each.ts) for each in lacking]
        revision = CouchRevision(base.generation + len(lacking), hashes[-1])
        ancestors = [base.hash] if base.generation else []
        path = {"start": revision.generation, "ids": [*reversed(hashes), *ancestors]}
        members = {"_id": id, "_rev": str(revision), "_revisions": path}
        about = {"table": self._table, "ts": last.ts, "token": list(self._token)}
        content = {"_deleted": True} if last.value is None else members_of(last.value)
        return _encoded({**members, **about, **content}), Head(revision, last.ts)

    def _read_heads(self, ids: Sequence[str]) -> None:
        """Read the newest revisions of documents, also of deleted documents."""
        if not ids:
            return

        def read(rows: list[Any]) -> dict[str, Head]:
            found = {row["key"]: head_of(row) for row in rows}
            return {id: found[id] for id in ids}

        self._heads |= self._client.listed("POST", "_all_docs", read, _encoded({"keys": ids}))

    def _post_docs(self, docs: Sequence[bytes]) -> None:
        """Send documents with their revisions; in halves, if that is too large for the server."""
        body = b'{"new_edits":false,"docs":[' + b",".join(docs) + b"]}"
        answer = self._client.request("POST", "_bulk_docs", body)
        if answer.status == 413 and len(docs) > 1:
            half = len(docs) // 2
            self._post_docs(docs[:half])
            self._post_docs(docs[half:])
            return
        if answer.status not in (200, 201, 202):
            raise self._client.rejected("documents", answer)
        if not isinstance(answer.value, list):
            raise self._client.error("answers documents in an unknown format")
        for row in answer.value:  # documents without a row are stored
            if isinstance(row, dict) and "error" in row:
                text = f"{row['error']}: {row.get('reason')}"
                what = f"rejects the document {str(row.get('id'))!r}"
                raise self._client.error(what, text, "change the key or the value at the source")


# --- pure functions ---


def versions_of(commits: Iterable[Changes[str]]) -> dict[str, list[KeyVersion]]:
    """Return the commits of each key, by document id."""
    found: dict[str, list[KeyVersion]] = {}
    for commit in commits:
        for each in commit.changes:
            version = KeyVersion(commit.commit.ts, each.value)
            found.setdefault(id_of(each.key), []).append(version)
    return found


def members_of(value: bytes) -> dict[str, Any]:
    """Return the members of a document that contain a value.

    >>> members_of(b'{"a": 1}'), members_of(b"1.0"), members_of(bytes([255]))
    ({'value': {'a': 1}}, {'value': '1.0'}, {'value': None, 'value_base64': '/w=='})
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"value": None, "value_base64": base64.b64encode(value).decode()}
    if not text.lstrip().startswith(("{", "[")):
        return {"value": text}
    try:
        parsed = json.loads(text, object_pairs_hook=_object)
        _check_depth(parsed, DEPTH_MAX)
        _encoded(parsed)  # raises for lone surrogates and numbers that are not finite
    except (ValueError, RecursionError):
        return {"value": text}
    return {"value": parsed}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a member occurs twice")
    return found


def _check_depth(value: object, left: int) -> None:
    """Raise `ValueError` if a value is nested deeper than `left`."""
    if isinstance(value, dict | list):
        if not left:
            raise ValueError("nested too deep")
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, left - 1)


def _encoded(value: object) -> bytes:
    """Return a value as JSON. Raises `ValueError` if JSON has no such value."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
