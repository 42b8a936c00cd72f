"""Records of several prefixes and exceptions, and records that go on with others than before."""

import random
import threading

import msgpack
import pytest
from etcd_server import eventually
from store.engines import write_raw

import snapkv
from snapkv.copying.sources import EngineFollower
from snapkv.copying.store_commits import StoreCommits
from snapkv.engine.contract import Delete, Put, WatchBatch
from snapkv.errors import ArchiveError, CorruptStoreError, EngineBusyError, InvalidOptionError
from snapkv.layout import Selection, SourceId

from .targets import TARGETS, opened, target_url
from .test_recording_prefixes import beside, recorder

WAIT_S = 30
NAMES = (b"/r/e/1", b"/r/e/2", b"/r/l/1", b"/r/p/1", b"/r/p/2", b"/s/1", b"/t/1", b"/r/\xff")


class Writing:
    """Another program that writes at random; `states` has what is there after each revision."""

    def __init__(self, engine, clock):
        self._engine, self._clock, self._rng = engine, clock, random.Random(3)
        self.state, self.states = {}, {}

    def write(self, times=1):
        for _ in range(times):
            self._clock.advance(self._rng.choice([0, 3, 900]))
            changed = {key: self._rng.randbytes(4) for key in self._rng.sample(NAMES, 3)}
            removed = [key for key in changed if key in self.state and self._rng.random() < 0.4]
            ops = [
                Delete(key) if key in removed else Put(key, value) for key, value in changed.items()
            ]
            revision = write_raw(self._engine, *ops)
            self.state |= changed
            for key in removed:
                del self.state[key]
            self.states[revision] = dict(self.state)
        return revision


def own(state, selection):
    """The selected keys of a state, as a record has them: text, and the rest in a space."""
    return {key: value for key, value in state.items() if selection.has(key)}


def recorded_state(record, when):
    found = {key.encode(): value for key, value in record.at(when).items()}
    return found | dict(record.space("not-utf-8").at(when).items())


def times_of(record, kind):
    """The time of the first commit of each of the source's revisions."""
    times = {}
    for commit in record.commits():
        revision = commit.revision if kind == "archive" else commit.source_revision
        times.setdefault(revision, commit.ts)
    return times


def assert_recorded(record, kind, states, selection):
    times = times_of(record, kind)
    wanted = {
        revision: own(state, selection) for revision, state in states.items() if revision in times
    }
    assert wanted, "nothing is compared"
    for revision, state in wanted.items():
        assert recorded_state(record, times[revision]) == state


ALL = Selection((b"/r/", b"/s/"))
FEWER = Selection((b"/r/", b"/s/"), (b"/r/e/", b"/r/l/"))


@pytest.mark.parametrize("kind", TARGETS)
def test_each_state_of_the_selected_keys_is_answered(place, engine, clock, tmp_path, kind):
    into, writing = target_url(kind, tmp_path / "r"), Writing(engine, clock)
    writing.write(3)
    options = {"observe": ["/r/", "/s/"], "exclude": ["/r/e/", "/r/l/"]}
    for _ in range(3):
        recorder(place, into, clock, **options).catch_up()
        writing.write(10)
    recorder(place, into, clock, **options).catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as record:
        assert_recorded(record, kind, writing.states, FEWER)
        keys = record.history_to_arrow()["key"].to_pylist()
        assert {key.rpartition("/")[0] for key in keys} == {"/r/p", "/s"}
        assert record.check().problems == ()


