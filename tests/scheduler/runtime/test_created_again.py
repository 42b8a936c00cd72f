"""A changefeed that is removed and created again begins at its own start, whatever is left."""

import json

import pytest
from etcd_server import eventually

import snapkv
from cdcmeta.scheduler.core.watermarks import Watermarks
from cdcmeta.scheduler.runtime import Capture, Changefeeds
from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.scheduler.runtime.stores_and_sinks import origin_of
from cdcmeta.scheduler.transport.local import LocalNetwork

pytestmark = pytest.mark.slow

WAIT_S = 30
URL, TABLE = "memory:here", "t/"
FAR = 1 << 60
"""A timestamp long after every commit."""


class Running:
    """A capture in a store in memory, which is the source as well, and the sinks of a test."""

    def __init__(self, directory):
        self.store = snapkv.open("memory:")
        self.feeds = Changefeeds(self.store)
        self.space = self.store.space(records.space_of("default"))
        self.directory, self.capture = directory, None

    def start(self):
        post = LocalNetwork().post("c1")
        self.capture = Capture(
            self.store, post, label="c1", store_url=URL, ttl=5, tick_s=0.02, functions={}
        )
        self.capture.start()
        self.until(lambda: self.capture.life is not None, "the registration")

    def close(self):
        if self.capture is not None:
            self.capture.stop(drain=False)
            assert self.capture.error is None
        self.store.close()

    def create(self, sink, start, **options):
        return self.feeds.create("copy", URL, sink, [TABLE], start=start, **options)

    def reach(self, ts):
        self.until(lambda: self.feeds.checkpoint("copy").checkpoint >= ts, f"the checkpoint {ts}")

    def remove(self):
        self.feeds.remove("copy")
        self.until(lambda: self.capture.life.tables() == {}, "the table to stop")

    def problem(self):
        """What is reported of the table."""
        reports = [each["copy"] for each in self.feeds.reports().values() if "copy" in each]
        return next((str(each.problems[TABLE]) for each in reports if each.problems), "")

    def until(self, holds, what):
        eventually(holds, what, wait_s=WAIT_S)

    def left_behind(self, created, checkpoint=FAR):
        """Write a checkpoint as an owner does that has not seen a removal yet."""
        raw = records.encoded_watermarks(Watermarks(checkpoint, checkpoint, 0), created)
        self.space.commit(puts={records.CHECKPOINT + b"copy": raw})

    def content(self, sink):
        """Return the values that a sink got, in order; of a store, those that it has."""
        if sink.startswith("lmdb:"):
            with snapkv.open(sink) as target:
                return sorted(value.decode() for _, value in target.at().items())
        lines = (self.directory / "t%2F.jsonl").read_text().splitlines()
        return [c["value"] for line in map(json.loads, lines) for c in line.get("changes", [])]


@pytest.fixture
def running(tmp_path):
    running = Running(tmp_path / "out")
    yield running
    running.close()


@pytest.mark.parametrize("scheme", ["lmdb", "jsonl"])
def test_an_earlier_start_is_kept(running, scheme):
    sink = f"{scheme}:{running.directory}"
    origin = running.store.resolved()
    late = [running.store.save(f"t/{n}", b"%d" % n) for n in range(4)][-1]
    running.start()
    first = running.create(sink, start=late)
    running.reach(running.store.save("t/4", b"4"))
    assert running.content(sink) == ["4"]
    running.remove()
    again = running.create(sink, start=origin)
    assert again.created > first.created
    running.reach(running.store.save("t/5", b"5"))
    if scheme == "jsonl":
        assert running.content(sink) == ["4", "0", "1", "2", "3", "4", "5"], "it starts anew"
    else:
        assert running.content(sink) == ["0", "1", "2", "3", "4", "5"]


def test_one_with_a_state_is_written_again_into_a_target_that_was_emptied(running):
    sink = f"lmdb:{running.directory}"
    running.store.save("t/0", b"0")
    running.start()
    running.create(sink, start=running.store.resolved(), with_state=True)
    running.reach(running.store.save("t/1", b"1"))
    with snapkv.open(sink) as target:
        target.commit(delete_prefixes=[""])
    running.reach(running.store.save("t/2", b"2"))
    assert running.content(sink) == ["2"], "it is not filled again by itself"
    running.remove()
    running.create(sink, start=running.store.resolved(), with_state=True)
    running.reach(running.store.save("t/3", b"3"))
    assert running.content(sink) == ["0", "1", "2", "3"]


