"""Tables that an update puts into a changefeed, or takes out and puts in again, lack no change."""

import json
import random
import threading
from contextlib import suppress

import pytest
from etcd_server import eventually
from sampling import SOAK, first_of

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core.watermarks import Watermarks
from cdcmeta.scheduler.executors.json_lines_sink import file_name
from cdcmeta.scheduler.executors.recorded_sink import folder_name, store_name
from cdcmeta.scheduler.runtime import Capture, Changefeeds, changefeed_records
from cdcmeta.scheduler.transport.local import LocalNetwork

pytestmark = pytest.mark.slow

WAIT_S = 30


class Copying:
    """A capture, a source in memory that is its own store, and a changefeed into a sink."""

    def __init__(self, sink, *, source="memory:", functions=None):
        self.store, self.sink, self.url = snapkv.open(source), sink, f"{source}here"
        if source != "memory:":
            self.url = source
        self.feeds, self.functions = Changefeeds(self.store), functions or {}
        self.captures = []

    def start(self, label="c1"):
        post = LocalNetwork().post(label)
        capture = Capture(
            self.store,
            post,
            label=label,
            store_url=self.url,
            ttl=5,
            tick_s=0.02,
            functions=self.functions,
        )
        capture.start()
        self.captures.append(capture)
        eventually(lambda: capture.life is not None, "the registration", wait_s=WAIT_S)

    def close(self):
        for capture in self.captures:
            capture.stop(drain=False)
        self.store.close()

    def create(self, prefixes, start, **options):
        return self.feeds.create("copy", self.url, self.sink, prefixes, start=start, **options)

    def update(self, *prefixes, what="prefixes"):
        """Change the tables; wait until those, and only those, are replicated."""
        feed = self.feeds.update("copy", **{what: prefixes})
        if feed.state == "running":
            self.until_replicated(feed)

    def until_replicated(self, feed):
        def tables():
            alive = [each.life for each in self.captures if each.life is not None]
            running = [life.tables().get("copy", []) for life in alive]
            return sorted(table for each in running for table in each)

        def is_followed():
            views = [each.life.registry.view for each in self.captures if each.life is not None]
            known = [view.feeds.get("copy") for view in views]
            return all(each is not None and each.epoch >= feed.epoch for each in known)

        wanted = sorted(feed.tables())
        eventually(lambda: is_followed() and tables() == wanted, f"{wanted}", wait_s=WAIT_S)

    def reach(self, ts=None):
        wanted = self.store.resolved() if ts is None else ts
        eventually(
            lambda: self.feeds.checkpoint("copy").checkpoint >= wanted,
            f"the checkpoint {wanted}",
            wait_s=WAIT_S,
        )

    def compact(self):
        self.store.reader.engine.compact(self.store.at().revision)

    def below(self, *prefixes):
        return {k: v for k, v in self.store.at().items() if k.startswith(prefixes)}


@pytest.fixture
def copying(tmp_path):
    made = []

    def make(sink="lmdb:{}", **options):
        made.append(Copying(sink.format(tmp_path / "out"), **options))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.close()


def content(feed, *tables):
    """Return what a store has, or the records of tables have."""
    if feed.sink.startswith("lmdb:"):
        with snapkv.open(feed.sink) as target:
            return dict(target.at().items())
    url, found = feed.sink.removeprefix("record+"), {}
    for table in tables:
        place = (
            (f"{url}/{folder_name(table)}", {})
            if url.startswith("archive:")
            else (url, {"name": store_name("default", table)})
        )
        with snapkv.open(place[0], **place[1]) as target:
            found |= dict(target.at().items())
    return found


def narrow(found, *prefixes):
    return {key: value for key, value in found.items() if key.startswith(prefixes)}


def lines(feed, table):
    path = f"{feed.sink.removeprefix('jsonl:')}/{file_name(table)}"
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def changes(feed, table):
    found = [line for line in lines(feed, table) if "changes" in line]
    return [(each["key"], each["value"]) for line in found for each in line["changes"]]