@pytest.mark.parametrize("kind", TARGETS)
def test_a_record_goes_on_with_other_keys(place, engine, clock, tmp_path, kind):
    """With an exception more, keys leave it; without, they come; each time with a note."""
    into, writing = target_url(kind, tmp_path / "r"), Writing(engine, clock)
    writing.write(5)
    turns = [
        (ALL, {"observe": ["/r/", "/s/"]}),
        (FEWER, {"observe": ["/s/", "/r/"], "exclude": ["/r/l/", "/r/e/"]}),
        (Selection((b"/r/",), (b"/r/l/",)), {"observe": "/r/", "exclude": "/r/l/"}),
        (Selection((b"/r/",)), {"observe": "/r/"}),
        (
            Selection((b"",), (b"/r/e/", b"default/")),
            {"observe": "", "exclude": ["/r/e/", "default/"]},
        ),
    ]
    parts, notes = [], []
    for number, (selection, options) in enumerate(turns):
        if number:
            writing.write(2)  # not recorded yet when the selection changes
            notes.append(f"observes {selection} from now on")
        for _ in range(2):  # the second one finds nothing new, and nothing wrong
            recorder(place, into, clock, **options).catch_up()
        with opened(kind, tmp_path / "r", clock=clock) as record:
            assert recorded_state(record, None) == own(writing.state, selection)
        first = max(writing.states)
        writing.write(8)
        recorder(place, into, clock, **options).catch_up()
        parts.append((selection, first + 1, max(writing.states)))
    with opened(kind, tmp_path / "r", clock=clock) as record:
        for selection, first, last in parts:
            states = {at: each for at, each in writing.states.items() if first <= at <= last}
            assert_recorded(record, kind, states, selection)
        told = [commit.note for commit in record.commits() if commit.note]
        assert list(dict.fromkeys(told)) == notes
        assert record.check().problems == ()
    if kind == "archive":
        from snapkv.archive import open_files
        from snapkv.archive.verify import verify

        assert list(verify(open_files(into)).problems) == []


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", TARGETS)
def test_what_was_written_meanwhile_is_not_lost(place, engine, clock, tmp_path, kind):
    """The selection changes where the record ended, not where it goes on."""
    into = target_url(kind, tmp_path / "r")
    write_raw(engine, Put(b"/r/p", b"0"), Put(b"/r/e", b"0"), Put(b"/s/1", b"0"))
    recorder(place, into, clock, observe="/r/").catch_up()
    for n in range(1, 4):
        clock.advance(1_000)
        write_raw(engine, Put(b"/r/p", b"%d" % n), Put(b"/s/1", b"%d" % n))
    recorder(place, into, clock, observe=["/r/", "/s/"], exclude="/r/e").catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as record:
        assert [v.value for v in record.history("/r/p")] == [b"0", b"1", b"2", b"3"]
        values = [v.value for v in record.history("/s/1")]
        assert values == ([b"1", b"2", b"3"] if kind == "archive" else [b"0", b"1", b"2", b"3"])
        ended = list(record.history("/r/e"))[-1]
        assert ended.value is None
        assert ended.note == "observes '/r/' and '/s/' except '/r/e' from now on"


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", TARGETS)
def test_a_gap_and_other_keys_at_one_time(place, engine, clock, tmp_path, kind):
    into, writing = target_url(kind, tmp_path / "r"), Writing(engine, clock)
    writing.write(5)
    recorder(place, into, clock, observe="/r/").catch_up()
    lost = writing.write(5)
    engine.compact(lost)
    recording = recorder(place, into, clock, observe=["/r/", "/s/"], exclude="/r/e/")
    recording.catch_up()
    writing.write(3)
    recording.catch_up()
    assert len(recording.status.gaps) == 1
    selection = Selection((b"/r/", b"/s/"), (b"/r/e/",))
    with opened(kind, tmp_path / "r", clock=clock) as record:
        later = {at: state for at, state in writing.states.items() if at >= lost}
        assert_recorded(record, kind, later, selection)
        assert f"observes {selection} from now on" in [c.note for c in record.commits()]
        assert record.check().problems == ()


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_gap_of_an_archive_is_closed_after_keys_came_in(place, engine, clock, tmp_path):
    """Keys that came in have the revision at which they came, and are not compared by that."""
    into, writing = str(tmp_path / "r"), Writing(engine, clock)
    writing.write(5)
    recorder(place, into, clock, observe="/r/p/").catch_up()
    writing.write()
    recorder(place, into, clock, observe="/r/").catch_up()
    before = {key.decode() for key in own(writing.state, Selection((b"/r/",))) if key != b"/r/\xff"}
    write_raw(engine, Put(b"/r/p/9", b"lost"))
    engine.compact(write_raw(engine, Put(b"/r/p/9", b"kept")))
    recorder(place, into, clock, observe="/r/").catch_up()
    with opened("archive", tmp_path / "r", clock=clock) as record:
        *_, newest = record.changes_to_arrow()["_commit_version"].to_pylist()
        changed = record.changes_to_arrow(since=f"rev:{newest - 1}")
        assert changed["key"].to_pylist() == ["/r/p/9"]
        assert {*record.at().keys()} == before | {"/r/p/9"}
        assert record.check().problems == ()


