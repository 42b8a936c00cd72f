"""Sinks keep which changefeed wrote: what another one reached does not count for a new one."""

import json
import threading
from functools import partial

import msgpack
import pytest

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.errors import SinkError
from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors.contracts import Origin, SinkRecord
from cdcmeta.scheduler.executors.database_sinks import DatabaseWriter
from cdcmeta.scheduler.executors.database_source import DocumentChange
from cdcmeta.scheduler.executors.json_lines_sink import JsonLinesWriter, file_name
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter, reached_of
from snapkv import Changes, Commit
from snapkv.base.waiting import monotonic

from .sources import commit

PLACE = "6fd1a2b3c4d5e6f7/default/copy"
FIRST, AGAIN = Origin(PLACE, 10), Origin(PLACE, 20)
T1, T2, T7 = Token(9, 1), Token(9, 2), Token(9, 7)
TABLE = "t"


def document(ts, id, number):
    """Return a commit of a new document."""
    head = Commit(ts, 0, ts, "ann@host", None)
    revision = f"{number:032x}"
    leaf = {
        "_id": id,
        "_rev": f"1-{revision}",
        "_revisions": {"start": 1, "ids": [revision]},
        "n": number,
    }
    raw = json.dumps(leaf).encode()
    return Changes(head, (DocumentChange(id, raw, head, (raw,)),))


class Place:
    """A place of a sink, which is opened for several changefeeds."""

    def __init__(self, kind, target, directory):
        self.kind, self.target, self.directory = kind, target, directory
        self._open = []

    def writer(self, origin, token):
        if self.kind == "jsonl":
            writer = JsonLinesWriter(self.directory, TABLE, token, origin=origin)
        else:
            type = StoreTableWriter if self.kind == "store" else DatabaseWriter
            writer = type(self.target, "copy", TABLE, token, origin=origin)
        self._open.append(writer)
        return writer

    def commit(self, ts, name):
        if self.kind == "database":
            return document(ts, name, ts)
        return commit(ts, **{name: b"%d" % ts})

    def content(self):
        """Return what a user sees: the names that were written, in order."""
        if self.kind == "store":
            return sorted(key.removeprefix("t/") for key, _ in self.target.at().items())
        if self.kind == "database":
            database = ChangesDB(self.target, TABLE)
            return sorted(row.id for row in database.changes().rows) if database.exists() else []
        path = self.directory / file_name(TABLE)
        lines = map(json.loads, path.read_bytes().splitlines()) if path.exists() else ()
        return [change["key"].removeprefix("t/") for line in lines for change in line_of(line)]

    def close(self):
        for writer in self._open:
            writer.close()


def line_of(line):
    return line.get("changes", [])


@pytest.fixture(params=["store", "database", "jsonl"])
def place(request, tmp_path):
    with snapkv.open("memory:") as target:
        place = Place(request.param, target, tmp_path / "out")
        yield place
        place.close()


def begun(place, origin, token, start, names=()):
    """Begin, write one commit for each name, and close; return where it began."""
    writer = place.writer(origin, token)
    at = writer.begin(start)
    for ts, name in enumerate(names, at + 1):
        writer.write([place.commit(ts, name)], ts)
    writer.close()
    return at


def rejected(call, *arguments):
    with pytest.raises(SinkError) as caught:
        call(*arguments)
    return caught.value


def test_the_same_changefeed_goes_on_where_it_was(place):
    assert begun(place, FIRST, T1, 5, "abc") == 5
    assert begun(place, FIRST, T2, 6, "d") == 8
    error = rejected(begun, place, FIRST, T1, 9)
    assert (error.reason, "9.2" in str(error)) == ("fenced", True)
    assert place.content() == list("abcd")


@pytest.mark.parametrize("token", [T1, T7, Token(12, 1)], ids=str)
def test_one_that_was_created_again_begins_at_its_own_start(place, token):
    """An owner counts its tokens from 1 again: those of the earlier changefeed may be larger."""
    begun(place, FIRST, T2, 50, "xyz")
    assert begun(place, AGAIN, token, 5, "ab") == 5
    assert begun(place, AGAIN, token, 5) == 7, "its own checkpoint counts"
    assert sorted(place.content()) == list("abxyz")


def test_a_late_writer_of_the_earlier_changefeed_is_fenced(place):
    """Whatever its token is, before and after it wrote."""
    late = place.writer(FIRST, T7)
    late.begin(50)
    late.write([place.commit(51, "x")], 51)
    if place.kind == "jsonl":
        late.close()  # until then the file is locked
    begun(place, AGAIN, T1, 5, "a")
    before = place.content()
    if place.kind != "jsonl":
        for commits in ([place.commit(52, "z")], []):
            error = rejected(late.write, commits, 52)
            assert (error.reason, "created later" in str(error)) == ("fenced", True)
    error = rejected(place.writer(FIRST, Token(99, 1)).begin, 50)
    assert (error.reason, "created later" in str(error)) == ("fenced", True)
    if place.kind != "database":  # documents come before the checkpoint, and are the source's
        assert place.content() == before
    assert begun(place, AGAIN, T2, 5) == 6