def read(feed, table):
    """Return what a reader of a file knows, that ends up with the last value of each key."""
    found = {}
    for line in lines(feed, table):
        if "state" in line:
            found = {}
        found.update({each["key"]: each["value"] for each in line.get("changes", [])})
    return {key: value.encode() for key, value in found.items() if value is not None}


@pytest.fixture(params=["memory", "lmdb", "etcd"])
def source(request, tmp_path):
    """The URL of the source, which captures share, too."""
    if request.param == "etcd":
        return request.getfixturevalue("etcd").url
    return "memory:" if request.param == "memory" else f"lmdb:{tmp_path / 'source'}"


@pytest.mark.long_after(2)
@pytest.mark.parametrize("with_state", [False, True], ids=["since", "state"])
def test_a_table_that_is_put_in_again_gets_what_changed_meanwhile(source, copying, with_state):
    feed = copying(source=source)
    start = feed.store.save("a/0", b"0")
    feed.create(["a/", "b/"], start, with_state=with_state)
    feed.store.save("a/removed", b"1")
    feed.reach(feed.store.save("b/1", b"1"))
    feed.update("a/")
    feed.store.remove("b/1")
    feed.store.save("b/2", b"2")
    feed.reach(feed.store.save("a/2", b"2"))
    feed.store.remove("a/removed")
    feed.update("a/", "b/")
    feed.reach(feed.store.save("b/3", b"3"))
    want = feed.below("a/", "b/")
    if not with_state:
        del want["a/0"]
    assert content(feed) == want


@pytest.mark.parametrize("with_state", [False, True], ids=["since", "state"])
def test_a_table_that_is_put_in_later_gets_its_changes_since_the_start(copying, with_state):
    feed = copying()
    start = feed.store.save("first", b"")
    feed.store.save("b/0", b"0")
    feed.create(["a/"], start, with_state=with_state)
    feed.reach(feed.store.save("a/1", b"1"))
    feed.update("a/", "b/")
    feed.reach(feed.store.save("b/1", b"1"))
    assert content(feed) == feed.below("a/", "b/")


def test_each_commit_is_in_a_file_once_also_of_a_table_that_was_taken_out(copying):
    feed = copying("jsonl:{}")
    start = feed.store.save("first", b"")
    feed.store.save("c/0", b"0")
    feed.create(["a/", "b/"], start)
    feed.reach(feed.store.save("b/1", b"1"))
    feed.update("a/")
    feed.store.save("b/2", b"2")
    feed.reach(feed.store.save("a/1", b"1"))
    feed.update("a/", "b/", "c/")
    feed.reach(feed.store.save("b/3", b"3"))
    assert changes(feed, "a/") == [("a/1", "1")]
    assert changes(feed, "b/") == [("b/1", "1"), ("b/2", "2"), ("b/3", "3")]
    assert changes(feed, "c/") == [("c/0", "0")]


def test_the_checkpoint_goes_back_until_a_new_table_has_caught_up(copying):
    feed = copying()
    start = feed.store.save("first", b"")
    feed.create(["a/"], start)
    reached = feed.store.save("a/1", b"1")
    feed.reach(reached)
    for capture in feed.captures:
        capture.stop(drain=False)
    feed.feeds.update("copy", prefixes=["a/", "b/"])
    assert feed.feeds.checkpoint("copy").checkpoint == start
    assert feed.feeds.pause("copy").begins, "a pause keeps where tables begin"
    assert feed.feeds.checkpoint("copy").checkpoint == start
    feed.feeds.resume("copy")
    feed.start("c2")
    feed.reach(reached)  # the source is quiet: it is known all the same that b/ has caught up
    assert not feed.feeds.pause("copy").begins


