"""Changefeeds as records: what operators do, what is refused, and what the past says."""

import json

import pytest

import snapkv
from cdcmeta.errors import ChangefeedNotFoundError, InvalidArgumentError
from cdcmeta.scheduler.core.watermarks import Watermarks
from cdcmeta.scheduler.runtime import Changefeeds, Placement
from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.scheduler.runtime.changefeed_records import Registration
from cdcmeta.scheduler.runtime.stores_and_sinks import OBJECT_STORES, check_source
from snapkv import ManualClock, SnapKVError
from snapkv.archive.storage import CONFIG
from snapkv.engine.etcd.endpoint import endpoints_of
from snapkv.errors import CorruptStoreError, InvalidOptionError

pytestmark = pytest.mark.slow

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


SINKS = [
    "lmdb:./copy",
    "etcd://10.0.0.7:2379,10.0.0.8",
    "memory:here",
    "memory:",
    "jsonl:./rows",
    "call:write",
    "couch+http://127.0.0.1:5984/mirror",
    "couch+https://couch.example/a/b",
    "record+lmdb:./copy",
    "record+etcd://h",
    "record+memory:here",
    "record+archive:./copy",
    "record+archive:s3://bucket/copy",
]
NO_SINKS = {
    "mirror": "'mirror' is of an unknown form",
    "json:./rows": "unknown form",
    "archive:./copy": "unknown form",
    "record+foo:x": "unknown form",
    "record+record+lmdb:x": "unknown form",
    "record+jsonl:./rows": "unknown form",
    "couch+ftp://h/x": "unknown form",
    "lmdb:": "path of a directory",
    "lmdb://copy": "'//' does not lead",
    "record+lmdb:~/copy": "'~' is not expanded",
    "record+archive:": "the path of a folder",
    "record+archive:ftp://h/x": "or s3://BUCKET/PATH",
    "record+archive:s3://": "or s3://BUCKET/PATH",
    "record+archive:s3://ann:secret@bucket/x": "or s3://BUCKET/PATH",
    "etcd://": "//HOST:PORT",
    "etcd:10.0.0.7": "//HOST:PORT",
    "etcd://h:port": "//HOST:PORT",
    "record+etcd://h/x": "without a path",
    "jsonl:": "name of a directory",
    "call:": "name of a function",
    "couch+http://127.0.0.1:5984": "CouchDB database",
    "couch+http://127.0.0.1:5984/": "CouchDB database",
    "couch+http://h/copy-*": "name of a database",
}


@pytest.mark.parametrize("sink", SINKS)
def test_a_sink_of_each_known_form_is_taken(feeds, sink):
    assert create(feeds, sink=sink).sink == sink
    create(feeds, "other")
    assert feeds.update("other", sink=sink).sink == sink


@pytest.mark.parametrize("sink", NO_SINKS)
def test_a_sink_of_another_form_is_an_error_and_nothing_is_written(feeds, sink):
    with pytest.raises(InvalidArgumentError, match="jsonl:DIR, call:NAME, couch") as caught:
        create(feeds, sink=sink)
    assert NO_SINKS[sink] in str(caught.value)
    assert feeds.list() == []
    made = create(feeds)
    with pytest.raises(InvalidArgumentError, match="jsonl:DIR, call:NAME, couch"):
        feeds.update("copy", sink=sink)
    assert feeds.list() == [made]


def test_the_name_of_a_database_is_only_in_the_sink_of_databases(feeds):
    names = {"prefixes": None, "databases": ["a", "b"]}
    create(feeds, sink="couch+http://h:5984/copy-*", **names)
    with pytest.raises(InvalidArgumentError, match="CouchDB database"):
        create(feeds, "other", sink="couch+http://h:5984?*", **names)
    with pytest.raises(InvalidArgumentError, match="are not databases"):
        feeds.update("copy", prefixes=["a/"], databases=[])


@pytest.mark.parametrize(
    "source", ["shop", "jsonl:./rows", "lmdb:", "etcd://h/x", "call:x", "record+lmdb:x"]
)
def test_a_source_is_a_store_by_its_url(feeds, source):
    with pytest.raises(InvalidArgumentError, match="a source has one of the forms lmdb:DIR"):
        feeds.create("copy", source, SINK, start=5)
    assert feeds.list() == []
    feeds.create("copy", "archive:./shop", SINK, start=5)


STORES = [
    "mirror",
    "mirror:x",
    "lmdb:",
    "lmdb:/",
    "lmdb:~/x",
    "lmdb://x",
    "lmdb:///x",
    "lmdb:./x/~y//z",
    "lmdb:/nowhere/x",
    "lmdb:x\0y",
    "memory:",
    "memory:x",
    "archive:./x",
    "archive:ftp://h/x",
    "archive:s3://",
    "archive:s3://ann@bucket/x",
    "etcd://",
    "etcd:h",
    "etcd://h/x",
    "etcd://u:secret@h",
    "etcd://h:x",
    "etcd://h?x",
]


