"""Servers that reject, hang, break off or answer nonsense: errors in time, and nothing is lost."""

import ssl
import time
from functools import partial

import pytest
from couch_http.served import Served
from etcd_server.certificates import make_certificates
from etcd_server.processes import free_port

import snapkv
from cdcmeta.couch_http import Limits, Login
from cdcmeta.errors import SinkError
from cdcmeta.scheduler import TableState
from cdcmeta.scheduler.executors import pipeline
from cdcmeta.scheduler.executors.couch_client import CouchDatabase
from cdcmeta.scheduler.executors.couch_sink import CouchWriter
from cdcmeta.scheduler.executors.prefix_source import PrefixTableSource

from .between import Between, answers, closes, hangs, passes_and_closes, trickles
from .driving import opened as opened_executor
from .mirror import T1, T2, TABLE, Mirror, commit

pytestmark = pytest.mark.slow

SOON_S = 5
PASSWORD = "a secret, too long to be found by chance"
LOGIN = {"CDCMETA_SINK_USER": "ann", "CDCMETA_SINK_PASSWORD": PASSWORD}


def error_of(call, *arguments):
    with pytest.raises(SinkError) as raised:
        call(*arguments)
    assert raised.value.reason == "failed"
    return str(raised.value)


REJECTIONS = {
    401: "CDCMETA_SINK_USER and CDCMETA_SINK_PASSWORD",
    403: "CDCMETA_SINK_USER and CDCMETA_SINK_PASSWORD",
    404: "whether the database was deleted",
    413: "limit of a request",
    429: "the server limits requests",
    500: "look into the log of the server",
    503: "look into the log of the server",
    302: "is it a CouchDB server?",
}


@pytest.mark.parametrize("what", ["_all_docs", "_bulk_docs", "PUT"])
def test_a_rejected_request_is_an_error_that_says_what_to_do(mirror, between, what):
    writer = mirror.writer(T1, port=between.port)
    writer.begin(1)
    bodies = b'{"error":"planned","reason":"by the test"}', b"<html>planned</html>" * 900
    for ts, (status, hint) in enumerate(REJECTIONS.items(), 2):
        batch = [commit(ts, **{f"k{ts}": b"1"})]
        for body in bodies:
            between.next(answers(status, body), what)
            message = error_of(writer.write, batch, ts)
            assert f"http://127.0.0.1:{between.port}/{mirror.name} rejects" in message
            assert f"status {status} (" in message
            assert "planned" in message
            assert hint in message
            assert len(message) < 500
        assert mirror.record() == (ts - 1, T1)
        writer.write(batch, ts)
        assert len(mirror.content()) == ts - 1
        assert mirror.record() == (ts, T1)


@pytest.mark.parametrize("status", [401, 403, 500])
@pytest.mark.parametrize("what", ["GET", "PUT"])
def test_a_rejected_beginning_is_an_error(mirror, between, what, status):
    writer = mirror.writer(T1, port=between.port)
    between.next(answers(status), what)
    assert f"status {status} (planned: a test)" in error_of(writer.begin, 1)
    assert writer.begin(1) == 1


def test_a_document_that_a_rule_of_the_database_rejects_is_an_error(mirror, between):
    writer = mirror.writer(T1, port=between.port)
    writer.begin(1)
    row = b'[{"id":"t/a","error":"forbidden","reason":"not on Mondays"}]'
    between.next(answers(201, row), "_bulk_docs")
    message = error_of(writer.write, [commit(5, a=b"1")], 5)
    assert "rejects the document 't/a' (forbidden: not on Mondays)" in message


NONSENSE = [b"", b"<html>", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b"1e999", b'"text"']
LISTS = [b"{}", b"[]", b'{"rows":[]}', b'{"rows":1}', b'{"rows":[1]}', b'{"rows":[{"key":"t/a"}]}']
ROW = b'{"rows":[{"key":"t/a","value":{"rev":"%s"}}]}'
RECORDS = [
    *(b"{}", b"[]", b'{"token":[1],"checkpoint":1,"_rev":"0-1"}'),
    *(b'{"token":[1,1],"checkpoint":"x","_rev":"0-1"}', b'{"token":[1,1e999],"checkpoint":1}'),
]