def test_a_late_checkpoint_of_an_owner_does_not_pass_a_new_table(copying):
    """The owner had not seen the update when it wrote how far the tables are that it knows."""
    feed = copying()
    start = feed.store.save("first", b"")
    made = feed.create(["a/"], start)
    feed.store.save("b/1", b"1")
    feed.reach(feed.store.save("a/1", b"1"))
    for capture in feed.captures:
        capture.stop(drain=False)
    feed.feeds.update("copy", prefixes=["a/", "b/"])
    watermarks = Watermarks(far := feed.store.resolved(), far, 0)
    late = changefeed_records.encoded_watermarks(watermarks, made.created)
    space = feed.store.space(changefeed_records.space_of("default"))
    space.commit(puts={changefeed_records.CHECKPOINT + b"copy": late})
    assert feed.feeds.checkpoint("copy").checkpoint == start
    feed.start("c2")
    feed.reach(feed.store.save("a/2", b"2"))
    assert content(feed) == feed.below("a/", "b/")


def test_a_new_table_that_is_behind_moves_when_its_capture_ends(copying):
    calls, go_on = [], threading.Event()

    def write(table, token, commits, checkpoint):
        if table == "b/" and not go_on.is_set():
            raise OSError("not yet")
        calls.extend((each.key, each.value) for commit in commits for each in commit)

    feed = copying("call:write", functions={"write": write})
    start = feed.store.save("first", b"")
    feed.create(["a/"], start)
    feed.store.save("b/1", b"1")
    feed.reach(feed.store.save("a/1", b"1"))
    feed.update("a/", "b/")
    feed.store.save("a/2", b"2")
    feed.start("c2")
    feed.captures[0].stop(drain=False)
    assert feed.feeds.checkpoint("copy").checkpoint == start
    go_on.set()
    feed.reach(feed.store.save("b/2", b"2"))
    assert {("b/1", b"1"), ("b/2", b"2"), ("a/2", b"2")} <= set(calls)


@pytest.mark.parametrize("sink", ["lmdb:{}", "record+lmdb:{}", "record+archive:{}"])
def test_a_table_whose_commits_are_gone_gets_its_state_and_loses_what_the_source_lacks(
    copying, sink
):
    feed = copying(sink)
    feed.store.save("b/kept", b"1")
    feed.store.save("b/removed", b"1")
    feed.create(["a/", "b/"], feed.store.resolved(), with_state=True)
    feed.reach(feed.store.save("a/1", b"1"))
    feed.update("a/")
    feed.store.remove("b/removed")
    feed.reach(feed.store.save("b/new", b"2"))
    feed.compact()
    feed.update("a/", "b/")
    feed.reach(feed.store.save("b/3", b"3"))
    assert content(feed, "a/", "b/") == feed.below("a/", "b/")


def test_a_table_that_began_without_a_state_names_what_is_gone(copying):
    feed = copying()
    start = feed.store.save("first", b"")
    feed.store.save("b/1", b"1")
    feed.create(["a/"], start)
    feed.reach(feed.store.save("a/1", b"1"))
    feed.compact()
    feed.feeds.update("copy", prefixes=["a/", "b/"])
    feed.store.save("a/2", b"2")

    def problem():
        reports = [each["copy"] for each in feed.feeds.reports().values() if "copy" in each]
        return any("b/" in each.problems for each in reports)

    eventually(problem, "the error of b/", wait_s=WAIT_S)
    assert feed.feeds.checkpoint("copy").checkpoint == start


def test_a_file_says_where_a_state_begins_anew(copying):
    feed = copying("jsonl:{}")
    feed.store.multi_save({"b/1": b"1", "b/removed": b"1"})
    feed.create(["a/", "b/"], feed.store.resolved(), with_state=True)
    feed.reach(feed.store.save("a/1", b"1"))
    feed.update("a/")
    feed.store.remove("b/removed")
    feed.compact()
    feed.update("a/", "b/")
    feed.reach(feed.store.save("b/2", b"2"))
    found = lines(feed, "b/")
    begun = found.index({"state": "begins"})
    before, after = found[:begun], found[begun:]
    assert {"b/1", "b/removed"} == {c["key"] for line in before for c in line.get("changes", [])}
    assert {"b/1", "b/2"} == {c["key"] for line in after for c in line.get("changes", [])}


