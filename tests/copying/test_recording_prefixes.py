"""Keys of other programs are recorded with the times at which they were seen."""

import random
import threading
import time

import pytest
from store.engines import write_raw

import snapkv
from snapkv import CompactedError, pack
from snapkv.engine import memory
from snapkv.engine.contract import Delete, Put
from snapkv.errors import ArchiveError, InvalidOptionError, StoreRestoredError

from .targets import TARGETS, opened, target_url

WAIT_S = 30
R = b"/registry/"


def recorder(place, into, clock, **options):
    return snapkv.record(
        place.url,
        into=into,
        observe=options.pop("observe", "/registry/"),
        clock=clock,
        options=place.kind.options,
        **options,
    )


@pytest.mark.parametrize("kind", TARGETS)
def test_each_state_that_was_is_answered(place, engine, clock, tmp_path, kind):
    rng, into = random.Random(7), target_url(kind, tmp_path / "r")
    write_raw(engine, Put(R + b"first", b"0"), Put(b"/other", b"0"))
    recorder(place, into, clock).catch_up()
    state, states = {"/registry/first": b"0"}, []
    for _ in range(3):
        for _ in range(12):
            clock.advance(rng.choice([0, 3, 900]))
            key = R + b"%d" % rng.randrange(5)
            if rng.random() < 0.3 and key.decode() in state:
                revision = write_raw(engine, Delete(key))
                del state[key.decode()]
            else:
                value = rng.randbytes(5)
                revision = write_raw(engine, Put(key, value))
                state[key.decode()] = value
            states.append((revision, dict(state)))
            if rng.random() < 0.3:
                write_raw(engine, Put(b"/other", b"x"))
        recorder(place, into, clock).catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        commits = list(recorded.commits())
        stamps = [c.ts for c in commits]
        assert stamps == sorted(set(stamps))
        revisions = [c.revision if kind == "archive" else c.source_revision for c in commits]
        for revision, expected in states:
            at = stamps[revisions.index(revision)]
            assert dict(recorded.at(at).items()) == expected
        assert all(c.writer is None for c in commits)
        assert recorded.check().problems == ()


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", TARGETS)
def test_keys_that_are_not_text_are_in_a_space(place, engine, clock, tmp_path, kind):
    into = target_url(kind, tmp_path / "r")
    recorder(place, into, clock, observe=b"/registry/").catch_up()
    write_raw(engine, Put(R + b"\xff", b"1"), Put(R + b"a", b"2"))
    recorder(place, into, clock, observe=b"/registry/").catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        assert dict(recorded.at().items()) == {"/registry/a": b"2"}
        assert dict(recorded.space("not-utf-8").at().items()) == {R + b"\xff": b"1"}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_gap_is_closed_and_named(place, engine, clock, tmp_path, kind):
    into = target_url(kind, tmp_path / "r")
    write_raw(engine, Put(R + b"a", b"1"), Put(R + b"b", b"1"))
    recorder(place, into, clock).catch_up()
    clock.advance(1_000)
    write_raw(engine, Put(R + b"a", b"2"))
    write_raw(engine, Delete(R + b"b"))
    last = write_raw(engine, Put(R + b"a", b"3"))
    engine.compact(last)
    clock.advance(1_000)
    write_raw(engine, Put(R + b"c", b"1"))
    recording = recorder(place, into, clock)
    recording.catch_up()
    (gap,) = recording.status.gaps
    assert gap.startswith("gap: revisions ")
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        assert dict(recorded.at().items()) == {"/registry/a": b"3", "/registry/c": b"1"}
        assert [c.note for c in recorded.commits() if (c.note or "").startswith("gap")] == [gap]
        assert [v.value for v in recorded.history("/registry/a")] == [b"1", b"3"]


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", TARGETS)
def test_a_time_before_a_record_began_is_not_called_compacted(place, engine, clock, tmp_path, kind):
    write_raw(engine, Put(R + b"a", b"1"))
    early = pack(clock.now_ms())
    clock.advance(60_000)
    into = target_url(kind, tmp_path / "r")
    recorder(place, into, clock).catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as record:
        for read in (
            lambda: record.load("/registry/a", early),
            lambda: record.at(early)["/registry/a"],
        ):
            with pytest.raises(CompactedError, match="is not kept, and ") as e:
                read()
            assert "compacted" not in str(e.value)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", TARGETS)
def test_the_record_of_another_prefix(place, engine, clock, tmp_path, kind):
    into = target_url(kind, tmp_path / "r")
    write_raw(engine, Put(R + b"a", b"1"))
    recorder(place, into, clock).catch_up()
    with pytest.raises(ArchiveError, match="of another"):
        recorder(place, into, clock, observe="/other/").catch_up()


def test_an_engine_that_was_set_back(tmp_path, clock):
    url, into = f"memory:{tmp_path}", str(tmp_path / "r")
    engine = snapkv.store.location.open_engine(url, create=True, options={})
    for n in range(5):
        write_raw(engine, Put(R + b"a", b"%d" % n))
    snapkv.record(url, into=into, observe="/registry/", clock=clock).catch_up()
    engine.close()
    with pytest.raises(StoreRestoredError, match="it was restored since"):
        snapkv.record(f"{url}-new", into=into, observe="/registry/", clock=clock).catch_up()


