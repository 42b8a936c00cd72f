"""A CouchDB database keeps which changefeed wrote a table: an earlier checkpoint does not count."""

from functools import partial

import pytest

from cdcmeta.errors import SinkError
from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors.contracts import Origin
from cdcmeta.scheduler.executors.couch_client import CouchDatabase
from cdcmeta.scheduler.executors.database_sinks import CouchReplicaWriter

from .between import Held, unchecked
from .mirror import TABLE, commit
from .test_couch_fencing import WAIT_S, Call

PLACE = "6fd1a2b3c4d5e6f7/default/feed"
FIRST, AGAIN = Origin(PLACE, 10), Origin(PLACE, 20)
ELSEWHERE = Origin("0123456789abcdef/default/feed", 65)
T1, T2, T7 = Token(9, 1), Token(9, 2), Token(9, 7)


def rejected(call, *arguments):
    with pytest.raises(SinkError) as caught:
        call(*arguments)
    return caught.value


def test_one_that_was_created_again_begins_at_its_own_start(mirror):
    early = mirror.writer(T7, origin=FIRST)
    early.begin(50)
    early.write([commit(51, a=b"1")], 51)
    assert mirror.writer(Token(9, 8), origin=FIRST).begin(50) == 51
    again = mirror.writer(T1, origin=AGAIN)
    assert again.begin(5) == 5
    again.write([commit(6, b=b"6")], 6)
    assert mirror.content() == {"t/a": b"1", "t/b": b"6"}
    assert mirror.record() == (6, T1)
    assert mirror.writer(T2, origin=AGAIN).begin(5) == 6, "its own checkpoint counts"


def test_a_late_writer_of_the_earlier_changefeed_is_fenced(mirror):
    late = mirror.writer(T7, origin=FIRST)
    late.begin(50)
    mirror.writer(T1, origin=AGAIN).begin(5)
    for commits in ([commit(51, a=b"1")], []):
        error = rejected(late.write, commits, 51)
        assert (error.reason, "created later" in str(error)) == ("fenced", True)
    error = rejected(mirror.writer(Token(99, 1), origin=FIRST).begin, 50)
    assert (error.reason, "created later" in str(error)) == ("fenced", True)
    assert mirror.content() == {}
    assert mirror.record() == (5, T1)


def test_a_checkpoint_that_the_earlier_changefeed_puts_last_does_not_count(mirror, between):
    """As CouchDB 2 and 3, which compare no revisions of local documents; the tokens are equal."""
    late = mirror.writer(T1, port=between.port, origin=FIRST)
    again = mirror.writer(T1, origin=AGAIN)
    late.begin(50)
    held = Held()
    between.next(held, "_bulk_docs")
    call = Call(late.write, [commit(51, a=b"1")], 51)
    assert held.came.wait(WAIT_S)
    between.next(unchecked, "PUT")
    again.begin(5)
    held.go.set()
    assert call.ended() is None
    assert mirror.record() == (51, T1)
    again.write([commit(6, b=b"6")], 6)
    assert mirror.content() == {"t/a": b"1", "t/b": b"6"}
    assert mirror.record() == (6, T1)
    assert rejected(late.write, [commit(52, a=b"2")], 52).reason == "fenced"


@pytest.mark.parametrize("token", [T1, Token(99, 1)], ids=str)
def test_a_table_of_another_cluster_is_an_error_with_a_remedy(mirror, token):
    writer = mirror.writer(T7, origin=ELSEWHERE)
    writer.begin(50)
    writer.write([commit(51, a=b"1")], 51)
    error = rejected(mirror.writer(token, origin=FIRST).begin, 5)
    assert error.reason == "failed"
    assert f"{TABLE!r} in this sink belongs to changefeed feed of another cluster" in str(error)
    assert "choose another sink, or empty this one" in str(error)
    assert mirror.record() == (51, T7)


def test_what_was_written_without_an_origin_counts_once(mirror):
    mirror.writer(T2).begin(7)
    assert rejected(mirror.writer(T1, origin=FIRST).begin, 5).reason == "fenced"
    assert mirror.writer(T7, origin=FIRST).begin(5) == 7
    assert mirror.writer(T1, origin=AGAIN).begin(4) == 4


def test_a_replica_keeps_its_origin_too(mirror):
    def begin(token, origin, start):
        writer = partial(CouchReplicaWriter, CouchDatabase(mirror.url(), {}), "f", origin=origin)(
            "users", token
        )
        try:
            return writer.begin(start)
        finally:
            writer.close()

    assert begin(T7, FIRST, 50) == 50
    assert begin(T1, AGAIN, 5) == 5
    assert rejected(begin, T7, FIRST, 50).reason == "fenced"
    assert rejected(begin, T7, ELSEWHERE, 50).reason == "failed"


def test_an_origin_that_is_none_is_an_error(mirror):
    mirror.writer(T1, origin=FIRST).begin(5)
    (row,) = mirror.http.get("/_local_docs", params={"include_docs": "true"}).json()["rows"]
    doc = row["doc"] | {"created": "x"}
    mirror.http.put(f"/{doc['_id']}", json=doc).raise_for_status()
    assert "invalid record" in str(rejected(mirror.writer(T2, origin=FIRST).begin, 5))
