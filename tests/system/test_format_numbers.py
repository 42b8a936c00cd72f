"""The numbers in docs/compatibility.md are those of the code."""

import re
from pathlib import Path

import msgpack
import pytest

from cdcmeta.changes import database_layout as changes
from cdcmeta.generations import StreamId, log_rows
from cdcmeta.generations import generation_layout as generations
from cdcmeta.scheduler.protocol import encoding
from snapkv import layout
from snapkv.archive import manifest
from snapkv.engine.lmdb import records
from snapkv.errors import FormatError
from snapkv.fleet import token
from snapkv.spark import micro_batches
from snapkv.store import dump
from snapkv.tuples import Versionstamp

from .released import RELEASED, VECTORS

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
NUMBERS = {
    "keys of a store, on every engine": layout.FORMAT,
    "directory of an lmdb store": f"{records.FORMAT} or {records.LEASED_FORMAT}",
    "dump": dump.DUMP_FORMAT,
    "archive": manifest.FORMAT,
    "changes database": changes.FORMAT,
    "generations and their consumers": generations.FORMAT,
    "rows of a CDC log": log_rows.FORMAT,
    "checkpoints of Spark's streams": micro_batches.VERSION,
    "checkpoints of Spark's streams of fleets": micro_batches.VERSION,
    "tokens of a fleet's moments and watches": token.FORMAT,
    "messages between captures": encoding.VERSION,
}


@pytest.mark.parametrize("what", NUMBERS)
def test_the_page_has_the_numbers_of_the_code(what):
    assert f"\n| {what} | {NUMBERS[what]} |" in PAGE


def test_the_page_has_no_other_numbers():
    table = PAGE.partition("| what | number |")[2].partition("\n\n")[0]
    numbered = re.findall(r"^\| ([^|]+) \| (\d[^|]*) \|", table, re.MULTILINE)
    assert {what for what, _ in numbered} == set(NUMBERS)


def test_the_page_names_the_files_of_each_release():
    for folder in (*RELEASED, VECTORS / "lmdb_0_1"):
        assert f"`tests/vectors/{folder.name}`" in PAGE


def changed(raw, format):
    """Return a record with another format number."""
    fields = msgpack.unpackb(raw)
    if isinstance(fields, list):
        return msgpack.packb([format, *fields[1:]])
    return msgpack.packb(fields | {"format": format})


@pytest.mark.parametrize("format", [7, "text"])
def test_a_record_of_another_format_names_it(format):
    database = changed(changes.DatabaseRecord(bytes(16)).encode(), format)
    made = generations.Generation(5, bytes(16), bytes(8), 1, 1, 5)
    generation = changed(generations.encode(made), format)
    row = log_rows.LogRow(Versionstamp(5), StreamId.fromhex("00" * 15 + "01"), b"k", b"v")
    ((key, value),) = log_rows.encoded([row]).items()
    assert log_rows.row_of(key, value) == row
    for decode in (
        lambda: changes.DatabaseRecord.decode(database),
        lambda: generations.decode(generations.Generation, generation),
        lambda: log_rows.row_of(key, changed(value, format)),
    ):
        with pytest.raises(FormatError) as caught:
            decode()
        assert caught.value.found == format
        assert ("a newer snapkv" in str(caught.value)) == (format == 7)
