"""The server, its databases, and what is at no path."""

import json
import socket

import pytest

import snapkv
from cdcmeta import ChangesDB

from .served import WAIT_S, error_of

pytestmark = pytest.mark.slow


def test_the_server_tells_who_it_is(served, http):
    told = http.get("/").json()
    assert told["couchdb"] == "Welcome"
    assert told["version"] == snapkv.__version__
    assert told["uuid"] == served.store.info()["store_id"]  # the same after a restart
    assert http.get("/_up").json()["status"] == "ok"


def test_a_database_is_made_told_and_deleted(http):
    made = http.put("/new")
    assert (made.status_code, made.json()) == (201, {"ok": True})
    assert made.headers["location"].endswith("/new")
    assert "new" in http.get("/_all_dbs").json()
    facts = http.get("/new/").json()
    assert facts["db_name"] == "new"
    assert (facts["doc_count"], facts["doc_del_count"]) == (0, 0)
    assert facts["instance_start_time"] == "0"
    assert error_of(http.put("/new")) == (
        412,
        "file_exists",
        "The database could not be created, the file already exists.",
    )
    assert http.delete("/new").json() == {"ok": True}
    assert error_of(http.get("/new")) == (404, "not_found", "Database does not exist.")
    assert error_of(http.delete("/new")) == (404, "not_found", "Database does not exist.")
    assert "new" not in http.get("/_all_dbs").json()


def test_a_name_with_a_slash(http):
    assert http.put("/a%2Fb").status_code == 201
    assert http.get("/a%2Fb").json()["db_name"] == "a/b"
    assert http.put("/a%2Fb/doc", json={}).status_code == 201
    assert http.get("/a%2Fb/doc").json()["_id"] == "doc"
    assert http.delete("/a%2Fb").status_code == 200


def test_counts_and_update_seq(db):
    db.lib.put({"_id": "a"})
    b = db.lib.put({"_id": "b"})
    gone = db.lib.remove("b", b.rev)
    facts = db.get().json()
    assert (facts["doc_count"], facts["doc_del_count"]) == (1, 1)
    assert facts["update_seq"] == str(gone.seq) == db.changes()["last_seq"]
    assert db("HEAD").status_code == 200
    assert db("HEAD").content == b""


@pytest.mark.parametrize("name", ["Upper", "1a", "_x", "a.b", "%20", "a" * 200])
def test_a_bad_name(http, name):
    assert error_of(http.put(f"/{name}"))[:2] == (400, "illegal_database_name")
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/d"), ("PUT", "/d")):
        answer = http.request(method, f"/{name}{path}", **({"json": {}} if method == "PUT" else {}))
        assert error_of(answer) == (404, "not_found", "Database does not exist.")


@pytest.mark.parametrize("path", ["favicon.ico", "robots.txt", "apple-touch-icon.png"])
def test_what_browsers_ask_for(http, path):
    assert error_of(http.get(f"/{path}"))[0] == 404


def test_deleting_with_a_rev_deletes_no_database(db):
    status, error, reason = error_of(db("DELETE", params={"rev": "1-x"}))
    assert (status, error) == (400, "bad_request")
    assert "Did you mean to DELETE a document" in reason
    assert db.get().status_code == 200


def test_full_commit(db, http):
    answer = db.post("_ensure_full_commit", {})
    assert (answer.status_code, answer.json()["ok"]) == (201, True)
    assert error_of(http.post("/nowhere/_ensure_full_commit", json={}))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "", "GET,HEAD"),
        ("DELETE", "_all_dbs", "GET,HEAD"),
        ("PATCH", "{db}", "DELETE,GET,HEAD,POST,PUT"),
        ("DELETE", "{db}/_changes", "GET,HEAD,POST"),
        ("PUT", "{db}/_changes", "GET,HEAD,POST"),
        ("GET", "{db}/_bulk_docs", "POST"),
        ("PUT", "{db}/_bulk_get", "POST"),
        ("GET", "{db}/_revs_diff", "POST"),
        ("DELETE", "{db}/_all_docs", "GET,HEAD,POST"),
        ("GET", "{db}/_ensure_full_commit", "POST"),
        ("POST", "{db}/doc", "COPY,DELETE,GET,HEAD,PUT"),
        ("PATCH", "{db}/_local/x", "DELETE,GET,HEAD,PUT"),
    ],
)
def test_a_wrong_method(db, http, method, path, allowed):
    answer = http.request(method, "/" + path.format(db=db.lib.name))
    assert error_of(answer) == (405, "method_not_allowed", f"Only {allowed} allowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/_utils", "/_users", "/_replicate"])
