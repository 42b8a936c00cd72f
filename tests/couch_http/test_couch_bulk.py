"""Many documents at once: `_bulk_docs`, `_bulk_get`, `_revs_diff`, `_all_docs`."""

import itertools
import json

import pytest

from cdcmeta.changes import ChangesDB, Edited
from cdcmeta.couch_http import Limits
from cdcmeta.errors import EditNotMadeError
from snapkv.errors import EngineUnavailableError, NoSpaceError

from .conftest import ENGINES
from .served import error_of
from .test_couch_documents import UNKNOWN, branch, revision

pytestmark = pytest.mark.slow


def test_each_document_has_an_outcome(db):
    rev = db.lib.put({"_id": "b"}).rev
    docs = [{"_id": "a"}, {"_id": "b"}, {"_id": "b", "_rev": rev, "n": 2}, {"_x": 1}, 7, {}]
    answer = db.post("_bulk_docs", {"docs": docs})
    assert answer.status_code == 201
    a, conflict, b, bad, number, new = answer.json()
    assert a["ok"]
    assert conflict == {"id": "b", "error": "conflict", "reason": "Document update conflict."}
    assert (b["ok"], b["rev"][:2]) == (True, "2-")
    assert bad["error"] == number["error"] == "forbidden"
    assert number["reason"] == "Document must be a JSON object"
    assert len(new["id"]) == 32
    assert [row["id"] for row in db.changes()["results"]] == ["a", "b", new["id"]]


def test_of_replicated_documents_only_errors_are_told(db):
    docs = [branch("d", 2, "ba", x=1), branch("d", 2, "ca"), {"_id": "bad"}]
    answer = db.post("_bulk_docs", {"docs": docs, "new_edits": False})
    assert answer.status_code == 201
    (bad,) = answer.json()
    assert (bad["id"], bad["error"]) == ("bad", "forbidden")
    assert db.get("d", conflicts="true").json()["_conflicts"] == [revision(2, "b")]
    assert db.post("_bulk_docs", {"docs": docs[:2], "new_edits": False}).json() == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([], "Request body must be a JSON object"),
        ({}, "POST body must include `docs` parameter."),
        ({"docs": {}}, "`docs` parameter must be an array."),
        ({"docs": [], "new_edits": 1}, "`new_edits` parameter must be a boolean."),
    ],
)
def test_bulk_docs_that_cannot_be_understood(db, body, reason):
    assert error_of(db.post("_bulk_docs", body)) == (400, "bad_request", reason)


@pytest.mark.parametrize("path", ["_bulk_docs", "_bulk_get", "_revs_diff", "_changes", "_all_docs"])
def test_posts_are_json(db, path):
    answer = db("POST", path, content="{}", headers={"Content-Type": "text/plain"})
    assert error_of(answer) == (415, "bad_content_type", "Content-Type must be application/json")
    with_charset = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert db("POST", path, content='{"docs":[]}', headers=with_charset).status_code < 300


def test_more_than_one_commit_holds_is_split(own):
    """Halves of halves go in; what is too large alone is told, and left out."""
    db = own(engine={"request_bytes_max": 100_000}).database()
    docs = [{"_id": f"d{n}", "text": "x" * 9_000} for n in range(30)]
    docs.insert(7, {"_id": "large", "text": "x" * 150_000})
    told = db.post("_bulk_docs", {"docs": docs}).json()
    assert [each["id"] for each in told] == [doc["_id"] for doc in docs]
    (large,) = [each for each in told if "error" in each]
    assert (large["id"], large["error"]) == ("large", "forbidden")
    rows = db.changes()["results"]
    assert [row["id"] for row in rows] == [doc["_id"] for doc in docs if doc["_id"] != "large"]
    assert error_of(db("PUT", "large", json=docs[7]))[:2] == (413, "too_large")


def test_more_documents_than_one_commit_takes(db):
    docs = [{"_id": f"d{n:04}"} for n in range(2_500)]
    told = db.post("_bulk_docs", {"docs": docs}).json()
    assert [each["id"] for each in told] == [doc["_id"] for doc in docs]
    assert db.get().json()["doc_count"] == 2_500