def test_it_follows_and_ticks_until_it_is_stopped(place, engine, tmp_path):
    """Real time: ticks move the record on while nothing is written."""
    into, stop, begun = target_url("lmdb", tmp_path / "r"), threading.Event(), threading.Event()
    following = snapkv.record(
        place.url,
        into=into,
        observe="/registry/",
        every="100ms",
        options=place.kind.options,
        report=lambda status: begun.set() if status.state == "recording" else None,
    )
    thread = threading.Thread(target=following.run, args=(stop,))
    thread.start()
    try:
        assert begun.wait(WAIT_S)
        for n in range(3):
            write_raw(engine, Put(R + b"a", b"%d" % n))
        until = time.monotonic() + WAIT_S
        with snapkv.open(into) as recorded:
            while len(list(recorded.history("/registry/a"))) < 3:
                assert time.monotonic() < until, "the writes were not recorded in time"
                time.sleep(0.05)
            reached = recorded.resolved()
            while recorded.resolved() < reached + (300 << 18):
                assert time.monotonic() < until, "no tick came in time"
                time.sleep(0.05)
    finally:
        stop.set()
        thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", TARGETS)
def test_keys_that_are_not_text_are_in_order_beside_many_that_are(
    place, engine, clock, tmp_path, monkeypatch, kind
):
    """A state comes in pages, and the key that is not text is in the first one."""
    monkeypatch.setattr(memory, "SCAN_PAGE_ROWS", 20)
    into, many = target_url(kind, tmp_path / "r"), [b"b%03d" % n for n in range(100)]
    write_raw(engine, *(Put(R + key, b"1") for key in (b"a\xff", *many)))
    recorder(place, into, clock).catch_up()
    revision = write_raw(engine, Put(R + b"a\xff", b"2"), Delete(R + many[7]))
    engine.compact(revision)
    recorder(place, into, clock).catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        assert recorded.at().count() == 99
        assert recorded.load("/registry/b099") == b"1"
        assert dict(recorded.space("not-utf-8").at().items()) == {R + b"a\xff": b"2"}
        assert len(list(recorded.history("/registry/b010"))) == 1
        assert recorded.check().problems == ()


# --- what a recorder must not record: its own record ---


def other_url(place):
    """The engine of a place by another URL."""
    if place.url.startswith("etcd://"):
        return place.url.replace("127.0.0.1", "localhost")
    return place.url.replace("lmdb:/", "lmdb:/../") if place.url.startswith("lmdb") else place.url


def beside(place, clock, **options):
    """A recorder into the engine that it records from, by another URL."""
    return recorder(place, other_url(place), clock, into_options=place.kind.options, **options)


@pytest.mark.parametrize(
    ("observe", "name"), [("", "default"), ("de", "default"), ("a/b/data/", "a/b"), (b"a/", "a")]
)
def test_a_recorder_does_not_record_itself(place, engine, clock, observe, name):
    before = write_raw(engine, Put(b"devices", b"1"))
    with pytest.raises(InvalidOptionError, match="has the keys of the record itself"):
        beside(place, clock, observe=observe, into_name=name).catch_up()
    assert engine.get(name.encode() + b"/sys/ts").kv is None, "nothing is left"
    assert place.revision() <= before + 2, "a probe comes and goes"


def test_another_store_of_the_engine_is_recorded_by_its_prefix(place, engine, clock):
    other = place.open(name="other", clock=clock)
    other.save("a", b"1")
    beside(place, clock, observe="other/", into_name="kept").catch_up()
    with place.open(name="kept", clock=clock) as kept:
        assert kept.load("other/data/a") == b"1"


def test_an_engine_of_its_own_takes_all_keys(place, engine, clock, tmp_path):
    write_raw(engine, Put(b"default/data/a", b"1"))
    recorder(place, f"memory:{tmp_path}", clock, observe="").catch_up()
    with snapkv.open(f"memory:{tmp_path}", clock=clock) as kept:
        assert kept.load("default/data/a") == b"1"


def test_recorders_of_each_others_record_end(place, engine, clock):
    """The first one ends when its own commit comes back to it."""
    ping = {"observe": "pong/", "into_name": "ping"}
    pong = {"observe": "ping/", "into_name": "pong"}
    beside(place, clock, **ping).catch_up()

    def both():
        for _ in range(9):
            beside(place, clock, **pong).catch_up()
            beside(place, clock, **ping).catch_up()

    with pytest.raises(ArchiveError, match="is a commit of this record"):
        both()


def test_a_recorder_ends_when_a_record_of_its_record_comes_back(place, engine, clock, tmp_path):
    """The record is a store elsewhere, which another recorder repeats where it observes."""
    kept = f"lmdb:{tmp_path / 'kept'}"
    there = recorder(place, kept, clock, observe="")
    back = snapkv.record(
        kept,
        into=place.url,
        into_name="copy",
        into_options=dict(place.kind.options),
        clock=clock,
    )

    def both():
        for _ in range(9):
            there.catch_up()
            back.catch_up()

    with pytest.raises(ArchiveError, match="is a commit of this record"):
        both()


@pytest.mark.parametrize("place", ["lmdb", "etcd"], indirect=True)
def test_an_empty_store_is_not_recorded_into_itself(place, clock):
    place.open(clock=clock)
    with pytest.raises(ArchiveError, match="is the source itself"):
        beside(place, clock, observe=None).catch_up()