@pytest.mark.parametrize("place", ["memory", "etcd"], indirect=True)
@pytest.mark.parametrize("kind", TARGETS)
def test_without_a_write_since(place, engine, clock, tmp_path, kind):
    """A store takes the other keys at once, an archive with the next write."""
    into = target_url(kind, tmp_path / "r")
    write_raw(engine, Put(b"/r/1", b"1"), Put(b"/s/1", b"1"))
    recorder(place, into, clock, observe="/r/").catch_up()
    clock.advance(1_000)
    changed = recorder(place, into, clock, observe=["/r/", "/s/"])
    if kind == "archive":
        with pytest.raises(
            EngineBusyError, match="it takes the prefixes given with the next write"
        ):
            changed.catch_up()
        with opened(kind, tmp_path / "r", clock=clock) as record:
            assert dict(record.at().items()) == {"/r/1": b"1"}
        write_raw(engine, Put(b"/elsewhere", b"1"))
    changed.catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as record:
        assert dict(record.at().items()) == {"/r/1": b"1", "/s/1": b"1"}


def test_a_recorder_that_runs_takes_other_keys_with_the_next_write(place, engine, tmp_path):
    into, stop = str(tmp_path / "r"), threading.Event()
    write_raw(engine, Put(b"/r/1", b"1"), Put(b"/s/1", b"1"))
    options = {"into": into, "options": place.kind.options, "flush": "100ms"}
    snapkv.record(place.url, observe="/r/", **options).catch_up()
    waits, records = threading.Event(), threading.Event()

    def report(status):
        {"waiting": waits, "recording": records}.get(status.state, threading.Event()).set()

    running = snapkv.record(place.url, observe=["/r/", "/s/"], report=report, **options)
    thread = threading.Thread(target=running.run, args=(stop,))
    thread.start()
    try:
        assert waits.wait(WAIT_S)
        write_raw(engine, Put(b"/elsewhere", b"1"))
        assert records.wait(WAIT_S)
    finally:
        stop.set()
        thread.join(WAIT_S)
    with snapkv.open_archive(into) as record:
        assert dict(record.at().items()) == {"/r/1": b"1", "/s/1": b"1"}


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", TARGETS)
def test_keys_that_have_nothing_in_common_are_rejected(place, engine, clock, tmp_path, kind):
    into = target_url(kind, tmp_path / "r")
    recorder(place, into, clock, observe=["/r/", "/s/"], exclude="/r/e/").catch_up()
    with pytest.raises(ArchiveError) as e:
        recorder(place, into, clock, observe=["/t/", "/r1/"]).catch_up()
    says = "observes '/r/' and '/s/' except '/r/e/', and none of that is in '/r1/' and '/t/'"
    assert says in str(e.value)


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_recorder_that_ends_while_keys_come_in(
    place, engine, clock, tmp_path, monkeypatch, after
):
    """Whichever selection the next one has, the record has its keys."""
    many = [b"/s/%03d" % n for n in range(100)]
    write_raw(engine, Put(b"/r/1", b"1"), *(Put(key, b"1") for key in many))
    monkeypatch.setattr("snapkv.copying.store_commits.PART_OPS", 40)
    real, calls = StoreCommits.write, []

    def write(self, *args):
        calls.append(args)
        if len(calls) > after:
            raise KeyboardInterrupt
        return real(self, *args)

    for number, options in enumerate(({"observe": ["/r/", "/s/"]}, {"observe": "/r/"})):
        into = f"lmdb:{tmp_path / str(number)}"
        recorder(place, into, clock, observe="/r/").catch_up()
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(StoreCommits, "write", write)
            with pytest.raises(KeyboardInterrupt):
                recorder(place, into, clock, observe=["/r/", "/s/"]).catch_up()
        assert len(calls) == after + 1
        recorder(place, into, clock, **options).catch_up()
        with snapkv.open(into, clock=clock) as record:
            wanted = {"/r/1"} | ({key.decode() for key in many} if number == 0 else set())
            assert {*record.at().keys()} == wanted