def test_parts_of_a_couchdb_that_are_not_here(http, path):
    assert error_of(http.get(path)) == (404, "not_found", "missing")


@pytest.mark.parametrize("path", ["_find", "_purge", "doc/attachment", "_design/d/_view/v"])
def test_parts_of_a_database_that_are_not_here(db, path):
    for method in ("GET", "POST", "PUT"):
        assert error_of(db(method, path))[:2] == (501, "not_implemented")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "_changes", None),
        ("GET", "_changes?feed=continuous", None),
        ("GET", "_all_docs", None),
        ("GET", "doc", None),
        ("PUT", "doc", {}),
        ("DELETE", "doc?rev=1-0123456789abcdef0123456789abcdef", None),
        ("POST", "", {}),
        ("POST", "_bulk_docs", {"docs": []}),
        ("POST", "_bulk_docs", {"docs": [{}]}),
        ("POST", "_bulk_get", {"docs": []}),
        ("POST", "_revs_diff", {}),
        ("POST", "_missing_revs", {}),
        ("POST", "_all_docs/queries", {"queries": []}),
        ("GET", "_design_docs", None),
        ("GET", "_local_docs", None),
        ("GET", "_security", None),
        ("GET", "_revs_limit", None),
        ("PUT", "_revs_limit", 5),
        ("COPY", "doc", None),
        ("GET", "_local/x", None),
        ("PUT", "_local/x", {}),
    ],
)
def test_a_database_that_is_not_there(http, method, path, body):
    headers = {"Destination": "copy"} if method == "COPY" else {}
    answer = http.request(method, f"/nowhere/{path}", json=body, headers=headers)
    assert error_of(answer) == (404, "not_found", "Database does not exist.")


def test_the_past_of_a_database(db, http):
    before = str(snapkv.format_time(db.lib.store.resolved()))
    db.lib.put({"_id": "a"})
    assert db.get(as_of=before).json()["doc_count"] == 0
    assert db.get().json()["doc_count"] == 1
    assert db.lib.name in http.get("/_all_dbs", params={"as_of": before}).json()
    assert http.get("/_all_dbs", params={"as_of": "-1d"}).json() == []
    assert error_of(db.get(as_of="-1d")) == (404, "not_found", "Database does not exist.")
    assert error_of(db.get(as_of="yesterday"))[:2] == (400, "bad_request")


@pytest.mark.parametrize("path", ["/_all_dbs", "/_dbs_info"])
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "abcd"),
        ({"startkey": "b"}, "bcd"),
        ({"start_key": "b", "end_key": "c"}, "bc"),
        ({"startkey": "b", "endkey": "c", "inclusive_end": False}, "b"),
        ({"endkey": "bb"}, "ab"),
        ({"descending": True}, "dcba"),
        ({"descending": True, "startkey": "c", "endkey": "b"}, "cb"),
        ({"descending": True, "startkey": "c", "endkey": "b", "inclusive_end": False}, "c"),
        ({"descending": True, "skip": 1, "limit": 2}, "cb"),
        ({"startkey": None, "skip": 3}, "d"),
    ],
)
def test_a_range_of_databases(own, path, query, expected):
    served = own()
    for name in "cabd":
        ChangesDB(served.store, name).create()
    params = {name: json.dumps(value) for name, value in query.items()}
    rows = served.http.get(path, params=params).json()
    assert "".join(row if path == "/_all_dbs" else row["key"] for row in rows) == expected


@pytest.mark.parametrize("query", ["startkey=a", "endkey=1", "start_key=", "end_key=[]"])
def test_a_range_of_databases_that_is_none(http, query):
    assert error_of(http.get(f"/_all_dbs?{query}"))[:2] == (400, "bad_request")


@pytest.mark.parametrize("start", ["http://localhost:5984", "HTTPS://other.example"])
def test_a_request_that_names_a_whole_url(db, start):
    """As clients send it that take the server for their proxy; the header Host is what counts."""
    db("PUT", "a%2Fb", json={"n": 1})
    with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
        head = f"GET {start}/{db.lib.name}/a%2Fb?revs=true HTTP/1.1\r\nHost: localhost\r\n"
        client.sendall(f"{head}Connection: close\r\n\r\n".encode())
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"_id":"a/b"' in answer
    assert b'"_revisions"' in answer