def test_bulk_get(db):
    db.lib.replicate([branch("d", 2, "ba", x=1), branch("d", 2, "ca", _deleted=True)])
    wanted = [
        {"id": "d"},
        {"id": "d", "rev": revision(2, "b")},
        {"id": "d", "rev": UNKNOWN},
        {"id": "nobody"},
        {"id": "d", "rev": "x"},
        {"id": "_bad"},
        {"rev": UNKNOWN},
    ]
    results = db.post("_bulk_get", {"docs": wanted}, revs="true").json()["results"]
    assert [each["id"] for each in results] == ["d", "d", "d", "nobody", "d", "_bad", None]
    all_leaves, one, *errors = (each["docs"] for each in results)
    assert [leaf["ok"]["_rev"] for leaf in all_leaves] == [revision(2, "b"), revision(2, "c")]
    assert all_leaves[1]["ok"]["_deleted"] is True
    (leaf,) = one
    assert leaf["ok"] == {
        "_id": "d",
        "_rev": revision(2, "b"),
        "_revisions": {"start": 2, "ids": ["b" * 32, "a" * 32]},
        "x": 1,
    }
    told = [(e["error"]["rev"], e["error"]["error"], e["error"]["reason"]) for (e,) in errors]
    assert told == [
        (UNKNOWN, "not_found", "missing"),
        ("undefined", "not_found", "missing"),
        ("x", "bad_request", "Invalid rev format"),
        (None, "illegal_docid", "Only reserved document ids may start with underscore."),
        (None, "bad_request", "document id missed"),
    ]


def test_bulk_get_of_the_latest(db):
    db.lib.replicate([branch("d", 2, "ba")])
    wanted = {"docs": [{"id": "d", "rev": revision(1, "a")}]}
    (missing,) = db.post("_bulk_get", wanted).json()["results"][0]["docs"]
    assert missing["error"]["reason"] == "missing"
    (leaf,) = db.post("_bulk_get", wanted, latest="true").json()["results"][0]["docs"]
    assert leaf["ok"] == {"_id": "d", "_rev": revision(2, "b")}


@pytest.mark.parametrize("body", [{}, {"docs": 1}, {"docs": ["d"]}])
def test_bulk_get_that_cannot_be_understood(db, body):
    answer = db.post("_bulk_get", body)
    assert error_of(answer) == (400, "bad_request", "Missing JSON list of 'docs'.")


def test_revs_diff(db):
    db.lib.replicate([branch("d", 2, "ba")])
    asked = {
        "d": [revision(1, "a"), revision(2, "b"), revision(3, "c")],
        "known": [],
        "new": [revision(1, "a")],
    }
    assert db.post("_revs_diff", asked).json() == {
        "d": {"missing": [revision(3, "c")], "possible_ancestors": [revision(2, "b")]},
        "new": {"missing": [revision(1, "a")]},
    }
    assert error_of(db.post("_revs_diff", {"d": "1-a"}))[:2] == (400, "bad_request")
    assert error_of(db.post("_revs_diff", {"d": [1]}))[:2] == (400, "bad_request")


def test_revs_diff_of_what_can_never_be_stored(db):
    """It is missing, so that a replicator hears of it by document, and the others go on."""
    db.lib.replicate([branch("d", 2, "ba")])
    long = "é" * 129
    asked = {
        long: [revision(1, "a")],
        "d": ["1-a", revision(2, "b"), "x", "1-a"],
        "_bad": [revision(1, "a")],
        "_none": [],
    }
    assert db.post("_revs_diff", asked).json() == {
        long: {"missing": [revision(1, "a")]},
        "d": {"missing": ["1-a", "x"]},
        "_bad": {"missing": [revision(1, "a")]},
    }


DEEP = '{{"_id":"deep","_rev":"1-{}","a":{}}}'.format("a" * 32, "[" * 5_000 + "]" * 5_000)
LONG = '{{"a":{{"b":-{}}},"_id":"long","_rev":"1-{}","c":[1]}}'.format("9" * 5_000, "a" * 32)
FLAT = LONG.replace("long", "flat").replace('{"b":', "").replace("},", ",", 1)
NEVER = {
    "attached": {"_attachments": {"a": {"content_type": "text/plain", "data": "eA=="}}},
    "nested": {"a": json.loads("[" * 150 + "]" * 150)},
    "x" * 257: {},
    "_local/a": {},
    "badrev": {"_rev": "1-x"},
    "unknown": {"_unknown": 1},
    "\ud800": {},
}


