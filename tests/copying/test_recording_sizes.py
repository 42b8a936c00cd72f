"""Commits of any size, keys of any length and values that do not fit are recorded, or named."""

import hashlib
import itertools
import subprocess
from contextlib import suppress

import pytest
from etcd_server import shared_pool
from etcd_server.programs import etcdctl
from sampling import first_of
from store.engines import write_raw

import snapkv
from snapkv.engine.contract import Delete, Put
from snapkv.engine.lmdb.engine import LmdbEngine
from snapkv.errors import CommitTooLargeError

R = b"/registry/"
etcd = pytest.mark.parametrize("place", ["etcd"], indirect=True)
memory = pytest.mark.parametrize("place", ["memory"], indirect=True)
SIZES = [128, 5_000, 127, 129]


@pytest.fixture
def target():
    """A server of its own: the URL of an etcd that is recorded into."""
    with shared_pool().taken() as server:
        yield server.url


def recorder(place, into, **options):
    return snapkv.record(place.url, into=into, options=place.kind.options, **options)


def keys(count):
    return [f"config/{n:06}" for n in range(count)]


@etcd
@pytest.mark.parametrize("size", first_of(SIZES, one_in=2))
def test_a_commit_of_a_store_is_one_commit_in_etcd(place, store, target, size):
    first = store.commit(puts=dict.fromkeys(keys(size), b"1"))
    second = store.commit(puts={"other": b"1"}, delete_prefixes=["config/"], note="why")
    for _ in range(2):  # a restart
        assert recorder(place, target).catch_up() == second.ts
    with snapkv.open(target) as recorded:
        assert recorded.at(first.ts).count() == size
        assert dict(recorded.at(second.ts).items()) == {"other": b"1"}
        assert [c.note for c in recorded.commits()] == [None, "why"]
        assert recorded.check().problems == ()


@etcd
@pytest.mark.parametrize("size", first_of([200, 20_000], one_in=2))
def test_keys_that_etcdctl_removes_at_once_are_removed(place, engine, target, size):
    names = [R + b"pods/%06d" % n for n in range(size)]
    for at in range(0, size, 100):
        write_raw(engine, *(Put(name, b"1") for name in names[at : at + 100]))
    recorder(place, target, observe="/registry/").catch_up()
    words = [str(etcdctl()), f"--endpoints={place.url.removeprefix('etcd://')}"]
    subprocess.run([*words, "del", "/registry/", "--prefix"], check=True, timeout=60)
    after = write_raw(engine, Put(R + b"later", b"2"))
    for _ in range(2):
        recorder(place, target, observe="/registry/").catch_up()
    with snapkv.open(target) as recorded:
        commits = {c.source_revision: c.ts for c in recorded.commits()}
        assert dict(recorded.at().items()) == {"/registry/later": b"2"}
        assert list(recorded.at(commits[after] - 1).items()) == []
        assert recorded.check().problems == ()


@memory
def test_an_archive_is_restored_into_etcd(place, store, target, tmp_path):
    times = [store.commit(puts=dict.fromkeys(keys(300), b"%d" % n)).ts for n in range(2)]
    times.append(store.commit(delete_prefixes=["config/0001"]).ts)
    times.append(store.commit(puts={k: bytes(1 << 20) for k in keys(5)}).ts)
    recorder(place, str(tmp_path / "archive")).catch_up()
    snapkv.record(f"archive:{tmp_path / 'archive'}", into=target).catch_up()
    with snapkv.open(target) as recorded:
        for ts in times:
            assert dict(recorded.at(ts).items()) == dict(store.at(ts).items())
        assert recorded.check().problems == ()


LONG = R + b"configmaps/" + b"n" * 515
ALSO_LONG = R + b"\xff" * 500


def short(stored_name):
    """The documented short key of a long one."""
    name = stored_name.removeprefix(b"data/")
    return name[:128] + b"~" + hashlib.sha256(stored_name).hexdigest().encode()


