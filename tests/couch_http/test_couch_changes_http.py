"""CouchDB's HTTP tests of `_changes` (changes_test.exs), and what its parameters may be."""

import pytest

import snapkv

from .served import error_of

POSITIVE = "The heartbeat value should be a positive integer (in milliseconds)."
INTEGER = "Invalid heartbeat value. Expecting a positive integer value (in milliseconds)."
FEEDS = "Supported `feed` types: normal, continuous, live, longpoll, eventsource"
DOC_IDS = "`doc_ids` filter parameter is not a list of doc ids."
SINCE = "Malformed sequence supplied in 'since' parameter."


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"heartbeat": "-1000"}, POSITIVE),
        ({"heartbeat": "0"}, POSITIVE),
        ({"heartbeat": "a1000"}, INTEGER),
        ({"heartbeat": "1.5"}, INTEGER),
        ({"feed": "sometimes"}, FEEDS),
        ({"since": "later"}, SINCE),
        ({"since": "f" * 26}, SINCE),
        ({"since": "-1"}, SINCE),
        ({"since": "14"}, SINCE),
        ({"since": " 14 "}, SINCE),
        ({"since": "00"}, SINCE),
        ({"since": "2025-13-01T00:00:00Z"}, "invalid_time_format"),
        ({"since": "2025-01-01T00:00:00"}, "invalid_time_format"),  # nobody knows where
        ({"limit": "-1"}, "The limit value should be a non-negative integer"),
        ({"limit": "x"}, "The limit parameter should be an integer"),
        ({"limit": "9" * 30}, "The limit parameter should be an integer"),
        ({"timeout": "x"}, "The timeout parameter should be an integer"),
        ({"style": "some"}, "Supported `style` values: main_only, all_docs"),
        ({"filter": "_nothing"}, "unknown builtin filter name"),
        ({"filter": "a/b/c"}, "`filter` must be of the form `designname/filtername`"),
        ({"filter": "a"}, "`filter` must be of the form `designname/filtername`"),
        ({"filter": "_view"}, "`view` filter parameter is not provided."),
        ({"filter": "_view", "view": "a"}, "`view` must be of the form `designname/viewname`"),
        ({"filter": "_doc_ids"}, DOC_IDS),
        ({"filter": "_doc_ids", "doc_ids": '"a"'}, DOC_IDS),
        ({"filter": "_doc_ids", "doc_ids": "[1]"}, DOC_IDS),
        ({"filter": "_doc_ids", "doc_ids": "[a"}, "invalid UTF-8 JSON"),
        ({"filter": "_selector"}, "Selector must be specified in POST payload"),
        ({"as_of": "yesterday"}, None),
    ],
)
def test_a_parameter_that_cannot_be(db, query, reason):
    status, error, told = error_of(db.get("_changes", **query))
    assert (status, error) == (400, "bad_request")
    assert reason is None or told == reason


def test_a_sequence_that_was_cut_off(db):
    """Whatever is left of it, also nothing but digits, is no time."""
    seq = str(db.lib.put({"_id": "a"}).seq)
    for whole in (seq, "14" + "0682599138171289".ljust(24, "0")):
        for size in range(1, len(whole)):
            for since in (whole[:size], f'"{whole[:size]}"'):
                assert error_of(db.get("_changes", since=since)) == (400, "bad_request", SINCE)
    assert db.changes(since=seq)["results"] == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"selector": 1}, "Selector error: expected a JSON object"),
        ({"selector": {}, "fields": 1}, "Selector error: fields must be JSON array"),
        ({"selector": {"a": {"$no": 1}}}, "Invalid operator: $no"),
        ({"selector": {"a": {"$regex": "(a+)+b"}}}, "operator $regex is not allowed here"),
        (
            {"selector": {"$or": [{"a": {"$not": {"$regex": "x"}}}]}},
            "operator $regex is not allowed here",
        ),
        ([], "Request body must be a JSON object"),
        ({"selector": {"$or": [{}] * 10_000}}, "the selector has more than 10000 conditions"),
    ],
)
def test_a_body_that_cannot_be(db, body, reason):
    answer = db.post("_changes", body, filter="_selector")
    assert error_of(answer) == (400, "bad_request", reason)


@pytest.mark.parametrize("depth", range(900, 1_000, 7))
def test_a_body_that_can_hardly_be_parsed(db, depth):
    """Its text could not be made again."""
    headers = {"Content-Type": "application/json"}
    nested = "[" * depth + "]" * depth
    for more in ("", f',"text":"{"x" * 70_000}"'):  # a large one is parsed elsewhere
        body = f'{{"selector":{{"a":{{"$in":{{"a":{nested}}}}}}}{more}}}'
        answer = db("POST", "_changes?filter=_selector", content=body, headers=headers)
        assert error_of(answer)[:2] == (400, "bad_request")
        body = f'{{"passed_over":{nested}{more}}}'
        answer = db("POST", "_changes", content=body, headers=headers)
        assert answer.status_code in (200, 400)


def test_names_take_any_case_and_unknown_ones_are_passed_over(db):
    db.lib.bulk([{"_id": "a"}, {"_id": "b"}])
    page = db.changes(LIMIT=1, Descending="true", whatever="x", include_docs="yes")
    assert [row["id"] for row in page["results"]] == ["b"]
    assert "doc" not in page["results"][0]


