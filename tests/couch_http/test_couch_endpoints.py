"""Smaller calls of CouchDB that clients make: ids, limits, copies, listings of some documents."""

import email
import email.policy
import json

import pytest

from cdcmeta.changes import database_layout as layout

from .served import error_of
from .test_couch_documents import UNKNOWN, branch, revision

pytestmark = pytest.mark.slow

# --- the server ---


def test_uuids(http):
    (one,) = http.get("/_uuids").json()["uuids"]
    assert len(one) == 32
    answer = http.get("/_uuids", params={"count": 50})
    assert len({*answer.json()["uuids"], one}) == 51
    assert "no-cache" in answer.headers["cache-control"]
    assert http.get("/_uuids?count=0").json() == {"uuids": []}
    for count in (1_001, -1, "x"):
        assert http.get("/_uuids", params={"count": count}).status_code == 400


def test_facts_of_many_databases(db, http):
    name = db.lib.name
    told = http.post("/_dbs_info", json={"keys": [name, "nowhere", "Bad"]}).json()
    assert told == [
        {"key": name, "info": db.get().json()},
        {"key": "nowhere", "error": "not_found"},
        {"key": "Bad", "error": "not_found"},
    ]
    assert http.post("/_dbs_info", json={"keys": []}).json() == []
    every = http.get("/_dbs_info").json()
    assert [each["key"] for each in every] == http.get("/_all_dbs").json()
    assert http.get("/_dbs_info?limit=1").json() == every[:1]
    for body in ({}, {"keys": name}, {"keys": [1]}, {"keys": ["a"] * 101}):
        assert error_of(http.post("/_dbs_info", json=body))[:2] == (400, "bad_request")
    assert http.post("/_dbs_info", content="{}").status_code == 415


# --- a database ---


def test_security(db):
    expected = {"admins": {"roles": ["_admin"]}, "members": {"roles": ["_admin"]}}
    assert db.get("_security").json() == expected
    assert error_of(db("PUT", "_security", json={}))[:2] == (501, "not_implemented")


def test_the_limit_of_revisions(db):
    assert db.get("_revs_limit").json() == 1_000
    assert db("PUT", "_revs_limit", content="2").json() == {"ok": True}
    assert db.get("_revs_limit").json() == db.lib.info().revs_limit == 2
    rev = None
    for n in range(4):
        rev = db.lib.put({"_id": "d", "n": n}, rev).rev
    assert len(db.get("d", revs="true").json()["_revisions"]["ids"]) == 2
    for bad in ("0", "-1", "x", "1.5", "[]", '"2"', "true", "100000", ""):
        assert error_of(db("PUT", "_revs_limit", content=bad))[:2] == (400, "bad_request")


def test_missing_revs(db):
    db.lib.replicate([branch("d", 2, "ba")])
    asked = {"d": [revision(1, "a"), revision(3, "c")], "new": [revision(1, "a")], "known": []}
    assert db.post("_missing_revs", asked).json() == {
        "missing_revs": {"d": [revision(3, "c")], "new": [revision(1, "a")]}
    }
    assert db("POST", "_missing_revs", content="{}").status_code == 415


# --- documents ---


def test_a_copy(db):
    first = db.lib.put({"_id": "a", "n": 1, "empty": None}).rev
    db.lib.put({"_id": "a", "n": 2}, first)
    answer = db("COPY", "a", headers={"Destination": "b%2Fc ä".encode()})
    assert (answer.status_code, answer.json()["id"]) == (201, "b/c ä")
    assert db.lib.get("b/c ä")["n"] == 2
    conflict = db("COPY", "a", headers={"Destination": "b%2Fc%20%C3%A4"})
    assert error_of(conflict)[:2] == (409, "conflict")
    rev = answer.json()["rev"]
    again = db("COPY", "a", headers={"Destination": f"b%2Fc%20%C3%A4?rev={rev}"})
    assert again.json()["rev"].startswith("2-")
    db.lib.put({"_id": "full", "none": None})
    db("COPY", "full", headers={"Destination": "_design/d"})
    assert db.lib.get("_design/d")["none"] is None


@pytest.mark.parametrize(
    ("id", "destination", "status"),
    [
        ("nobody", "b", 404),
        ("a", "", 400),
        ("a", "http://localhost/db/b", 400),
        ("a", "_b", 400),
        ("a", "%ff", 400),
        ("a", "b?rev=x", 400),
    ],
)
def test_a_copy_that_cannot_be_made(db, id, destination, status):
    db.lib.put({"_id": "a"})
    assert db("COPY", id, headers={"Destination": destination}).status_code == status
    assert db("COPY", "a").status_code == 400
    assert db.lib.info().doc_count == 1


