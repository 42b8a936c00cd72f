"""One document over HTTP, and local documents."""

import json

import pytest

from .served import error_of

LONG_NUMBER = '{"a": ' + "9" * 5_000 + "}"
UNKNOWN = "1-0123456789abcdef0123456789abcdef"


def not_json() -> str:
    """Return the reason for an infinite number; Python 3.14 shows the number in it."""
    with pytest.raises(ValueError, match="not JSON compliant") as raised:
        json.dumps(float("inf"), allow_nan=False)
    return f"the document is not valid JSON: {raised.value}"


def revision(position: int, letter: str) -> str:
    return f"{position}-{letter * 32}"


def branch(id: str, position: int, letters: str, **more) -> dict:
    """Return a replicated document: the newest revision first."""
    ids = [letter * 32 for letter in letters]
    return {"_id": id, "_revisions": {"start": position, "ids": ids}, **more}


@pytest.mark.parametrize("id", ["doc", "a/b", "_design/d", "ä ö?&=+%", "x" * 256])
def test_a_document_comes_goes_and_comes_again(db, id):
    from urllib.parse import quote

    path = quote(id, safe="")
    made = db("PUT", path, json={"n": 1})
    told = made.json()
    assert (made.status_code, told["ok"], told["id"]) == (201, True, id)
    assert made.headers["etag"] == f'"{told["rev"]}"'
    assert db.get(path).json() == {"_id": id, "_rev": told["rev"], "n": 1}

    again = db("PUT", path, json={"n": 2, "_rev": told["rev"]}).json()
    assert db("PUT", path, params={"rev": again["rev"]}, json={"n": 3}).status_code == 201
    newest = db.get(path)
    assert newest.json()["n"] == 3
    removed = db("DELETE", path, headers={"If-Match": newest.headers["etag"]})
    assert removed.status_code == 200
    assert removed.json()["rev"].startswith("4-")
    assert error_of(db.get(path)) == (404, "not_found", "deleted")
    assert db("PUT", path, json={}).json()["rev"].startswith("5-")


def test_a_design_document_by_its_plain_path(db):
    assert db("PUT", "_design/d", json={}).json()["id"] == "_design/d"
    assert db.get("_design%2Fd").json()["_id"] == "_design/d"


def test_a_conflicting_edit_changes_nothing(db):
    rev = db("PUT", "d", json={"n": 1}).json()["rev"]
    for query in ({}, {"rev": UNKNOWN}):
        answer = db("PUT", "d", params=query, json={"n": 2})
        assert error_of(answer) == (409, "conflict", "Document update conflict.")
        answer = db("DELETE", "d", params=query)
        assert error_of(answer) == (409, "conflict", "Document update conflict.")
    assert db.get("d").json() == {"_id": "d", "_rev": rev, "n": 1}


def test_a_document_that_is_not_there(db):
    assert error_of(db.get("d")) == (404, "not_found", "missing")
    assert error_of(db("DELETE", "d")) == (404, "not_found", "missing")
    assert error_of(db("DELETE", "d", params={"rev": UNKNOWN})) == (404, "not_found", "missing")
    assert error_of(db.get("d", rev=UNKNOWN)) == (404, "not_found", "missing")