@memory
def test_a_long_key_has_a_place_of_its_own(place, engine, clock, tmp_path):
    into = f"lmdb:{tmp_path / 'r'}"
    write_raw(engine, Put(LONG, b"before"))
    recorder(place, into, observe="/registry/", clock=clock).catch_up()
    write_raw(engine, Put(LONG, b"1"), Put(R + b"a", b"2"), Put(ALSO_LONG, b"3"))
    recorder(place, into, observe="/registry/", clock=clock).catch_up()
    write_raw(engine, Delete(ALSO_LONG))
    recorder(place, into, observe="/registry/", clock=clock).catch_up()
    in_space = b"space/not-utf-8/" + ALSO_LONG
    with snapkv.open(into, clock=clock) as recorded:
        first, second, third = (c.ts for c in reversed(list(recorded.commits(newest_first=True))))
        long, names = recorded.space("long-keys"), recorded.space("long-key-names")
        assert dict(recorded.at().items()) == {"/registry/a": b"2"}
        assert dict(long.at(first).items()) == {short(b"data/" + LONG): b"before"}
        expected = {short(b"data/" + LONG): b"1", short(in_space): b"3"}
        assert dict(long.at(second).items()) == expected
        assert set(dict(names.at(second).items()).values()) == {b"data/" + LONG, in_space}
        assert dict(names.at(third).items()) == {short(b"data/" + LONG): b"data/" + LONG}
        assert [v.value for v in long.history(short(b"data/" + LONG))] == [b"before", b"1"]
        assert recorded.check().problems == ()


@memory
def test_a_gap_over_long_keys_is_closed(place, store, clock, tmp_path):
    into, long = f"lmdb:{tmp_path / 'r'}", "n" * 600
    store.commit(puts={"a": b"1", long: b"1", long + "gone": b"1", "z": b"1"})
    store.space("s").commit(puts={b"k" * 600: b"1"})
    recorder(place, into, clock=clock).catch_up()
    clock.advance(600_000)
    store.commit(puts={long: b"2", "b": b"2"}, deletes=[long + "gone"])
    clock.advance(600_000)
    last = store.save("a", b"2")
    store.compact("-0s", past_recordings=True)
    recorder(place, into, clock=clock).catch_up()
    with snapkv.open(into, clock=clock) as recorded:
        assert dict(recorded.at(last).items()) == {"a": b"2", "b": b"2", "z": b"1"}
        assert dict(recorded.space("long-keys").at(last).items()) == {
            short(b"data/" + long.encode()): b"2",
            short(b"space/s/" + b"k" * 600): b"1",
        }
        assert recorded.check().problems == ()


@memory
def test_a_record_with_long_keys_is_copied_as_it_is(place, engine, clock, tmp_path, target):
    write_raw(engine, Put(LONG, b"1"), Put(R + b"a", b"2"))
    recorder(place, f"lmdb:{tmp_path / 'r'}", observe="/registry/", clock=clock).catch_up()
    snapkv.record(f"lmdb:{tmp_path / 'r'}", into=str(tmp_path / "archive")).catch_up()
    snapkv.record(f"archive:{tmp_path / 'archive'}", into=target).catch_up()
    with snapkv.open(target) as copy:
        assert dict(copy.at().items()) == {"/registry/a": b"2"}
        found = dict(copy.space("long-keys").at().items())
        assert found == {short(b"data/" + LONG): b"1"}


# --- commits that are made in parts ---


class Ended(BaseException):
    """The process ends here."""


SMALL = {"request_bytes_max": 64 << 10}
"""Limits of a target, in which the commits below take several transactions."""


def ends_at(monkeypatch, number, *, after):
    """End the recorder at the write with a number; return a list of the calls so far."""
    plain, calls = LmdbEngine.transact_each, []

    def transact_each(self, txns, *, timeout):
        calls.append(len(txns))
        ends = len(calls) == number + 1
        if ends and not after:
            raise Ended
        done = plain(self, txns, timeout=timeout)
        if ends and after:
            raise Ended
        return done

    monkeypatch.setattr(LmdbEngine, "transact_each", transact_each)
    return calls