def test_tables_that_share_keys_with_earlier_ones_begin_at_the_start_or_with_their_state(copying):
    for number, with_state in enumerate([False, True]):
        feed = copying(f"lmdb:{{}}-{number}")
        feed.create(["a/"], feed.store.resolved(), with_state=with_state)
        feed.store.save("a/b/removed", b"1")
        feed.reach(feed.store.save("a/c/1", b"1"))
        feed.update("x/")
        feed.store.remove("a/b/removed")
        feed.store.save("a/b/1", b"1")
        feed.reach(feed.store.save("x/1", b"1"))
        feed.update("a/b/")
        feed.reach(feed.store.save("a/b/2", b"2"))
        assert narrow(content(feed), "a/b/") == feed.below("a/b/")
        feed.store.remove("a/c/1")
        feed.update("a/")
        feed.reach(feed.store.save("a/3", b"3"))
        assert narrow(content(feed), "a/") == feed.below("a/")


def test_keys_of_another_program_stay_when_a_table_begins(copying, tmp_path):
    with snapkv.open(f"lmdb:{tmp_path / 'out'}") as target:
        target.save("b/theirs", b"x")
        target.save("a/theirs", b"x")
    feed = copying()
    feed.store.save("b/1", b"1")
    feed.create(["a/"], feed.store.resolved(), with_state=True)
    feed.reach(feed.store.save("a/1", b"1"))
    feed.update("a/", "b/")
    feed.reach(feed.store.save("b/2", b"2"))
    assert content(feed).keys() == {"a/1", "a/theirs", "b/1", "b/2", "b/theirs"}
    feed.feeds.pause("copy")  # a state that comes again removes only what it wrote
    feed.store.remove("b/1")
    feed.store.save("b/3", b"3")
    feed.compact()
    feed.until_replicated(feed.feeds.resume("copy"))
    feed.reach(feed.store.save("b/4", b"4"))
    assert content(feed).keys() == {"a/1", "a/theirs", "b/2", "b/3", "b/4", "b/theirs"}
    feed.feeds.remove("copy")
    feed.store.remove("b/2")
    feed.until_replicated(feed.create(["a/", "b/"], feed.store.resolved(), with_state=True))
    feed.reach(feed.store.save("b/5", b"5"))
    assert content(feed).keys() == {"a/1", "a/theirs", "b/3", "b/4", "b/5", "b/theirs"}


def test_states_in_both_directions_lose_no_write_of_either_side(copying, tmp_path):
    """Each side's own new key is not in the other one yet when the state comes."""
    feed = copying(source=f"lmdb:{tmp_path / 'here'}")
    there = f"lmdb:{tmp_path / 'out'}"
    with snapkv.open(there) as target:
        target.save("a/first", b"0")
        feed.create(["a/"], feed.store.resolved(), with_state=True)
        feed.feeds.create("back", there, feed.url, ["a/"], start=target.resolved(), with_state=True)
        feed.store.save("a/1", b"1")
        eventually(lambda: "a/1" in target.at(), "a/1 there", wait_s=WAIT_S)
        eventually(lambda: "a/first" in feed.store.at(), "a/first here", wait_s=WAIT_S)
        for id in ("copy", "back"):
            feed.feeds.pause(id)
        eventually(
            lambda: (
                not any(c.life.tables().get(id) for c in feed.captures for id in ("copy", "back"))
            ),
            "the end of the tables",
            wait_s=WAIT_S,
        )
        feed.store.save("a/here", b"2")
        target.save("a/there", b"2")
        for store in (feed.store, target):
            store.reader.engine.compact(store.at().revision)
        for id in ("back", "copy"):
            feed.feeds.resume(id)
        wanted = {"a/first", "a/1", "a/here", "a/there"}
        for store in (feed.store, target):
            eventually(
                lambda store=store: set(store.at().keys("a/")) == wanted,
                f"{wanted}",
                wait_s=WAIT_S,
            )