@pytest.mark.parametrize("url", STORES)
def test_a_source_is_checked_as_snapkv_checks_it(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    try:
        snapkv.open(url, create=False).close()
    except InvalidOptionError:
        with pytest.raises(InvalidArgumentError):
            check_source(url)
    except SnapKVError:
        check_source(url)
    else:
        check_source(url)


def test_archives_are_where_snapkv_has_them():
    assert set(OBJECT_STORES) == set(CONFIG)
    for url in ["etcd://a, b:1", "etcd://[::1]:2379,h/", "etcd://h:"]:
        assert endpoints_of(url)
        check_source(url)


def test_what_may_be_a_password_is_not_shown(feeds):
    for url in (
        "mysql://ann:secret@host/db",
        "record+foo://ann:secret@host",
        "etcd://ann:secret@host",
        "record+archive:s3://ann:secret@bucket/x",
        "record+archive:s3://bucket/x?password=secret",
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            create(feeds, sink=url)
        assert "secret" not in str(caught.value)


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


def test_tables_change_also_of_one_that_began_with_a_state(feeds, store):
    create(feeds)
    assert feeds.update("copy", prefixes=["a/", "c/"]).prefixes == ("a/", "c/")
    made = create(feeds, "state", with_state=True)
    assert feeds.checkpoint("state").checkpoint == 99
    assert feeds.update("state", prefixes=["a/"]).stopped == {}, "it never had its state"
    reached = records.encoded_watermarks(Watermarks(500, 500, 0), made.created)
    store.space("scheduler/default").commit(puts={b"checkpoint/state": reached})
    assert feeds.update("state", prefixes=["a/", "c/"]).begins == {"c/": (499, 500)}
    assert feeds.checkpoint("state").checkpoint == 499
    assert feeds.update("state", prefixes=["c/"]).stopped == {"a/": 500}
    assert feeds.update("state", prefixes=["a/"]).begins == {"a/": (500, 0)}
    with pytest.raises(InvalidArgumentError, match="cannot be changed"):
        feeds.update("copy", source="lmdb:/other")


def test_an_update_of_nothing_is_an_error(feeds):
    made = create(feeds)
    with pytest.raises(InvalidArgumentError, match="sink, prefixes, databases, state"):
        feeds.update("copy")
    assert feeds.get("copy") == made


def test_a_record_of_an_earlier_version_is_read_and_can_be_stopped(feeds, store):
    create(feeds)
    space = store.space("scheduler/default")
    old = json.loads(space.at()[b"feed/copy"]) | {"sink": "mirror", "error": "it was full"}
    space.commit(puts={b"feed/copy": json.dumps(old).encode()})
    assert feeds.get("copy").sink == "mirror"
    assert feeds.pause("copy").state == "paused"
    assert feeds.update("copy", sink=SINK, state="running").sink == SINK
    with pytest.raises(InvalidArgumentError, match="one of running, paused: 'failed'"):
        feeds.update("copy", state="failed")


def test_an_error_names_ten_tables_of_many(feeds):
    create(feeds, prefixes=[f"t{n:02}/" for n in range(1_012)])
    with pytest.raises(InvalidArgumentError, match=r"its tables: t00/, .*, t09/ and 1,002 more$"):
        feeds.move("copy", "t", "c1")


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


def test_where_some_tables_are_since_when_and_what_was_reported():
    clock = ManualClock(1_800_000_000_000)
    with snapkv.open("memory:", clock=clock) as store:
        check_places_and_reports(store, Changefeeds(store), clock)


def check_places_and_reports(store, feeds, clock):
    create(feeds)
    space = store.space(records.space_of("default"))

    def place(capture, *tables):
        puts = {records.place_key("copy", t): records.encoded_place(capture, "new") for t in tables}
        return space.commit(puts=puts).ts

    both, moved = place("c1-5f", "a/", "b/"), place("c2-60", "b/")
    report = {"feeds": {"copy": {"tables": 2, "error": "no sink", "problems": {}}}}
    reported = space.commit(puts={records.report_key("c1-5f"): records.encoded(report)}).ts
    removed = space.commit(deletes=[records.report_key("c1-5f")]).ts
    assert feeds.places_of("copy", ["b/", "x/", "a/"]) == [
        Placement("b/", "c2-60", "new", moved),
        None,
        Placement("a/", "c1-5f", "new", both),
    ]
    assert feeds.places_of("copy", ["b/"], as_of=both) == [Placement("b/", "c1-5f", "new", both)]
    assert feeds.places_of("copy", ["b/"], as_of=both - 1) == [None]
    assert feeds.reports(as_of=moved) == feeds.reports(as_of=removed) == feeds.reports() == {}
    (found,) = feeds.reports(as_of=reported).items()
    assert (found[0], found[1]["copy"].error) == ("c1-5f", "no sink")
    clock.advance(600_000)
    store.compact(reported)
    assert [each.ts for each in feeds.places_of("copy", ["a/", "b/"])] == [0, 0]
