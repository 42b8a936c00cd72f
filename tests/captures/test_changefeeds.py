"""Changefeeds as records: what operators do, what is refused, and what the past says."""

import pytest

import snapkv
from cdcmeta.errors import ChangefeedNotFoundError, InvalidArgumentError
from cdcmeta.scheduler.runtime import Changefeeds
from cdcmeta.scheduler.runtime.records import Registration
from snapkv.errors import CorruptStoreError

SOURCE, SINK = "lmdb:/source", "jsonl:/sink"


@pytest.fixture
def store():
    with snapkv.open("memory:") as store:
        yield store


@pytest.fixture
def feeds(store):
    return Changefeeds(store)


def create(feeds, id="copy", **options):
    values = {"prefixes": ["a/", "b/"], "start": 100, "sink": SINK} | options
    return feeds.create(id, SOURCE, **values)


def test_a_changefeed_is_kept_with_its_past(feeds, store):
    made = create(feeds)
    assert feeds.get("copy") == made
    then = store.resolved()
    paused = feeds.pause("copy")
    assert (paused.state, paused.epoch > made.epoch) == ("paused", True)
    assert feeds.resume("copy").state == "running"
    assert feeds.get("copy", as_of=then) == made
    assert feeds.checkpoint("copy").checkpoint == 100
    assert [each.note for each in store.commits()][-3:] == [
        "create changefeed copy",
        "update changefeed copy",
        "update changefeed copy",
    ]
    feeds.remove("copy")
    assert feeds.list() == []
    assert [each.id for each in feeds.list(as_of=then)] == ["copy"]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"prefixes": []}, "give one of them"),
        ({"databases": ["users"]}, "give one of them"),
        ({"prefixes": None, "log": "rows", "databases": ["users"], "ranges": 1}, "give one of"),
        ({"prefixes": None, "log": "rows"}, "ranges of a log"),
        ({"prefixes": None, "log": "rows", "ranges": 2000}, "ranges of a log"),
        ({"prefixes": None, "databases": ["Users"]}, "lower-case letters"),
        ({"prefixes": None, "databases": ["users", "users"]}, "each once"),
        (
            {"prefixes": None, "databases": ["a", "b"], "sink": "couch+http://h:1/x"},
            "for the name of each",
        ),
        ({"prefixes": None, "databases": ["a"], "sink": "record+lmdb:x"}, "prefixes as tables"),
        ({"prefixes": ["a/", "a/b/"]}, "each key belongs to one table"),
        ({"prefixes": ["a/", "a/"]}, "each key belongs to one table"),
        ({"prefixes": ["", "a/"]}, "each key belongs to one table"),
        ({"prefixes": ["*"]}, "a prefix is a text"),
        ({"prefixes": [b"a/"]}, "a prefix is a text"),
        ({"prefixes": "a/"}, "iterable"),
        ({"start": -1}, "start is a timestamp"),
        ({"start": "yesterday"}, "start is a timestamp"),
        ({"start": True}, "start is a timestamp"),
        ({"id": "../x"}, "letters, digits"),
        ({"id": ""}, "letters, digits"),
    ],
    ids=str,
)
def test_what_no_changefeed_is_is_refused(feeds, bad, why):
    with pytest.raises(InvalidArgumentError, match=why):
        create(feeds, **bad)
    assert feeds.list() == []


def test_a_store_is_not_replicated_into_itself(feeds):
    with pytest.raises(InvalidArgumentError, match="the same store"):
        feeds.create("loop", SOURCE, SOURCE, start=5)
    feeds.create("names", SOURCE, SOURCE, start=5, sink_name="copy")


def test_a_login_is_not_kept_in_a_record(feeds):
    with pytest.raises(InvalidArgumentError, match="CDCMETA_SINK_USER") as caught:
        feeds.create("couch", SOURCE, "couch+http://ann:secret@host/db", start=5)
    assert "secret" not in str(caught.value)
    assert feeds.list() == []


def test_names_are_taken_once_and_unknown_ones_are_errors(feeds):
    create(feeds)
    with pytest.raises(InvalidArgumentError, match="exists already"):
        create(feeds)
    for ask in (feeds.get, feeds.pause, feeds.remove, feeds.rebalance, feeds.checkpoint):
        with pytest.raises(ChangefeedNotFoundError, match="'other' does not exist"):
            ask("other")


def test_tables_change_unless_they_began_with_a_state(feeds):
    create(feeds)
    assert feeds.update("copy", prefixes=["a/", "c/"]).prefixes == ("a/", "c/")
    create(feeds, "state", with_state=True)
    assert feeds.checkpoint("state").checkpoint == 99
    assert feeds.update("state", prefixes=["a/"]).prefixes == ("a/",)
    with pytest.raises(InvalidArgumentError, match="would lack theirs"):
        feeds.update("state", prefixes=["a/", "c/"])
    with pytest.raises(InvalidArgumentError, match="cannot be changed"):
        feeds.update("copy", source="lmdb:/other")


def test_captures_are_named_by_label_or_name(feeds, store):
    create(feeds)
    with pytest.raises(InvalidArgumentError, match="registered are: none"):
        feeds.drain("c1")
    said = [Registration("default", label, "here", 10.0) for label in ("c1", "c2", "c2")]
    sessions = [store.session(60, each.encode()) for each in said]
    other = store.session(60, Registration("another", "c1", "here", 10.0).encode())
    name = f"c1-{sessions[0].id:x}"
    assert sorted(each.label for each in feeds.captures().values()) == ["c1", "c2", "c2"]
    feeds.drain("c1")
    feeds.drain(name)
    feeds.move("copy", "a/", "c1")
    with pytest.raises(InvalidArgumentError, match="several captures"):
        feeds.drain("c2")
    with pytest.raises(InvalidArgumentError, match="has no table 'z/'"):
        feeds.move("copy", "z/", "c1")
    for session in (*sessions, other):
        session.close()


def test_a_record_that_is_none_is_an_error_to_its_readers(feeds, store):
    store.space("scheduler/default").commit(puts={b"feed/bad": b"{}"})
    with pytest.raises(CorruptStoreError, match="feed/bad"):
        feeds.list()