def test_a_new_sink_has_nothing_of_a_table_that_was_taken_out(copying, tmp_path):
    feed = copying()
    start = feed.store.save("first", b"")
    feed.create(["a/", "b/"], start)
    feed.reach(feed.store.save("b/1", b"1"))
    feed.update("a/")
    feed.reach(feed.store.save("a/1", b"1"))
    feed.sink = f"lmdb:{tmp_path / 'other'}"
    feed.feeds.update("copy", sink=feed.sink, prefixes=["a/", "b/"])
    feed.reach(feed.store.save("a/2", b"2"))
    assert narrow(content(feed), "b/") == {"b/1": b"1"}


@pytest.mark.parametrize("with_state", [False, True], ids=["since", "state"])
def test_databases_are_put_in_again_and_later(copying, with_state):
    feed = copying()
    dbs = {name: ChangesDB(feed.store, name).create() for name in ("users", "orders")}
    start = feed.store.save("first", b"")
    dbs["users"].put({"_id": "a", "n": 1})
    feed.create(
        None,
        feed.store.resolved() if with_state else start,
        with_state=with_state,
        databases=["users"],
    )
    feed.reach(feed.store.save("x", b"1"))
    feed.update("orders", what="databases")
    dbs["users"].put({"_id": "b", "n": 2})
    dbs["orders"].put({"_id": "c", "n": 3})
    dbs["users"].remove("a", dbs["users"].get("a")["_rev"])
    feed.reach(feed.store.save("x", b"2"))
    feed.update("users", "orders", what="databases")
    feed.reach(feed.store.save("x", b"3"))
    with snapkv.open(feed.sink) as target:
        for name, db in dbs.items():
            copied = ChangesDB(target, name)
            assert [(e.id, e.rev) for e in copied.documents()] == [
                (each.id, each.rev) for each in db.documents()
            ]


STEPS, KEYS = (40, 6) if SOAK else (12, 4)
LISTS = [["a/", "b/"], ["a/"], ["b/", "c/"], ["a/b/", "c/"], ["c/"], ["a/", "c/"]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("sink", "with_state"),
    first_of(
        [("lmdb:{}", True), ("lmdb:{}", False), ("jsonl:{}", False), ("jsonl:{}", True)], one_in=2
    ),
)
def test_any_sequence_ends_with_what_the_source_has(copying, sink, with_state):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng, feed = random.Random(seed), copying(sink)
    feed.create(rng.choice(LISTS), feed.store.resolved(), with_state=with_state)
    feed.start("c2")

    def commit():
        for _ in range(rng.randrange(1, 6)):
            prefix = rng.choice(["a/", "b/", "c/", "a/b/"])
            key = f"{prefix}{rng.randrange(KEYS)}"
            if key in feed.store.at() and rng.random() < 0.4:
                feed.store.remove(key)
            else:
                feed.store.save(key, b"%d" % rng.randrange(1_000))

    def move():
        tables = feed.feeds.get("copy").tables()
        with suppress(InvalidArgumentError):  # the capture has just ended
            feed.feeds.move("copy", rng.choice(tables), rng.choice(list(feed.feeds.captures())))

    def kill():
        victim = feed.captures.pop(rng.randrange(len(feed.captures)))
        victim.stop(drain=False)
        feed.start(f"c{rng.getrandbits(40)}")

    steps = {
        commit: 8,
        lambda: feed.feeds.update("copy", prefixes=rng.choice(LISTS)): 4,
        lambda: feed.feeds.pause("copy"): 1,
        lambda: feed.feeds.resume("copy"): 1,
        lambda: feed.reach() if feed.feeds.get("copy").state == "running" else None: 1,
        move: 1,
        kill: 1,
    }
    if with_state:  # a prefix without a state ends once its commits are gone
        steps[feed.compact] = 1
    for _ in range(STEPS):
        commit()
        rng.choices(list(steps), list(steps.values()))[0]()
    feed.feeds.resume("copy")
    last = feed.feeds.get("copy")
    feed.reach(feed.store.save(f"{last.prefixes[0]}last", b"1"))
    tables = last.prefixes
    if sink.startswith("lmdb"):
        assert narrow(content(feed), *tables) == feed.below(*tables)
    else:
        for table in tables:
            assert read(feed, table) == feed.below(table)