def test_one_with_a_state_removes_what_the_source_has_lost_since(running):
    sink = f"lmdb:{running.directory}"
    running.store.multi_save({"t/0": b"0", "t/1": b"1"})
    running.start()
    running.create(sink, start=running.store.resolved(), with_state=True)
    running.reach(running.store.save("t/2", b"2"))
    running.remove()
    running.store.remove("t/1")
    running.create(sink, start=running.store.resolved(), with_state=True)
    running.reach(running.store.save("t/3", b"3"))
    assert running.content(sink) == ["0", "2", "3"]


def test_a_sink_of_another_shared_store_is_named_in_the_status(running, tmp_path):
    sink = f"jsonl:{running.directory}"
    running.start()
    running.create(sink, start=running.store.resolved())
    running.reach(running.store.save("t/0", b"0"))
    anew = Running(running.directory)
    try:
        running.remove()
        anew.start()
        anew.create(sink, start=anew.store.save("t/x", b"x"))
        anew.until(lambda: "choose another sink" in anew.problem(), "the error")
        assert "'t/' in this sink belongs to changefeed copy of another" in anew.problem()
        assert running.content(sink) == ["0"]
        (running.directory / "t%2F.jsonl").unlink()  # the sink is emptied
        anew.reach(anew.store.save("t/y", b"y"))
        assert running.content(sink) == ["y"]
    finally:
        anew.close()


def test_a_late_checkpoint_of_a_removed_changefeed_is_ignored(running):
    """The owner's write was on its way when the changefeed was removed, or created again."""
    sink = f"lmdb:{running.directory}"
    start = running.store.save("u/0", b"0")
    running.store.save("t/0", b"0")
    first = running.create(sink, start=start)
    running.feeds.remove("copy")
    running.left_behind(first.created)
    again = running.create(sink, start=start)
    assert running.feeds.checkpoint("copy").checkpoint == start
    running.left_behind(first.created)
    assert running.feeds.checkpoint("copy").checkpoint == start
    running.start()
    running.reach(running.store.save("t/1", b"1"))
    assert running.feeds.checkpoint("copy").checkpoint < FAR
    assert running.content(sink) == ["0", "1"]
    raw = running.space.entry(records.CHECKPOINT + b"copy").value
    assert records.checkpoint_of(raw).created == again.created


def test_a_late_checkpoint_is_ignored_by_an_owner_that_runs(running):
    sink = f"lmdb:{running.directory}"
    running.start()
    start = running.store.resolved()
    running.store.save("t/0", b"0")
    first = running.create(sink, start=FAR)  # it waits for a time to come
    running.remove()
    running.left_behind(first.created)
    running.create(sink, start=start)
    running.left_behind(first.created)
    running.reach(running.store.save("t/1", b"1"))
    assert running.content(sink) == ["0", "1"]


def test_a_checkpoint_of_an_earlier_version_counts(running):
    running.create("jsonl:/sink", start=100)
    raw = records.encoded({"checkpoint": 500, "resolved": 600, "synced": 0})
    running.space.commit(puts={records.CHECKPOINT + b"copy": raw})
    assert running.feeds.checkpoint("copy") == Watermarks(500, 600, 0)


def test_a_new_changefeed_gets_no_places_and_requests_of_an_earlier_one(running):
    left = {
        records.CHECKPOINT + b"copy": b"{}",
        records.place_key("copy", TABLE): records.encoded_place("c1-1", "placed"),
        records.ask_key("copy", "move", TABLE): b"c1-1",
    }
    kept = {
        records.CHECKPOINT + b"copy2": b"{}",
        records.place_key("copy2", TABLE): records.encoded_place("c1-1", "placed"),
    }
    running.space.commit(puts=left | kept)
    running.create("jsonl:/sink", start=100)
    found = {key for key, _ in running.space.at().items()}
    assert found == {records.FEED + b"copy", *kept}


def test_the_first_revision_is_known_however_the_record_is_read(running):
    running.start()
    start = running.store.resolved()
    made = running.create("call:none", start=start)
    assert made.created == made.epoch == running.feeds.get("copy").created
    running.feeds.pause("copy")
    resumed = running.feeds.resume("copy")
    assert resumed.created == made.created < resumed.epoch

    def seen():
        return running.capture.life.registry.view.feeds.get("copy")

    running.until(lambda: seen() == resumed, "the capture to see the record")
    running.capture.stop(drain=False)
    running.start()  # it reads the record, which the first one watched
    assert seen() == resumed
    running.feeds.remove("copy")
    again = running.create("call:none", start=start)
    assert again.created > resumed.epoch
    running.until(lambda: seen() == again, "the new changefeed")
    assert origin_of(again, running.store, "default") > origin_of(made, running.store, "default")