@pytest.mark.parametrize(
    ("what", "bodies"),
    [
        ("_all_docs", [*NONSENSE, *LISTS, ROW % b"x", ROW % b"-"]),
        ("_bulk_docs", [*NONSENSE, b"{}"]),
        ("GET", [*NONSENSE, *RECORDS]),
    ],
)
def test_an_answer_without_sense_is_an_error(mirror, between, what, bodies):
    writer = mirror.writer(T1, port=between.port)
    writer.begin(1)
    for ts, body in enumerate(bodies, 2):
        between.next(answers(200, body), what)
        batch = [commit(ts, **{f"k{ts}": b"1"})]
        message = error_of(writer.write, batch, ts)
        assert f"/{mirror.name} " in message, body
        assert len(message) < 500
        writer.write(batch, ts)
        assert len(mirror.content()) == ts - 1


def test_an_answer_without_end_is_an_error(mirror, between, monkeypatch):
    monkeypatch.setattr("cdcmeta.scheduler.executors.couch_client.ANSWER_BYTES_MAX", 10_000)
    writer = mirror.writer(T1, port=between.port)
    writer.begin(1)
    between.next(answers(200, b" " * 20_000), "_all_docs")
    message = error_of(writer.write, [commit(5, a=b"1")], 5)
    assert "answers POST with more than 10000 bytes" in message
    writer.write([commit(5, a=b"1")], 5)
    assert mirror.content() == {"t/a": b"1"}


def test_a_server_that_does_not_run_is_an_error_in_time():
    sink = partial(CouchWriter, CouchDatabase(f"couch+http://127.0.0.1:{free_port()}/m", {}), "f")
    message = error_of(sink(TABLE, T1).begin, 1)
    assert "cannot be reached ([Errno 111] Connection refused): check the URL" in message


@pytest.mark.parametrize("fault", [hangs, trickles])
@pytest.mark.parametrize("what", ["GET", "_all_docs", "_bulk_docs", "PUT"])
def test_a_server_that_hangs_is_an_error_in_time(mirror, between, fault, what):
    mirror.writer(T1).begin(1)
    writer = mirror.writer(T1, port=between.port, write_s=0.3)
    between.next(fault, what)
    start = time.monotonic()
    message = error_of(writer.write, [commit(5, a=b"1")], 5)
    assert 0.2 < time.monotonic() - start < SOON_S
    assert "did not answer within 0.3 s: check the URL of the sink" in message
    between._faults.clear()
    mirror.writer(T1).write([commit(5, a=b"1")], 5)
    assert mirror.content() == {"t/a": b"1"}


@pytest.mark.parametrize("what", ["GET", "_all_docs", "_bulk_docs", "PUT"])
def test_a_connection_that_ends_is_opened_again(mirror, between, what):
    writer = mirror.writer(T1, port=between.port)
    writer.begin(1)
    between.next(closes, what)
    writer.write([commit(5, a=b"1")], 5)
    between.next(passes_and_closes, what)
    writer.write([commit(6, a=b"2", b=b"1")], 6)
    between.next(closes, what, times=2)
    assert "cannot be reached" in error_of(writer.write, [commit(7, a=b"3", c=b"1")], 7)
    writer.write([commit(7, a=b"3", c=b"1")], 7)
    assert mirror.content() == {"t/a": b"3", "t/b": b"1", "t/c": b"1"}
    assert mirror.docs()["t/a"]["_rev"].startswith("3-")


def test_a_server_that_fails_for_a_while_gets_everything(mirror, between, monkeypatch):
    monkeypatch.setattr(pipeline, "RETRY_S_MIN", 0.05)
    with snapkv.open("memory:") as source:
        ts = source.save("t/a", b"0")
        sink = partial(CouchWriter, CouchDatabase(mirror.url(between.port), {}), "f")
        executor = opened_executor(
            PrefixTableSource(source, {TABLE: TABLE}), sink, [TABLE], state_at=ts
        )
        for is_prepare in (True, False):
            assert executor.add_table(TABLE, 1, T1, is_prepare=is_prepare)
            until(lambda p=is_prepare: executor.is_add_finished(TABLE, is_prepare=p))
        until(lambda: executor.status(TABLE).progress.checkpoint >= ts)
        between.next(answers(500), "_bulk_docs", times=2)
        between.next(closes, "PUT", times=2)
        for n in range(20):
            ts = source.commit(puts={f"t/{n}": b"1", "t/a": b"%d" % n}).ts
        until(lambda: executor.status(TABLE).progress.checkpoint >= ts)
        assert executor.status(TABLE).state is TableState.REPLICATING
        assert mirror.content() == dict(source.at().items())
        assert executor.close(SOON_S)


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.003)