@pytest.mark.parametrize(
    ("other", "whose"),
    [
        (Origin("0123456789abcdef/default/copy", 65), "changefeed copy of another cluster or"),
        (Origin("6fd1a2b3c4d5e6f7/eu/copy", 65), "another cluster or store (6fd1a2b3c4d5e6f7/eu/"),
        (Origin("6fd1a2b3c4d5e6f7/default/orders", 65), "another changefeed, orders"),
    ],
    ids=["store", "cluster", "changefeed"],
)
@pytest.mark.parametrize("token", [T1, Token(99, 1)], ids=str)
def test_a_table_of_another_changefeed_is_an_error_with_a_remedy(place, other, whose, token):
    begun(place, other, T7, 50, "x")
    error = rejected(begun, place, FIRST, token, 5, "a")
    assert error.reason == "failed", "a token of another cluster says nothing"
    assert "'t' in this sink belongs to" in str(error)
    assert whose in str(error)
    assert "choose another sink, or empty this one" in str(error)
    assert place.content() == ["x"]
    assert begun(place, other, Token(9, 8), 50) == 51, "it is as it was"


def test_what_was_written_without_an_origin_counts_once(place):
    """As by an earlier version: the first changefeed of any id goes on with it."""
    begun(place, None, T2, 5, "ab")
    assert rejected(begun, place, FIRST, T1, 5).reason == "fenced"
    assert begun(place, FIRST, T7, 5, "c") == 7
    assert begun(place, AGAIN, T1, 4) == 4
    assert rejected(begun, place, Origin("x/y/z", 30), T7, 4).reason == "failed"
    assert begun(place, None, T7, 4) == 4


def test_records_of_three_members_are_read(tmp_path):
    with snapkv.open("memory:") as target:
        raw = msgpack.packb([9, 1, 7])
        assert reached_of(raw) == SinkRecord(T1, 7)
        target.space("changefeed/copy").commit(puts={b"t": raw, b"\xfft": raw})
        assert partial(StoreTableWriter, target, "copy", origin=FIRST)("t", T2).begin(5) == 7
        entry = target.space("changefeed/copy").entry(b"t")
        assert reached_of(entry.value) == SinkRecord(T2, 7, FIRST)
    lines = tmp_path / file_name("t")
    lines.write_bytes(b'{"checkpoint": 7, "token": [9, 1]}\n')
    writer = partial(JsonLinesWriter, tmp_path, origin=FIRST)("t", T2)
    assert writer.begin(5) == 7
    writer.close()
    last = json.loads(lines.read_bytes().splitlines()[-1])
    assert last == {"checkpoint": 7, "token": [9, 2], "feed": [PLACE, 10]}


@pytest.mark.parametrize("feed", [["x"], [1, "x"], {}, None, 5], ids=str)
def test_an_origin_that_is_none_is_an_error(tmp_path, feed):
    record = {"checkpoint": 7, "token": [9, 1], "feed": feed}
    (tmp_path / file_name("t")).write_bytes(json.dumps(record).encode() + b"\n")
    with pytest.raises(SinkError, match="not a checkpoint"):
        partial(JsonLinesWriter, tmp_path, origin=FIRST)("t", T2).begin(5)
    with pytest.raises(SinkError, match="invalid record"):
        reached_of(msgpack.packb([9, 1, 7, feed]))


def test_documents_and_their_checkpoint_share_the_time_of_one_write(monkeypatch):
    """A target that is slow with the documents leaves the checkpoint less time."""
    write_s, slow_s, until = 2.0, 0.3, []
    with snapkv.open("memory:") as target:
        writer = partial(DatabaseWriter, target, "copy", write_s=write_s, origin=FIRST)(TABLE, T1)
        writer.begin(5)

        def noting(real):
            def call(*arguments, timeout, **options):
                until.append(monotonic() + timeout)
                threading.Event().wait(slow_s)
                return real(*arguments, timeout=timeout, **options)

            return call

        monkeypatch.setattr(ChangesDB, "edit", noting(ChangesDB.edit))
        monkeypatch.setattr(target, "commit", noting(target.commit))
        began = monotonic()
        writer.write([document(6, "a", 6)], 6)
        assert len(until) == 2, "the documents, and the checkpoint"
        assert monotonic() - began >= 2 * slow_s
        assert max(until) <= began + write_s + slow_s / 2, "a time of its own would end later"
        assert ChangesDB(target, TABLE).get("a")["n"] == 6