def test_the_revisions_of_a_document_and_their_states(db):
    db.lib.replicate(
        [branch("d", 3, "cba"), branch("d", 2, "ea", _deleted=True), branch("d", 2, "fa")]
    )
    infos = [
        {"rev": revision(3, "c"), "status": "available"},
        {"rev": revision(2, "b"), "status": "missing"},
        {"rev": revision(1, "a"), "status": "missing"},
    ]
    assert db.get("d", revs_info="true").json()["_revs_info"] == infos
    meta = db.get("d", meta="true").json()
    assert meta["_revs_info"] == infos
    assert meta["_conflicts"] == [revision(2, "f")]
    assert meta["_deleted_conflicts"] == [revision(2, "e")]
    assert "_revisions" not in meta
    deleted = db.get("d", rev=revision(2, "e"), meta="true").json()
    assert deleted["_revs_info"][0] == {"rev": revision(2, "e"), "status": "deleted"}
    assert "_deleted_conflicts" not in deleted
    assert not {"_revs_info", "_conflicts"} & set(db.get("d").json())
    handed_back = db("PUT", "d", json=meta)  # as clients do
    assert handed_back.status_code == 201


def parts_of(answer) -> list[tuple[str, object]]:
    kind = answer.headers["content-type"]
    raw = f"Content-Type: {kind}\r\n\r\n".encode() + answer.content
    message = email.message_from_bytes(raw, policy=email.policy.HTTP)
    assert message.is_multipart()
    assert not message.defects
    parts = list(message.iter_parts())
    import json

    return [(part["Content-Type"], json.loads(part.get_payload(decode=True))) for part in parts]


def test_revisions_as_parts(db):
    """As replicators before CouchDB 3.3 ask for them."""
    db.lib.replicate([branch("d", 2, "ba", text="--\r\n"), branch("d", 2, "ca", _deleted=True)])
    headers = {"Accept": "multipart/mixed, application/json"}
    query = {"open_revs": f'["{revision(2, "b")}","{UNKNOWN}"]', "revs": "true", "latest": "true"}
    (kind, leaf), (missing_kind, missing) = parts_of(db.get("d", headers=headers, **query))
    assert (kind, leaf["_rev"], leaf["text"]) == ("application/json", revision(2, "b"), "--\r\n")
    assert leaf["_revisions"]["start"] == 2
    assert missing_kind == 'application/json; error="true"'
    assert missing == {"missing": UNKNOWN}
    every = parts_of(db.get("d", headers=headers, open_revs="all"))
    assert [leaf["_rev"] for _, leaf in every] == [revision(2, "b"), revision(2, "c")]
    for accept in ("application/json", "*/*"):
        assert isinstance(db.get("d", headers={"Accept": accept}, open_revs="all").json(), list)


# --- listings ---


@pytest.fixture
def mixture(db):
    for id in ("a", "_design/x", "_design/y", "~z"):
        db.lib.put({"_id": id})
    db.lib.remove("_design/y", db.lib.get("_design/y")["_rev"])
    db.lib.put({"_id": "_design/z"})
    for id in ("c1", "c2", "c3"):
        db.lib.local.put(id, {"n": id})
    return db


def keys(answer) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [row["key"] for row in answer.json()["rows"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "xz"),
        ({"descending": True}, "zx"),
        ({"limit": 1}, "x"),
        ({"skip": 1}, "z"),
        ({"startkey": "_design/y"}, "z"),
        ({"endkey": "_design/y"}, "x"),
        ({"startkey": "a"}, ""),
        ({"endkey": "a"}, "xz"),
        ({"descending": True, "startkey": "~", "endkey": "_design/y"}, "z"),
        ({"descending": True, "startkey": "A"}, ""),
        ({"key": "_design/x"}, "x"),
        ({"key": "a"}, ""),
    ],
)
def test_design_documents(mixture, query, expected):
    found = keys(mixture.post("_design_docs", query))
    assert found == [f"_design/{each}" for each in expected]


