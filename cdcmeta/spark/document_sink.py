"""The sink of `cdcmeta.changes`: rows become documents, each batch once.

A row is the newest revision of its document: it replaces the winner. A local document of the
database, `_local/spark-QUERY`, says how far a batch is, as the checkpoints of replicators do; each
commit of the batch writes it, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from cdcmeta.argument_checks import checked_database_name
from cdcmeta.changes import ChangesDB
from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database_layout import space_of
from cdcmeta.changes.documents import Edit, Edited, edit_of, encoded
from cdcmeta.changes.editing import LocalWrite
from cdcmeta.errors import DatabaseExistsError, EditUnknownError
from cdcmeta.spark.feed_options import FORMAT, SEQUENCE, converted
from cdcmeta.spark.feed_tasks import SCHEMA
from snapkv import Absent, AtRevision, CommitTimeoutError, CommitTooLargeError, ConflictError
from snapkv.model import Guard
from snapkv.spark import source_kit as kit

KNOWN = (*kit.OF_SINKS, "database")
DELETED, WHOLE, SEQ = "deleted", "doc", "seq"
DOCS_MAX = 10_000
"""The most documents of one commit where the engine has no limit of guards."""
BESIDE_GUARDS = 3
"""The guards of a commit beside its documents' guards: the database, the marker, one to spare."""


@dataclass(frozen=True, slots=True)
class DocumentOptions(kit.SinkOptions):
    """The database that is written."""

    database: str


def document_options(raw: Mapping[str, str], *, overwrite: bool) -> DocumentOptions:
    """Return the options of a sink that Spark passes. Raises `SourceError`."""
    texts = kit.sink_texts(raw, KNOWN)
    location = kit.location_of(texts, raw, FORMAT)
    if "database" not in texts:
        raise kit.errors.MISSING_OPTION("name the database: .option('database', ...)")
    if overwrite:
        raise kit.errors.INVALID_OPTION("documents are not overwritten as a whole: use mode append")
    with converted():
        options = DocumentOptions(location, texts, None, checked_database_name(texts["database"]))
    options.check()
    return options