@pytest.mark.parametrize("new_edits", [True, False])
@pytest.mark.parametrize("served", ENGINES, indirect=True)
def test_what_can_never_be_stored_is_forbidden_by_row(db, caplog, new_edits):
    rev = {} if new_edits else {"_rev": revision(1, "a")}
    docs = [{"_id": id} | rev | more for id, more in NEVER.items()]
    docs += [7, None, {"_id": "fine"} | rev]
    body = json.dumps({"docs": docs, "new_edits": new_edits})
    body = body.replace('"docs": [', f'"docs": [{DEEP}, {LONG}, {FLAT}, ')
    headers = {"Content-Type": "application/json"}
    answer = db("POST", "_bulk_docs", content=body, headers=headers)
    assert answer.status_code == 201
    *refused, last = answer.json() if new_edits else [*answer.json(), {"id": "fine", "ok": True}]
    assert [row["id"] for row in refused] == ["deep", "long", "flat", *NEVER, "", ""]
    assert {row["error"] for row in refused} == {"forbidden"}
    assert all(row["reason"] for row in refused)
    assert (last["id"], last["ok"]) == ("fine", True)
    assert [row["id"] for row in db.changes()["results"]] == ["fine"]
    for id in ("deep", "long", "flat", "attached", "nested", "x" * 257, "badrev"):
        assert f"{db.lib.name}: document {id!r} cannot be stored: " in caplog.text


@pytest.mark.parametrize("served", ["etcd"], indirect=True)
def test_what_is_larger_than_a_request_of_etcd(db):
    """Its own limit is 1.5 MiB; documents of 8 MB together are stored in parts."""
    docs = [{"_id": f"d{n}", "text": "x" * 400_000} for n in range(20)]
    docs.insert(3, {"_id": "large", "text": "x" * 1_700_000})
    told = db.post("_bulk_docs", {"docs": docs}).json()
    assert [row["id"] for row in told] == [doc["_id"] for doc in docs]
    assert [(row["id"], row["error"]) for row in told if "error" in row] == [("large", "forbidden")]
    assert db.lib.info().doc_count == 20
    assert error_of(db("PUT", "large", json=docs[3]))[:2] == (413, "too_large")


def test_the_limit_is_a_document_s_not_a_request_s(own):
    db = own(limits=Limits(body_bytes=200_000)).database()
    docs = [{"_id": f"d{n:03}", "text": "x" * 100_000} for n in range(120)]
    docs.insert(5, {"_id": "large", "text": "x" * 200_000})
    told = db.post("_bulk_docs", {"docs": docs}).json()
    assert [row["id"] for row in told] == [doc["_id"] for doc in docs]
    assert [(row["id"], row["error"]) for row in told if "error" in row] == [("large", "forbidden")]
    assert db.lib.info().doc_count == 120


def test_nothing_is_stored_of_a_body_that_is_no_json(db):
    for tail in ('{"a":tru}]}', '{"_id":"b"}],}', '{"_id":"b"}', '{"_id":"b"},]}'):
        body = '{"docs":[{"_id":"a"},' + tail
        answer = db(
            "POST", "_bulk_docs", content=body, headers={"Content-Type": "application/json"}
        )
        assert error_of(answer)[:2] == (400, "bad_request")
    assert db.lib.info().doc_count == 0


def test_more_documents_than_a_request_may_have(own):
    db = own(limits=Limits(bulk_docs_max=3)).database()
    assert error_of(db.post("_bulk_docs", {"docs": [{}] * 4}))[:2] == (413, "too_large")
    assert db.lib.info().doc_count == 0
    assert len(db.post("_bulk_docs", {"docs": [{}] * 3}).json()) == 3


# --- a later commit of a request fails ---


@pytest.fixture
def failing(own, monkeypatch):
    """A database, and how to let a commit fail: `fails_at(number, error)`, 0 is the first."""
    db = own(limits=Limits(bulk_docs=2)).database()

    def fails_at(number: int, error: Exception) -> None:
        commits = itertools.count()
        for name in ("bulk", "replicate"):
            write = getattr(ChangesDB, name)

            def fails(self, docs, write=write, **more):
                if next(commits) == number:
                    raise error
                return write(self, docs, **more)

            monkeypatch.setattr(ChangesDB, name, fails)

    return db, fails_at