@pytest.mark.slow
@pytest.mark.long_after(2)
@memory
@pytest.mark.parametrize("gap_ms", [0, 5], ids=["no room for times", "room for times"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_commit_in_parts_is_made_once_wherever_the_recorder_ends(
    place, store, clock, tmp_path, monkeypatch, gap_ms, after
):
    since = store.save("z", b"the first")
    for n in range(2):
        clock.advance(gap_ms)
        store.commit(puts={k: bytes(2_000) + b"%d" % n for k in keys(100)}, note="large")
    clock.advance(gap_ms)
    store.commit(delete_prefixes=["config/00001"], puts={"z": b"the last"})
    for number in itertools.count():
        into = f"lmdb:{tmp_path}/{number}"
        with monkeypatch.context() as patched, suppress(Ended):
            calls = ends_at(patched, number, after=after)
            recorder(place, into, into_options=SMALL, clock=clock).catch_up()
        recorder(place, into, into_options=SMALL, clock=clock).catch_up()
        with snapkv.open(into, clock=clock) as recorded:
            assert_whole(store, recorded, since)
            assert gap_ms == 0 or {"part 1 of 7", "part 6 of 7"} < notes(recorded)
        if len(calls) <= number:
            break
    assert number > 12, "there were that many writes to end at"


def notes(recorded):
    return {(c.note or "").partition(":")[0] for c in recorded.commits()}


def assert_whole(store, recorded, since):
    """Assert that the record is as its source at each of the source's times, and says so."""
    times = [since, *(c.ts for c in store.commits(since=since))]
    for ts in times:
        assert dict(recorded.at(ts).items()) == dict(store.at(ts).items())
    if len({c.note for c in recorded.commits()}) == 1:
        assert [c.ts for c in recorded.commits()] == times
    whole = [c for c in recorded.commits() if not (c.note or "").startswith("part ")]
    assert [(c.ts, c.writer, c.note) for c in whole] == [
        (c.ts, c.writer, c.note) for c in store.commits(since=since - 1)
    ]
    for key in ("z", *keys(100)[::17]):
        theirs, ours = ([v.value for v in each.history(key)] for each in (store, recorded))
        assert ours == theirs
        assert all(v.ts is not None for v in recorded.history(key))
    assert recorded.check().problems == ()


@memory
def test_a_prefix_in_parts_goes_on_after_the_last_part(place, engine, tmp_path, monkeypatch):
    into = f"lmdb:{tmp_path}"
    options = {"observe": "/registry/", "into_options": SMALL}
    recorder(place, into, **options).catch_up()
    write_raw(engine, *(Put(R + b"%03d" % n, bytes(2_000)) for n in range(200)))
    write_raw(engine, Put(R + b"last", b"1"))
    for number in (1, 2, 1, 3):
        with monkeypatch.context() as patched:
            ends_at(patched, number, after=True)
            with pytest.raises(Ended):
                recorder(place, into, **options).catch_up()
    recorder(place, into, **options).catch_up()
    with snapkv.open(into) as recorded:
        assert recorded.at().count() == 201
        assert all(len(list(recorded.history(key))) == 1 for key in recorded.at())
        found = [n for n in (c.note for c in recorded.commits()) if n]
        assert [n.split()[1] for n in found] == [str(n) for n in range(1, len(found) + 1)]
        assert recorded.check().problems == ()


@memory
def test_a_gap_after_a_commit_in_parts_is_closed(place, store, clock, tmp_path, monkeypatch):
    into = f"lmdb:{tmp_path}"
    store.save("a", b"1")
    store.commit(puts={k: bytes(2_000) for k in keys(100)})
    with monkeypatch.context() as patched:
        ends_at(patched, 3, after=True)
        with pytest.raises(Ended):
            recorder(place, into, into_options=SMALL, clock=clock).catch_up()
    clock.advance(600_000)
    last = store.commit(puts={"b": b"1"}, delete_prefixes=["config/"])
    clock.advance(600_000)
    store.compact("-0s", past_recordings=True)
    recorder(place, into, into_options=SMALL, clock=clock).catch_up()
    with snapkv.open(into, clock=clock) as recorded:
        assert dict(recorded.at(last.ts).items()) == {"a": b"1", "b": b"1"}
        assert recorded.check().problems == ()


@memory
def test_a_value_that_never_fits_is_named(place, store, tmp_path):
    into, first = f"lmdb:{tmp_path}", store.save("first", b"1")
    store.commit(puts={"large/value": bytes(300_000), **dict.fromkeys(keys(200), bytes(2_000))})
    for _ in range(2):
        with pytest.raises(CommitTooLargeError, match="large/value") as caught:
            recorder(place, into, into_options=SMALL).catch_up()
        assert caught.value.size == 300_000
        assert 60_000 < caught.value.limit < 64 << 10
        with snapkv.open(into) as recorded:
            assert dict(recorded.at().items()) == {"first": b"1"}
            assert recorded.resolved() == first