class DocumentSink(kit.RowSink):
    """Writes documents."""

    options: DocumentOptions
    order = (SEQ,)

    def __init__(self, schema: StructType, options: DocumentOptions) -> None:
        super().__init__(options)
        kinds = {field.name: field.dataType for field in schema}
        kit.check_names(schema, SCHEMA.names)
        kit.check_kind(kinds, "id", T.StringType())
        for name in (DELETED, WHOLE, SEQ):
            if name in kinds:
                kit.check_kind(kinds, name, SCHEMA[name].dataType)
        fields = [name for name in kinds if name not in SCHEMA.names]
        if (WHOLE in kinds) == bool(fields):
            raise kit.errors.INVALID_SCHEMA(
                "a document is the column doc, as JSON, or all columns that the feed does not "
                f"have: give one of them, not {', '.join(kinds)}"
            )
        arrow = [kit.arrow_schema(schema).field(name) for name in fields]
        if any(map(kit.has_decimals, arrow)):
            raise kit.errors.INVALID_SCHEMA(
                "documents have no DECIMAL: cast it to DOUBLE or STRING"
            )
        self._encoder = kit.Encoder(arrow, kit.JSON) if fields else None

    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns key, value (NULL: a removal) and seq of some rows."""
        names = rows.schema.names
        ids = kit.texts_of(rows, "id")
        gone = rows.column(DELETED).to_pylist() if DELETED in names else [False] * len(rows)
        encoder = self._encoder
        texts = kit.texts_of(rows, WHOLE) if encoder is None else encoder.values(rows, ids)
        values = list(map(_body, ids, texts, map(bool, gone)))
        place = kit.texts_of(rows, SEQ) if SEQ in names else [""] * len(rows)
        for seq in place if SEQ in names else ():
            if seq is None or not SEQUENCE.fullmatch(seq):
                raise kit.errors.VALUE_MALFORMED(f"{SEQ} {seq!r} is not a sequence of a feed")
        return pa.RecordBatch.from_arrays(
            [
                pa.array(ids, pa.large_string()),
                pa.array(values, pa.large_binary()),
                pa.array(place, pa.large_string()),
            ],
            names=["key", "value", SEQ],
        )

    def apply(self, writes: kit.Writes, batch: kit.Batch) -> None:
        """Commit the documents of a batch. Raises `SourceError`."""
        if not writes:
            return
        location = self.options.location
        with (
            kit.as_source_errors(),
            converted(),
            kit.open_to_write(location, self.options.text("writer")) as store,
        ):
            db = ChangesDB(store, self.options.database)
            if not db.exists():
                with suppress(DatabaseExistsError):  # another program created it
                    db.create()
            DocumentCommits(db, batch).add(writes)


class DocumentBatchSink(DocumentSink, kit.OfBatch):
    """Writes the rows of a DataFrame."""


class DocumentStreamSink(DocumentSink, kit.OfStream):
    """Writes the rows of a stream."""


def _body(id: object, text: str | bytes | None, is_gone: bool) -> bytes | None:
    """Return the body of a document, None if it is deleted. Raises `SourceError`."""
    if id is None:
        raise kit.errors.INVALID_SCHEMA("a row has no document: its id is NULL")
    try:
        doc = {} if is_gone and text is None else json.loads(text or "null")
        if isinstance(doc, dict):
            doc = {name: value for name, value in doc.items() if name not in ("_id", "_rev")}
        edit = edit_of(doc, id=str(id))
    except (ValueError, RecursionError) as e:  # what cdcmeta raises is a ValueError, too
        raise kit.errors.VALUE_MALFORMED(f"document {id!r} cannot be written: {e}") from e
    return None if is_gone or edit.deleted else edit.body


class DocumentCommits:
    """Commits the documents of one batch, in as many commits as they need."""

    def __init__(self, db: ChangesDB, batch: kit.Batch) -> None:
        self._db, self._batch = db, batch
        self._key = layout.local_key(f"spark-{batch.name}")
        self._space = db.store.space(space_of(db.name))
        self._marker = kit.Marker() if batch.name is None else self._read()

    def add(self, writes: kit.Writes) -> None:
        """Commit documents. Raises `SourceError`, and as `ChangesDB.bulk`."""
        if self._marker.has(self._batch):
            return
        digest = kit.digest_of(writes)
        done = self._marker.first_of(self._batch, digest)
        most = self._db.store.guards_max
        size = DOCS_MAX if most is None else max(1, most - BESIDE_GUARDS)
        while done < len(writes):
            part = writes[done : done + size]
            marker = kit.Marker(self._batch.number, done + len(part), len(writes), digest)
            try:
                going_on = self._commit(part, marker)
            except (CommitTooLargeError, CommitTimeoutError):  # too many, or another writer won
                if len(part) == 1:
                    raise
                size = max(1, len(part) // 2)
                continue
            if not going_on:
                return
            done += len(part)

    def _commit(self, part: kit.Writes, marker: kit.Marker) -> bool:
        """Commit; return whether to go on: another process may have committed all of it."""
        edits = [Edit(id, body or b"{}", body is None, replaces=True) for id, body in part]
        marker_write = self._marker_write(marker, len(part))
        try:
            found = self._edited(edits, marker_write)
        except ConflictError:
            return self._is_overtaken()
        for each in found:
            if each.error is not None:
                raise each.error
        if self._batch.name is None:
            return True
        (entry,) = self._space.entries_of([self._key])
        if entry is None or entry.value != marker_write.puts[self._key]:  # another driver went on
            return self._is_overtaken()
        self._marker = replace(marker, revision=entry.revision, count=self._marker.count + 1)
        return True

    def _edited(self, edits: list[Edit], local: LocalWrite) -> list[Edited]:
        """Commit edits once; an unknown outcome is looked up. Raises `ConflictError`."""
        for _ in range(kit.TRIES):
            try:
                return self._db.edit(edits, local)
            except EditUnknownError as e:
                unknown = e
            if (found := self._db.resolve(unknown)) is not None:
                return found
        raise unknown

    def _is_overtaken(self) -> bool:
        """Return False if another driver has committed all of the batch; else raise."""
        seen, self._marker = self._marker, self._read()
        self._marker.check_alone(seen, self._batch)
        return False

    def _marker_write(self, marker: kit.Marker, rows: int) -> LocalWrite:
        note = self._batch.note_of(marker.done, rows, marker.total)
        if self._batch.name is None:
            return LocalWrite(note)
        key, revision = self._key, self._marker.revision
        body = {"batch": marker.number, "done": marker.done, "total": marker.total}
        value = encoded(body | {"digest": marker.digest.hex()})
        guard: Guard = Absent(key) if revision is None else AtRevision(key, revision)
        return LocalWrite(note, {key: layout.local_value(self._marker.count + 1, value)}, (guard,))

    def _read(self) -> kit.Marker:
        """Return the marker. One round trip."""
        (entry,) = self._space.entries_of([self._key])
        if entry is None:
            return kit.Marker()
        count, body = layout.local_of(entry.value)
        doc = json.loads(body)
        digest = bytes.fromhex(doc["digest"])
        done = doc["batch"], doc["done"], doc["total"]
        return kit.Marker(*done, digest, entry.revision, count)