def test_design_documents_with_their_contents(mixture):
    rows = mixture.get("_design_docs", include_docs="true").json()["rows"]
    assert [row["doc"]["_id"] for row in rows] == ["_design/x", "_design/z"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "123"),
        ({"descending": True}, "321"),
        ({"limit": 1, "skip": 1}, "2"),
        ({"startkey": "_local/c2"}, "23"),
        ({"endkey": "_local/c2", "inclusive_end": False}, "1"),
        ({"descending": True, "startkey": "_local/c2"}, "21"),
        ({"keys": ["_local/c3", "_local/c1", "_local/c3"]}, "313"),
        ({"keys": ["_local/c3", "_local/c1"], "descending": True}, "13"),
        ({"keys": ["_local/c3", "_local/c1", "_local/c2"], "skip": 1, "limit": 1}, "1"),
        ({"key": "_local/c2"}, "2"),
        ({"startkey": "a"}, ""),
        ({"startkey": "A"}, "123"),
        ({"endkey": "a"}, "123"),
        ({"endkey": "A"}, ""),
        ({"startkey": "_local/"}, "123"),
        ({"descending": True, "endkey": "_local/c2", "inclusive_end": False}, "3"),
        ({"descending": True, "startkey": "a", "limit": 1}, "3"),
        ({"limit": 0}, ""),
    ],
)
def test_local_documents(mixture, query, expected):
    found = keys(mixture.post("_local_docs", query))
    assert found == [f"_local/c{each}" for each in expected]
    texts = {name: each if name == "limit" else json.dumps(each) for name, each in query.items()}
    assert keys(mixture.get("_local_docs", **texts)) == found


def test_local_documents_by_keys(mixture):
    """As `_all_docs`: in the order of the keys, with a row for what is not there."""
    asked = ["_local/c2", "a", "_local/no", "_local/", "_local/" + "x" * 257, "_local/c2"]
    rows = mixture.post("_local_docs", {"keys": asked, "include_docs": True}).json()["rows"]
    assert [row["key"] for row in rows] == asked
    assert rows[0] == rows[5]
    assert rows[0]["doc"] == {"_id": "_local/c2", "_rev": "0-1", "n": "c2"}
    assert rows[1:5] == [{"key": key, "error": "not_found"} for key in asked[1:5]]


def test_local_documents_with_the_longest_ids(db):
    longest = ["x" * 255 + last for last in "abc"]
    for id in longest:
        db.lib.local.put(id, {})
    assert keys(db.post("_local_docs", {"key": f"_local/{longest[1]}"})) == [f"_local/{longest[1]}"]
    found = keys(db.post("_local_docs", {"startkey": f"_local/{longest[1]}"}))
    assert found == [f"_local/{id}" for id in longest[1:]]
    assert keys(db.post("_local_docs", {"startkey": f"_local/{longest[2]}x"})) == []


@pytest.mark.parametrize("descending", [False, True])
def test_local_documents_that_are_not_shown_are_not_read(db, monkeypatch, descending):
    for n in range(40):
        db.lib.local.put(f"c{n:02}", {})
    read: list[bytes] = []
    local_of = layout.local_of

    def counted(raw: bytes) -> tuple[int, bytes]:
        read.append(raw)
        return local_of(raw)

    monkeypatch.setattr(layout, "local_of", counted)
    asked = {"limit": 3, "skip": 5, "descending": descending}
    assert len(keys(db.post("_local_docs", asked))) == len(read) == 3


def test_local_documents_with_their_contents(mixture):
    told = mixture.get("_local_docs", include_docs="true").json()
    assert told["rows"][0] == {
        "id": "_local/c1",
        "key": "_local/c1",
        "value": {"rev": "0-1"},
        "doc": {"_id": "_local/c1", "_rev": "0-1", "n": "c1"},
    }
    assert keys(mixture.get("_all_docs")) == ["_design/x", "_design/z", "a", "~z"]


def test_several_listings_at_once(mixture):
    asked = [{"keys": ["a", "no"]}, {"limit": 1, "include_docs": True}, {"descending": True}]
    results = mixture.post("_all_docs/queries", {"queries": asked}).json()["results"]
    assert results == [mixture.post("_all_docs", query).json() for query in asked]
    assert mixture.post("_all_docs/queries", {"queries": []}).json() == {"results": []}
    for bad in ({}, {"queries": {}}, {"queries": [1]}, {"queries": [{}] * 1_001}):
        assert error_of(mixture.post("_all_docs/queries", bad))[:2] == (400, "bad_request")
    assert mixture("POST", "_all_docs/queries", content="{}").status_code == 415


def test_the_sequence_of_a_listing(mixture):
    expected = mixture.get().json()["update_seq"]
    assert mixture.get("_all_docs", update_seq="true").json()["update_seq"] == expected
    assert mixture.changes(since=expected)["results"] == []
    assert "update_seq" not in mixture.get("_all_docs").json()
