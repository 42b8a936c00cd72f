"""The revisions of the source of a record name its commits: `rv:N`."""

from bisect import bisect_right

import pytest
from store.engines import write_raw

import snapkv
from snapkv.engine.contract import Delete, Put
from snapkv.errors import InvalidTimeError

from .targets import TARGETS, opened, target_url
from .test_recording_prefixes import recorder

R = b"/registry/"


@pytest.mark.parametrize("kind", TARGETS)
def test_a_revision_of_the_source_names_the_state_after_it(place, engine, clock, tmp_path, kind):
    into, states = target_url(kind, tmp_path / "r"), []
    write_raw(engine, Put(R + b"first", b"0"))
    running = recorder(place, into, clock)
    running.catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        began = next(c for c in recorded.commits(newest_first=True))
        began = began.revision if kind == "archive" else began.source_revision
    state = {"/registry/first": b"0"}
    states.append((began, dict(state)))
    for number in range(150):  # more than one round trip of a search reads
        clock.advance(100)
        if number % 4 == 3:
            write_raw(engine, Put(b"/other", b"%d" % number))
            continue
        state["/registry/a"] = b"%d" % number
        states.append((write_raw(engine, Put(R + b"a", b"%d" % number)), dict(state)))
    clock.advance(100)
    del state["/registry/a"]
    states.append((write_raw(engine, Delete(R + b"a")), dict(state)))
    recorder(place, into, clock).catch_up()
    revisions = [revision for revision, _ in states]
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        for revision in range(began, revisions[-1] + 1):
            expected = states[bisect_right(revisions, revision) - 1][1]
            assert dict(recorded.at(f"rv:{revision}").items()) == expected
        timestamp = recorded.timestamp_of(f"rv:{revisions[-2]}")
        last = recorded.history("/registry/a", since=timestamp)
        assert [version.value for version in last] == [None]
        found = list(recorded.history("/registry/a", since=f"rv:{revisions[-3]}"))
        if kind != "archive":
            assert [version.source_revision for version in found] == revisions[-2:]
        some = [f"rv:{revisions[-1]}", f"rv:{began}"]
        assert recorded.revisions_at(some) == [recorded.at(when).revision for when in some]


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_revision_before_the_record_is_refused(place, engine, clock, tmp_path):
    for number in range(5):
        write_raw(engine, Put(R + b"a", b"%d" % number))
    recorder(place, f"lmdb:{tmp_path / 'r'}", clock).catch_up()
    with (
        snapkv.open(f"lmdb:{tmp_path / 'r'}", clock=clock) as recorded,
        pytest.raises(InvalidTimeError, match=r"'rv:2' is before what the record lmdb:.* has"),
    ):
        recorded.at("rv:2")


def test_a_gap_leaves_the_revision_before_it_as_it_was(place, engine, clock, tmp_path):
    into = target_url("lmdb", tmp_path / "r")
    last = write_raw(engine, Put(R + b"a", b"1"))
    recorder(place, into, clock).catch_up()
    write_raw(engine, Put(R + b"a", b"2"))
    write_raw(engine, Put(R + b"b", b"2"))
    engine.compact(write_raw(engine, Put(R + b"a", b"3")))
    clock.advance(1_000)
    recorder(place, into, clock).catch_up()
    with opened("lmdb", tmp_path / "r", clock=clock) as recorded:
        assert dict(recorded.at(f"rv:{last}").items()) == {"/registry/a": b"1"}


def test_a_store_that_is_not_a_record_refuses_it(place, clock):
    with place.open(clock=clock) as store:
        store.save("a", b"1")
        with pytest.raises(InvalidTimeError, match=r"is not a record.*write rev:4, or a time"):
            store.load("a", "rv:4")
        with pytest.raises(InvalidTimeError, match="write rv:4, from 1 on"):
            store.at("rv:four")


def test_of_observed_keys_it_is_the_revision(place, engine, clock):
    revision = write_raw(engine, Put(R + b"a", b"1"))
    with place.open(clock=clock) as ticker:
        ticker.tick()
    write_raw(engine, Put(R + b"a", b"2"))
    with snapkv.observe(
        place.url, prefix="/registry/", clock=clock, **place.kind.options
    ) as observed:
        assert observed.load("/registry/a", f"rv:{revision}") == b"1"
        assert observed.at(f"rv:{revision}").revision == observed.at(f"rev:{revision}").revision