# --- logins ---


@pytest.fixture
def locked():
    with snapkv.open("memory:") as store, Served(store, login=Login("ann", PASSWORD)) as served:
        mirror = Mirror(served.server.url, LOGIN)
        mirror.http.auth = ("ann", PASSWORD)
        yield mirror
        mirror.close()


def test_a_login_from_the_environment_is_used(locked):
    writer = locked.writer(T1)
    writer.begin(1)
    writer.write([commit(5, a=b"1")], 5)
    assert locked.content() == {"t/a": b"1"}


@pytest.mark.parametrize("environment", [{}, {**LOGIN, "CDCMETA_SINK_PASSWORD": f"not {PASSWORD}"}])
def test_a_missing_or_wrong_login_is_an_error_that_does_not_show_it(locked, environment):
    locked.environment = environment
    message = error_of(locked.writer(T1).begin, 1)
    assert "status 401 (unauthorized: " in message
    assert "set CDCMETA_SINK_USER and CDCMETA_SINK_PASSWORD to a user that may write" in message
    assert PASSWORD not in message


def test_a_login_that_a_server_repeats_is_not_shown(mirror, between):
    mirror.environment = LOGIN
    writer = mirror.writer(T1, port=between.port)

    def repeats(handler):
        sent = handler.headers["Authorization"]
        handler.reply(403, f'{{"reason":"{sent} is {PASSWORD}"}}'.encode())

    between.next(repeats)
    message = error_of(writer.begin, 1)
    assert "(Basic *** is ***)" in message
    assert PASSWORD not in repr(writer._client.database)


# --- limits and databases ---


def test_a_request_that_is_too_large_for_the_server_is_divided():
    limits = Limits(body_bytes=4_000, bulk_bytes=5_000)
    with snapkv.open("memory:") as store, Served(store, limits=limits) as served:
        mirror = Mirror(served.server.url)
        writer = mirror.writer(T1)
        writer.begin(1)
        values = {f"k{n}": b"x" * 1_000 for n in range(20)}
        writer.write([commit(5, **values)], 5)
        assert mirror.content() == {f"t/{key}": value for key, value in values.items()}
        message = error_of(writer.write, [commit(6, a=b"x" * 4_500)], 6)
        assert "rejects the document 't/a' (forbidden: the document has" in message
        message = error_of(writer.write, [commit(6, a=b"x" * 6_000)], 6)
        assert "rejects documents with status 413" in message
        assert mirror.record() == (5, T1)
        mirror.close()


def test_a_database_that_is_deleted_is_an_error(mirror):
    writer = mirror.writer(T1)
    writer.begin(1)
    mirror.http.delete("/").raise_for_status()
    message = error_of(writer.write, [commit(5, a=b"1")], 5)
    assert "has lost the record of table 't/'" in message
    assert message.endswith("remove the changefeed, and create it again")
    assert mirror.writer(T2).begin(5) == 5


def test_a_connection_with_tls(mirror, tmp_path, monkeypatch):
    certificates = make_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert("server"), certificates.key("server"))
    with Between(mirror.base, tls=context) as between:
        sink = partial(CouchWriter, CouchDatabase(mirror.url(between.port, "https"), {}), "f")
        writer = sink(TABLE, T1)
        writer.begin(1)
        writer.write([commit(5, a=b"x" * 300_000)], 5)
        writer.close()
        assert mirror.content() == {"t/a": b"x" * 300_000}
        monkeypatch.delenv("SSL_CERT_FILE")
        sink = partial(CouchWriter, CouchDatabase(mirror.url(between.port, "https"), {}), "f")
        assert "certificate verify failed" in error_of(sink(TABLE, T1).begin, 1)