@pytest.mark.parametrize("place", ["memory", "etcd"], indirect=True)
def test_a_record_in_the_same_engine_may_be_left_out(place, engine, clock):
    write_raw(engine, Put(b"/r/1", b"1"))
    with pytest.raises(InvalidOptionError, match="leave its keys out"):
        beside(place, clock, observe="", into_name="kept").catch_up()
    beside(place, clock, observe="", exclude=["kept/"], into_name="kept").catch_up()
    beside(place, clock, observe="", exclude=["kept/"], into_name="kept").catch_up()
    with place.open(name="kept", clock=clock) as kept:
        assert dict(kept.at().items()) == {"/r/1": b"1"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"exclude": "/r/e/"}, "exclude= leaves keys out of what observe= names"),
        ({"observe": "/r/", "exclude": "/s/"}, "'/s/' is outside of the observed keys"),
        ({"observe": ["/r/", "/s/"], "exclude": "/s/"}, "'/s/' leaves no keys"),
        ({"observe": []}, "observe is an empty list"),
    ],
)
def test_options_that_make_no_sense(options, says):
    with pytest.raises(InvalidOptionError, match=says):
        snapkv.record("memory:cluster", into="memory:kept", **options)


# --- what a record says of its source ---

PLAIN = SourceId(b"i" * 16, "default", 7, Selection((b"/r/",)), 9)
SEVERAL = PLAIN._replace(observed=Selection((b"/r/", b"/s\xff"), (b"/r/e/",)))


def test_one_prefix_is_stored_as_it_always_was():
    assert PLAIN.encode() == msgpack.packb([b"i" * 16, "default", 7, b"/r/", 9])
    store = SourceId(b"i" * 16, "default", 7)
    assert store.encode() == msgpack.packb([b"i" * 16, "default", 7, None, 0])
    for source in (PLAIN, store, SEVERAL, PLAIN._replace(observed=Selection((b"",)))):
        assert SourceId.decode(source.encode()) == source


def test_several_are_stored_so_that_older_programs_reject_the_record():
    fields = msgpack.unpackb(SEVERAL.encode())
    assert fields == [b"i" * 16, "default", 7, None, 9, [b"/r/", b"/s\xff"], [b"/r/e/"]]


@pytest.mark.parametrize(
    "value", [b"", b"\xc0", msgpack.packb([1, 2]), msgpack.packb([b"", "", 1, None, 0, 5])]
)
def test_what_names_no_source_is_corrupt(value):
    with pytest.raises(CorruptStoreError):
        SourceId.decode(value)


@pytest.mark.parametrize("kind", TARGETS)
def test_what_was_not_observed_before_does_not_look_like_a_restored_source(
    place, engine, tmp_path, kind
):
    """A key came and went in a part that is observed later, and no key differs then."""
    into, both = target_url(kind, tmp_path / "r"), ["/r/", "/s/"]
    options = {"into": into, "options": place.kind.options}
    write_raw(engine, Put(b"/r/a", b"1"))
    snapkv.record(place.url, observe="/r/", **options).catch_up()
    write_raw(engine, Put(b"/r/a", b"2"))
    write_raw(engine, Put(b"/s/x", b"1"))
    write_raw(engine, Delete(b"/s/x"))
    passed = write_raw(engine, Put(b"/other", b"1"))
    ticking = snapkv.record(place.url, observe="/r/", every=0.1, flush=0.1, **options)
    stop = threading.Event()
    thread = threading.Thread(target=ticking.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: ticking.status.recorded_revision >= passed, "a tick", wait_s=WAIT_S)
    finally:
        stop.set()
        thread.join(WAIT_S)
    write_raw(engine, Put(b"/other", b"2"))
    for _ in range(3):
        snapkv.record(place.url, observe=both, **options).catch_up()
    write_raw(engine, Put(b"/s/x", b"3"))
    snapkv.record(place.url, observe=both, **options).catch_up()
    with opened(kind, tmp_path / "r") as record:
        assert dict(record.at().items()) == {"/r/a": b"2", "/s/x": b"3"}


def test_a_backlog_of_other_keys_does_not_hold_up_a_recorder():
    """Ticks, flushes and the end are due meanwhile."""

    class Backlog:
        """A watch of which each batch has only keys that are not selected."""

        revision = 0

        def next(self, timeout):
            self.revision += 1
            assert self.revision < 10_000_000, "the follower did not return"
            return WatchBatch(self.revision, ())

    class Follower(EngineFollower):
        def _step(self, batch):
            return None

    watch = Backlog()
    follower = Follower(watch, 0)
    assert follower.next(0.05) is None
    assert follower.reached == watch.revision
