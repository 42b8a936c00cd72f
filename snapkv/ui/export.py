"""Exporting the keys of a moment, streamed: lines of JSON, CSV, or a dump."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import threading
from collections.abc import Iterator

from snapkv.errors import InvalidOptionError
from snapkv.reading.snapshot import Snapshot
from snapkv.times import When
from snapkv.ui.source import Source

KINDS = {
    "json": ("application/x-ndjson", "ndjson"),
    "csv": ("text/csv; charset=utf-8", "csv"),
    "dump": ("application/octet-stream", "dump"),
}
PART_BYTES = 64 << 10


def exported(source: Source, when: When | None, prefix: str, kind: str) -> Iterator[bytes]:
    """Return the keys of a moment in parts; a dump has the whole store, spaces included.

    The first read has been made when this returns, so that it raises what a moment can raise.
    Raises `InvalidOptionError` for another kind, or a dump of an observed prefix.
    """
    if kind not in KINDS:
        raise InvalidOptionError(f"format={kind[:40]!r}: give {', '.join(KINDS)}")
    if kind == "dump":
        if source.redaction.prefixes:
            raise InvalidOptionError("a dump has every value: this page redacts some, use json")
        if source.store is None:
            raise InvalidOptionError("a dump is of a store: export an observed prefix as json")
        return _dumped(source, source.store.at(when).timestamp)
    snapshot = source.keys.at(when)
    rows = (_json if kind == "json" else _csv)(source, snapshot, prefix)
    return _parts(rows)


def _json(source: Source, snapshot: Snapshot[str], prefix: str) -> Iterator[str]:
    for key, value in snapshot.items(prefix or None):
        shown = {"redacted": len(value)} if source.hides(key) else value_json(value)
        yield json.dumps({"key": text_json(key), "value": shown}) + "\n"


def _csv(source: Source, snapshot: Snapshot[str], prefix: str) -> Iterator[str]:
    yield "key,encoding,value,key_encoding\r\n"
    for key, value in snapshot.items(prefix or None):
        line = io.StringIO()
        named = ("redacted", str(len(value))) if source.hides(key) else _named(value)
        name_encoding, name = _named(key.encode(errors="surrogateescape"))
        csv.writer(line).writerow((name, *named, name_encoding))
        yield line.getvalue()


def _named(value: bytes) -> tuple[str, str]:
    found = value_json(value)
    return ("text", found) if isinstance(found, str) else ("base64", found["base64"])


def _parts(rows: Iterator[str]) -> Iterator[bytes]:
    part: list[str] = []
    size = 0
    for text in rows:
        part.append(text)
        size += len(text)
        if size >= PART_BYTES:
            yield "".join(part).encode()
            part, size = [], 0
    if part:
        yield "".join(part).encode()


def value_json(value: bytes) -> str | dict[str, str]:
    """Return a value for JSON: its text when it is UTF-8, else base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def text_json(text: str) -> str | dict[str, str]:
    """Return a key or another text for JSON, as `value_json`: other bytes are escaped in it."""
    return text if text.isascii() else value_json(text.encode(errors="surrogateescape"))


def _dumped(source: Source, timestamp: int) -> Iterator[bytes]:
    """Yield a dump that another thread writes into a pipe."""
    reading, writing = os.pipe()
    failed: list[BaseException] = []

    def write() -> None:
        assert source.store is not None
        try:
            with open(writing, "wb") as file:
                source.store.dump(file, timestamp)
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=write, name="snapkv-ui-dump", daemon=True)
    thread.start()
    try:
        with open(reading, "rb", buffering=0) as file:
            while part := file.read(PART_BYTES):
                yield part
    finally:  # closing the pipe ends the writer, too
        thread.join()
    if failed:
        raise failed[0]