def test_two_revs_that_differ(db):
    rev = db("PUT", "d", json={}).json()["rev"]
    answer = db("PUT", "d", params={"rev": rev}, json={"_rev": UNKNOWN})
    assert error_of(answer)[:2] == (400, "bad_request")
    answer = db("DELETE", "d", params={"rev": rev}, headers={"If-Match": UNKNOWN})
    assert error_of(answer)[:2] == (400, "bad_request")


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("d", "[]", (400, "bad_request", "Request body must be a JSON object")),
        ("d", "{", (400, "bad_request", "invalid UTF-8 JSON")),
        ("d", '{"a": NaN}', (400, "bad_request", "invalid UTF-8 JSON")),
        ("d", b'{"a": "\xff"}', (400, "bad_request", "invalid UTF-8 JSON")),
        ("d", "[" * 100_000, (400, "bad_request", "the JSON is nested too deep")),
        ("d", LONG_NUMBER, (400, "bad_request", "an integer has more than 4300 digits")),
        ("_local/d", LONG_NUMBER, (400, "bad_request", "an integer has more than 4300 digits")),
        ("d", '{"a": 1e999}', (400, "doc_validation", not_json())),
        ("d", '{"a": -Infinity}', (400, "bad_request", "invalid UTF-8 JSON")),
        ("d", '{"_x": 1}', (400, "doc_validation", "Bad special document member: _x")),
        ("d", '{"_rev": "x"}', (400, "bad_request", "Invalid rev format")),
        (
            "_x",
            "{}",
            (400, "illegal_docid", "Only reserved document ids may start with underscore."),
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_document_that_cannot_be_stored(db, path, body, error):
    assert error_of(db("PUT", path, content=body)) == error
    assert db.changes()["results"] == []


def test_an_id_that_is_too_long(db):
    assert error_of(db("PUT", "x" * 257, json={}))[:2] == (400, "illegal_docid")
    assert error_of(db.get("x" * 600))[:2] == (400, "illegal_docid")


def test_text_that_is_no_text(db):
    assert error_of(db("PUT", "d", content='{"a": "\\ud800"}'))[:2] == (400, "doc_validation")
    assert error_of(db("PUT", "%ff", json={}))[:2] == (400, "bad_request")


def test_posting_gives_an_id(db):
    told = db.post("", {"n": 1}).json()
    assert len(told["id"]) == 32
    assert db.get(told["id"]).json()["n"] == 1
    assert db.post("", {"_id": "mine"}).json()["id"] == "mine"
    answer = db("POST", content="{}", headers={"Content-Type": "text/plain"})
    assert error_of(answer) == (415, "bad_content_type", "Content-Type must be application/json")


def test_etags(db):
    tag = db("PUT", "d", json={}).headers["etag"]
    same = db("GET", "d", headers={"If-None-Match": tag})
    assert (same.status_code, same.content) == (304, b"")
    for same in (f"W/{tag}", f'"1-x", {tag}', f'"1-x",W/{tag}', "*"):
        for method in ("GET", "HEAD"):
            assert db(method, "d", headers={"If-None-Match": same}).status_code == 304
    for other in ('"1-x"', "", tag.strip('"'), '"*"'):
        assert db("GET", "d", headers={"If-None-Match": other}).status_code == 200


def test_what_changes_while_the_revision_stays_has_no_etag(db):
    db.lib.replicate([branch("d", 2, "ca")])
    for name in ("conflicts", "deleted_conflicts", "revs_info", "meta"):
        answer = db.get("d", headers={"If-None-Match": "*"}, **{name: "true"})
        assert (answer.status_code, "etag" in answer.headers) == (200, False)
    tag = db.get("d").headers["etag"]
    assert db.get("d", revs="true").headers["etag"] == tag
    db.lib.replicate([branch("d", 2, "ba")])
    told = db.get("d", headers={"If-None-Match": tag}, conflicts="true")
    assert told.json()["_conflicts"] == [revision(2, "b")]


def test_leaves_conflicts_and_revisions(db):
    docs = [branch("d", 2, "ba", x="b"), branch("d", 2, "ca", x="c")]
    docs.append(branch("d", 2, "da", _deleted=True))
    db.lib.replicate(docs)
    winner = db.get("d", conflicts="true", revs="true").json()
    assert winner == {
        "_id": "d",
        "_rev": revision(2, "c"),
        "_revisions": {"start": 2, "ids": ["c" * 32, "a" * 32]},
        "_conflicts": [revision(2, "b")],
        "x": "c",
    }
    assert db.get("d", rev=revision(2, "b")).json()["x"] == "b"
    assert db.get("d", rev=revision(2, "d")).json()["_deleted"] is True
    assert error_of(db.get("d", rev=revision(1, "a"))) == (404, "not_found", "missing")
    assert error_of(db.get("d", rev="x")) == (400, "bad_request", "Invalid rev format")

    leaves = db.get("d", open_revs="all").json()
    assert [leaf["ok"]["_rev"] for leaf in leaves] == [revision(2, x) for x in "cbd"]
    assert not any("_revisions" in leaf["ok"] for leaf in leaves)
    wanted = f'["{revision(2, "b")}","{revision(3, "e")}"]'
    some = db.get("d", open_revs=wanted, revs="true").json()
    assert some[0]["ok"]["_revisions"]["ids"] == ["b" * 32, "a" * 32]
    assert some[1] == {"missing": revision(3, "e")}
    latest = db.get("d", open_revs=f'["{revision(1, "a")}"]', latest="true").json()
    assert len(latest) == 3
    assert error_of(db.get("d", open_revs="1-x"))[:2] == (400, "bad_request")
    assert error_of(db.get("d", open_revs='"1-x"'))[:2] == (400, "bad_request")
    assert db.get("nobody", open_revs="all").json() == []


def test_a_replicated_put(db):
    doc = branch("d", 3, "cba", x=1)
    answer = db("PUT", "d", params={"new_edits": "false"}, json=doc)
    assert answer.json()["rev"] == revision(3, "c")
    assert db.get("d", revs="true").json()["_revisions"]["start"] == 3


def test_the_past_of_a_document(db):
    first = db.lib.put({"_id": "d", "n": 1})
    db.lib.put({"_id": "d", "n": 2}, rev=first.rev)
    then = first.seq.timestamp
    assert db.get("d", as_of=then).json()["n"] == 1
    assert db.get("d").json()["n"] == 2
    assert error_of(db.get("d", as_of=then - 1)) == (404, "not_found", "missing")


def test_local_documents(db):
    assert error_of(db.get("_local/x")) == (404, "not_found", "missing")
    made = db("PUT", "_local/x", json={"seq": 1})
    assert (made.status_code, made.json()) == (
        201,
        {"ok": True, "id": "_local/x", "rev": "0-1"},
    )
    assert db.get("_local%2Fx").json() == {"_id": "_local/x", "_rev": "0-1", "seq": 1}
    assert error_of(db("PUT", "_local/x", json={}))[:2] == (409, "conflict")
    assert db("PUT", "_local/x", json={"_rev": "0-1"}).json()["rev"] == "0-2"
    assert error_of(db("DELETE", "_local/x"))[:2] == (409, "conflict")
    assert db("DELETE", "_local/x", params={"rev": "0-2"}).status_code == 200
    assert error_of(db("DELETE", "_local/x", params={"rev": "0-2"}))[0] == 404
    assert db.changes()["results"] == []
    assert error_of(db.get("_local/" + "x" * 300))[:2] == (400, "illegal_docid")


def test_a_local_document_that_is_put_as_deleted(db):
    """It goes, as CouchDB has it."""
    db("PUT", "_local/x", json={"seq": 1})
    for rev in ({}, {"_rev": "0-2"}):
        answer = db("PUT", "_local/x", json={"_deleted": True, **rev})
        assert error_of(answer) == (409, "conflict", "Document update conflict.")
    answer = db("PUT", "_local/x", json={"_rev": "0-1", "_deleted": "yes"})
    assert error_of(answer)[:2] == (400, "doc_validation")
    assert db.get("_local/x").json()["seq"] == 1
    gone = db("PUT", "_local/x", json={"_rev": "0-1", "_deleted": True})
    assert (gone.status_code, gone.json()) == (
        201,
        {"ok": True, "id": "_local/x", "rev": "0-0"},
    )
    assert error_of(db.get("_local/x")) == (404, "not_found", "missing")
    answer = db("PUT", "_local/x", json={"_rev": "0-1", "_deleted": True})
    assert error_of(answer) == (404, "not_found", "missing")
    kept = db("PUT", "_local/x", json={"_deleted": False, "seq": 2})
    assert kept.json()["rev"] == "0-1"


def test_local_documents_are_put_one_by_one(db):
    (answer,) = db.post("_bulk_docs", {"docs": [{"_id": "_local/x"}]}).json()
    assert answer["error"] == "forbidden"
    assert error_of(db.get("_local/x"))[0] == 404


def test_of_two_members_of_one_name_the_last_counts(db):
    assert db("PUT", "d", content='{"a":1,"a":2}').status_code == 201
    assert db.get("d").json()["a"] == 2


def test_a_plain_listing_tells_what_one_with_documents_does(db):
    """It is read by a shorter way, whatever bytes are in hashes and ids."""
    ids = [f"d{n:03}" for n in range(200)] + ["a\0b", "ä", 'q"', "\U0001f600"]
    docs = [{"_id": id, "_rev": f"1-{n * 0x01000100:032x}"} for n, id in enumerate(ids)]
    branch = [{"_id": "d007", "_rev": f"1-{5:032x}"}, {"_id": "d008", "_rev": f"300-{0:032x}"}]
    gone = [{"_id": "d009", "_rev": f"9-{9:032x}", "_deleted": True}]
    assert all(each.ok for each in db.lib.replicate([*docs, *branch, *gone]))
    for query in (
        {},
        {"skip": "3", "limit": "170"},
        {"startkey": '"d005"', "endkey": '"d011"'},
        {"startkey": '"d005"', "endkey": '"d011"', "inclusive_end": "false"},
        {"startkey": '"d011"', "endkey": '"d005"'},
        {"key": '"a\\u0000b"'},
        {"startkey": '"q"', "limit": "0"},
    ):
        plain, shown = (
            db.get("_all_docs", include_docs=flag, **query).json() for flag in ("false", "true")
        )
        for row in shown["rows"]:
            del row["doc"]
        assert plain == shown
    assert len(db.get("_all_docs").json()["rows"]) == len(ids)