def test_functions_of_design_documents(db):
    """They are JavaScript: what is not there is not found, what is cannot run."""
    for query in ({"filter": "d/f"}, {"filter": "_view", "view": "d/f"}):
        assert error_of(db.get("_changes", **query)) == (404, "not_found", "missing")
    db.lib.put({"_id": "_design/d", "filters": {"f": "x"}, "views": {"v": {}}})
    answer = db.get("_changes", filter="d/other")
    assert error_of(answer) == (404, "not_found", "missing json key: other")
    answer = db.get("_changes", filter="_view", view="d/other")
    assert error_of(answer) == (404, "not_found", "missing json key: other")
    for query in ({"filter": "d/f"}, {"filter": "_view", "view": "d/v"}):
        assert error_of(db.get("_changes", **query))[:2] == (501, "not_implemented")
    db.lib.put({"_id": "_design/none"})
    answer = db.get("_changes", filter="none/f")
    assert error_of(answer) == (404, "not_found", "missing json key: filters")


def test_docids_by_post_and_get(db):
    db.lib.bulk([{"_id": id} for id in ("doc1", "doc2", "a/b")])
    by_get = db.changes(filter="_doc_ids", doc_ids='["a/b","doc1"]')
    by_post = db.post("_changes", {"doc_ids": ["a/b", "doc1"]}, filter="_doc_ids").json()
    assert by_get == by_post
    assert [row["id"] for row in by_get["results"]] == ["doc1", "a/b"]


def test_limit_counts_what_is_shown(db):
    """COUCHDB-1037."""
    db.lib.bulk([{"_id": f"d{n}", "n": n} for n in range(600)])
    body = {"selector": {"n": {"$gte": 590}}}
    page = db.post("_changes", body, filter="_selector", limit=1).json()
    assert [row["id"] for row in page["results"]] == ["d590"]
    assert page["pending"] == 9
    nothing = db.post("_changes", {"selector": {"n": -1}}, filter="_selector").json()
    assert nothing["results"] == []
    assert nothing["last_seq"] == db.get().json()["update_seq"]


def test_a_revision_that_is_known_makes_no_row(db):
    """COUCHDB-1256."""
    db.lib.bulk([{"_id": "a"}, {"_id": "b"}])
    before = db.changes()
    doc = db.get("a", revs="true").json()
    answer = db("PUT", "a", params={"new_edits": "false"}, json=doc)
    assert answer.status_code == 201
    assert db.changes() == before


def test_fields_of_a_selector(db):
    db.lib.put({"_id": "a", "name": {"first": "Ann", "last": "B"}, "age": 7})
    body = {"selector": {"age": 7}, "fields": ["_id", "name.first", "nothing", "age.no"]}
    page = db.post("_changes", body, filter="_selector", include_docs="true").json()
    assert page["results"][0]["doc"] == {"_id": "a", "name": {"first": "Ann"}}


def test_a_page_of_many_rows_is_whole(db):
    """More than is read at once, and sent at once."""
    db.lib.bulk([{"_id": f"d{n:04}", "text": "x" * 300} for n in range(1_000)])
    page = db.changes(include_docs="true")
    assert [row["doc"]["_id"] for row in page["results"]] == [f"d{n:04}" for n in range(1_000)]
    assert page["pending"] == 0
    backwards = db.changes(descending="true")
    assert [row["id"] for row in backwards["results"]] == [f"d{n:04}" for n in range(999, -1, -1)]
    assert backwards["last_seq"] == page["results"][0]["seq"]


def test_paging_by_limit_meets_every_row_once(db):
    db.lib.bulk([{"_id": f"d{n}"} for n in range(25)])
    since, seen, pending = "0", [], None
    while pending != 0:
        page = db.changes(since=since, limit=7)
        since, pending = page["last_seq"], page["pending"]
        seen += [row["id"] for row in page["results"]]
        assert pending == 25 - len(seen)
    assert seen == [f"d{n}" for n in range(25)]


def test_etag(db):
    db.lib.put({"_id": "a"})
    tag = db.get("_changes").headers["etag"]
    same = db("GET", "_changes", headers={"If-None-Match": tag})
    assert (same.status_code, same.content) == (304, b"")
    assert db("GET", "_changes", headers={"If-None-Match": f"W/{tag}"}).status_code == 304
    assert db("GET", "_changes?limit=1", headers={"If-None-Match": tag}).status_code == 200
    db.lib.put({"_id": "b"})
    assert db("GET", "_changes", headers={"If-None-Match": tag}).status_code == 200


def test_head(db):
    db.lib.put({"_id": "a"})
    answer = db("HEAD", "_changes", params={"feed": "continuous"})
    assert (answer.status_code, answer.content) == (200, b"")


def test_compacted(own):
    clock = snapkv.ManualClock(1_700_000_000_000)
    db = own(clock=clock).database()
    first = db.lib.put({"_id": "a"})
    db.lib.put({"_id": "a"}, rev=first.rev)
    clock.advance(600_000)
    db.lib.put({"_id": "b"})
    clock.advance(600_000)
    db.lib.store.compact(db.lib.store.tick().ts)
    status, error, reason = error_of(db.get("_changes", as_of=first.seq.timestamp))
    assert (status, error) == (410, "gone")
    assert "compacted" in reason
    assert len(db.changes()["results"]) == 2