DOWN = EngineUnavailableError("no etcd")


@pytest.mark.parametrize(
    ("error", "word"),
    [(DOWN, "service_unavailable"), (NoSpaceError("full"), "insufficient_storage")],
)
def test_edits_that_are_stored_are_told_when_a_later_commit_fails(failing, error, word):
    db, fails_at = failing
    fails_at(1, error)
    docs = [{"_id": "a"}, {}, {"_id": "c"}, {"_id": "d", "_x": 1}, {"_id": "e"}, {"_id": "f"}]
    answer = db.post("_bulk_docs", {"docs": docs})
    assert answer.status_code == 201
    a, b, c, d, *untried = answer.json()
    assert (a["ok"], a["rev"]) == (True, db.get("a").json()["_rev"])
    assert (b["ok"], b["rev"]) == (True, db.get(b["id"]).json()["_rev"])
    assert c == {"id": "c", "error": word, "reason": str(error)}
    assert (d["id"], d["error"]) == ("d", word)
    for row in untried:
        assert (row["error"], row["reason"]) == (
            "service_unavailable",
            f"the edit of {row['id']!r} was not made",
        )
    assert [row["id"] for row in untried] == ["e", "f"]
    assert db.lib.info().doc_count == 2


def test_a_request_fails_of_which_nothing_is_stored(failing):
    db, fails_at = failing
    fails_at(0, DOWN)
    answer = db.post("_bulk_docs", {"docs": [{}] * 5})
    assert error_of(answer) == (503, "service_unavailable", "no etcd")
    assert db.lib.info().doc_count == 0


def test_replicated_documents_come_again_when_a_later_commit_fails(failing):
    """CouchDB's replicator passes over an error in a row: it must see the request fail."""
    db, fails_at = failing
    fails_at(1, DOWN)
    docs = {"docs": [branch(id, 1, "a") for id in "abcde"], "new_edits": False}
    assert error_of(db.post("_bulk_docs", docs)) == (503, "service_unavailable", "no etcd")
    assert db.lib.info().doc_count == 2
    assert db.post("_bulk_docs", docs).json() == []
    assert db.lib.info().doc_count == 5


def test_a_replicated_document_that_was_not_made_comes_again(db, monkeypatch):
    """As when others commit to etcd all the time, until the time is over."""
    late = [Edited("a", revision(1, "a")), Edited("b", error=EditNotMadeError("b"))]
    monkeypatch.setattr(ChangesDB, "replicate", lambda self, docs, timeout=None: late)
    docs = {"docs": [branch("a", 1, "a"), branch("b", 1, "a")], "new_edits": False}
    assert error_of(db.post("_bulk_docs", docs))[:2] == (503, "service_unavailable")


# --- _all_docs ---


@pytest.fixture
def letters(db):
    """Ten documents, a to j, of which c is deleted."""
    db.lib.bulk([{"_id": letter, "is": letter} for letter in "abcdefghij"])
    db.lib.remove("c", db.lib.get("c")["_rev"])
    return db


def ids(answer) -> str:
    assert answer.status_code == 200, answer.text
    return "".join(row["key"] for row in answer.json()["rows"])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "abdefghij"),
        ({"limit": 2}, "ab"),
        ({"limit": 0}, ""),
        ({"skip": 2, "limit": 2}, "de"),
        ({"startkey": '"c"'}, "defghij"),
        ({"start_key": '"e"', "end_key": '"g"'}, "efg"),
        ({"startkey": '"e"', "endkey": '"g"', "inclusive_end": "false"}, "ef"),
        ({"key": '"e"'}, "e"),
        ({"key": '"c"'}, ""),
        ({"descending": "true"}, "jihgfedba"),
        ({"descending": "true", "limit": 2}, "ji"),
        ({"descending": "true", "skip": 1, "limit": 2}, "ih"),
        ({"descending": "true", "startkey": '"g"', "endkey": '"e"'}, "gfe"),
        (
            {"descending": "true", "startkey": '"g"', "endkey": '"e"', "inclusive_end": "false"},
            "gf",
        ),
    ],
)
def test_a_range_of_all_docs(letters, query, expected):
    assert ids(letters.get("_all_docs", **query)) == expected
    body = {name: json.loads(str(value)) for name, value in query.items()}
    assert ids(letters.post("_all_docs", body)) == expected


def test_rows_of_all_docs(letters):
    page = letters.get("_all_docs", include_docs="true").json()
    assert (page["total_rows"], page["offset"]) == (9, 0)
    rev = letters.lib.get("a")["_rev"]
    doc = {"_id": "a", "_rev": rev, "is": "a"}
    assert page["rows"][0] == {"id": "a", "key": "a", "value": {"rev": rev}, "doc": doc}
    assert [row["doc"]["is"] for row in page["rows"]] == list("abdefghij")


def test_all_docs_by_keys(letters):
    rows = letters.post("_all_docs", {"keys": ["b", "c", "nobody", "_x", "b"]}).json()["rows"]
    assert [row["key"] for row in rows] == ["b", "c", "nobody", "_x", "b"]
    assert rows[1]["value"]["deleted"] is True
    assert rows[2] == {"key": "nobody", "error": "not_found"}
    assert rows[3] == {"key": "_x", "error": "not_found"}
    with_docs = letters.get("_all_docs", keys='["c","b"]', include_docs="true").json()["rows"]
    assert [row["doc"] and row["doc"]["is"] for row in with_docs] == [None, "b"]
    assert ids(letters.post("_all_docs", {"keys": ["b", "d"], "descending": True})) == "db"


def test_conflicts_in_all_docs(db):
    db.lib.replicate([branch("d", 1, "a"), branch("d", 1, "b")])
    (row,) = db.get("_all_docs", include_docs="true", conflicts="true").json()["rows"]
    assert row["doc"]["_conflicts"] == [revision(1, "a")]


@pytest.mark.parametrize(
    "query", [{"startkey": "x"}, {"startkey": "1"}, {"limit": -1}, {"limit": "x"}, {"keys": "1"}]
)
def test_all_docs_that_cannot_be_understood(db, query):
    assert error_of(db.get("_all_docs", **query))[:2] == (400, "bad_request")


@pytest.mark.parametrize("descending", ["false", "true"])
@pytest.mark.parametrize("name", ["startkey", "start_key", "endkey", "end_key", "key", "keys"])
def test_a_key_that_is_no_utf_8(letters, name, descending):
    value = ["a", "\ud800"] if name == "keys" else "a\ud800"
    asked = letters.get("_all_docs", **{name: json.dumps(value), "descending": descending})
    assert error_of(asked)[:2] == (400, "bad_request")
    headers = {"Content-Type": "application/json"}
    body = json.dumps({name: value, "descending": descending})
    posted = letters("POST", "_all_docs", content=body, headers=headers)
    assert error_of(posted)[:2] == (400, "bad_request")


@pytest.mark.long_after(2)
@pytest.mark.parametrize("served", ENGINES, indirect=True)
@pytest.mark.parametrize("character", ["x", "\0", "é", "€", "\U0001f600"])
def test_a_key_that_is_longer_than_any_id(db, character):
    """It stands where it would, and is no document's."""
    longest = character * (256 // max(2 - (character != "\0"), len(character.encode())))
    db.lib.bulk([{"_id": id} for id in ("+", longest[:-1], longest, "\U0010ffff")])

    def keys(**query) -> list[str]:
        answer = db.post("_all_docs", query)
        assert answer.status_code == 200, answer.text
        return [row["key"] for row in answer.json()["rows"]]

    every = keys()
    at = every.index(longest) + 1
    for long in (longest + character, longest + "\0", character * 1_000_000):
        assert keys(startkey=long) == every[at:]
        assert keys(endkey=long) == keys(endkey=long, inclusive_end=False) == every[:at]
        assert keys(startkey=long, descending=True) == every[:at][::-1]
        assert keys(endkey=long, descending=True) == every[at:][::-1]
        assert keys(key=long) == []
        (row,) = db.post("_all_docs", {"keys": [long]}).json()["rows"]
        assert row == {"key": long, "error": "not_found"}


def test_all_docs_of_a_past_time(letters):
    before = letters.lib.store.resolved()
    letters.lib.put({"_id": "z"})
    assert ids(letters.get("_all_docs", as_of=before)) == "abdefghij"
    assert ids(letters.get("_all_docs")) == "abdefghijz"
