"""What a commit says of itself: its `writer`, `note` and `meta`, in every answer."""

import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum, StrEnum

import numpy
import pytest
from coordination.campaigns import WAIT_S
from store.engines import SHARED, write_raw

import snapkv
from snapkv import Ops, SpaceOps
from snapkv.base.waiting import monotonic, pause
from snapkv.committer.operations import META_FACTS_MAX
from snapkv.copying.import_prefix import import_prefix
from snapkv.engine.contract import Put, Range
from snapkv.layout import META_BYTES_MAX, StampRecord, pack_meta
from snapkv.reading.log import log

TS_KEY = b"default/sys/ts"
META = {"request": "r-17", "ticket": 4, "dry": False, "share": 0.25, "user-agent": None}
SAID = {"note": "why", "writer": "alice", "meta": META}

WRITES = {
    "save": lambda store, **said: store.save("a", b"2", **said),
    "remove": lambda store, **said: store.remove("a", **said),
    "multi_save": lambda store, **said: store.multi_save({"a": b"2"}, **said),
    "multi_save with an addition": lambda store, **said: store.multi_save(
        {}, [lambda ts: ("a", b"%d" % ts)], **said
    ),
    "multi_save_and_remove_with_prefix": lambda store, **said: (
        store.multi_save_and_remove_with_prefix({"b": b"2"}, ["a"], **said)
    ),
    "commit": lambda store, **said: store.commit(puts={"a": b"2"}, **said),
    "commit of a function": lambda store, **said: store.commit(
        lambda stamp: Ops({"a": b"%d" % stamp.ts}, **said)
    ),
    "commit of a space": lambda store, **said: store.space("s").commit(puts={b"a": b"2"}, **said),
    "commit of a space by a function": lambda store, **said: store.space("s").commit(
        lambda _: SpaceOps({b"a": b"2"}), **said
    ),
    "restore": lambda store, **said: store.restore(0, before_first=True, **said),
    "revert": lambda store, **said: store.revert(store.resolved(), **said).commit,
    "load_dump": lambda store, **said: store.load_dump(
        io.BytesIO(dump_of({"a": b"2"})), replace=True, **said
    ),
}


def dump_of(puts) -> bytes:
    file = io.BytesIO()
    with snapkv.open("memory:") as store:
        store.multi_save(puts)
        store.dump(file)
    return file.getvalue()


def said_of(commit):
    return commit.writer, commit.note, commit.meta


@pytest.mark.parametrize("write", WRITES)
def test_each_write_says_who_why_and_what_for(store, write):
    store.save("a", b"1")
    WRITES[write](store, **SAID)
    WRITES["save"](store)
    first, commit, last = store.commits()
    assert said_of(commit) == ("alice", "why", META)
    assert said_of(first) == said_of(last) == ("ann@test", None, None)


def test_every_answer_has_them(store, place):
    before = store.save("k", b"1")
    with store.watch(since=before) as watch:
        commit = store.commit(puts={"k": b"2"}, **SAID)
        (seen,) = watch.next(10)
    assert said_of(commit) == ("alice", "why", META)
    assert list(commit.meta) == sorted(META)
    assert seen.commit == commit
    assert list(store.commits(before)) == [commit]
    assert list(store.commits(before, newest_first=True)) == [commit]
    old, new = store.history("k")
    assert said_of(old) == ("ann@test", None, None)
    assert said_of(new) == ("alice", "why", META)
    (value,) = (r.kvs[0].value for r in store._core.engine.read([Range(TS_KEY)]).results)
    assert store.resolve(commit.ts, StampRecord.decode(value).nonce) == commit
    assert pickle.loads(pickle.dumps(commit)) == commit
    log = store.commits_to_arrow()
    assert log["meta"].to_pylist() == [commit.meta.to_json(), None]
    assert log["userName"].to_pylist() == ["alice", "ann@test"]


@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_another_process_reads_them(store, place, clock):
    commit = store.commit(puts={"k": b"1"}, **SAID)
    assert list(place.open(clock=clock).commits()) == [commit]


def test_after_compaction_the_version_in_force_has_them(store, clock):
    commit = store.commit(puts={"k": b"1"}, **SAID)
    store._core.engine.compact(commit.revision)
    assert [said_of(version) for version in store.history("k")] == [("alice", "why", META)]
    assert list(store.commits()) == [commit]


def test_what_is_not_said_is_not_stored(store, engine):
    """The bytes of a plain commit are those of the versions before `meta`."""
    for said in ({}, {"meta": {}}, {"meta": None, "writer": None}):
        commit = store.commit(puts={"k": b"1"}, **said)
        assert said_of(commit) == ("ann@test", None, None)
        (found,) = (result.kvs[0].value for result in engine.read([Range(TS_KEY)]).results)
        nonce = StampRecord.decode(found).nonce
        plain = b"\x82\xa1n\xc4\x10" + nonce + b"\xa1w\xa8ann@test"
        assert found == commit.ts.to_bytes(8, "big") + plain


def test_an_empty_writer_is_an_error(store):
    with pytest.raises(snapkv.errors.InvalidOptionError, match="writer is empty: pass a name"):
        store.commit(puts={"k": b"1"}, writer="")
    assert not list(store.commits())


def test_a_store_without_a_writer():
    with snapkv.open("memory:", writer="") as store:
        commit = store.commit(puts={"k": b"1"})
        assert commit.writer is None
        assert list(store.commits()) == [commit]


def test_a_commit_with_a_meta_is_no_tick(store):
    store.tick()
    marker = store.commit(meta={"deployed": "v2"})
    found = log(store, newest_first=False)
    assert [(each.commit.meta, each.is_tick) for each in found] == [
        (None, True),
        (marker.meta, False),
    ]


# --- what may be in a meta ---


class Action(StrEnum):
    DELETE = "delete"


class Level(IntEnum):
    HIGH = 3


def test_values_become_those_that_readers_get(store):
    given = {"action": Action.DELETE, "level": Level.HIGH, "share": numpy.float64(0.5)}
    commit = store.commit(puts={"k": b"1"}, meta=given)
    assert [type(value) for value in commit.meta.values()] == [str, int, float]
    assert commit.meta == {"action": "delete", "level": 3, "share": 0.5}
    assert list(store.commits()) == [commit]


def test_the_largest_meta(store, place):
    facts = {f"{n:02}": -(1 << 63) for n in range(META_FACTS_MAX - 1)}
    room = META_BYTES_MAX - len(pack_meta(facts | {"text": ""})) - 2
    facts["text"] = "x" * room
    assert len(pack_meta(facts)) == META_BYTES_MAX
    commit = store.commit(puts={"k": b"1"}, note="n" * 4_096, writer="w" * 256, meta=facts)
    assert list(store.commits()) == [commit]
    assert commit.meta == facts
    before = place.revision()
    for more in ({"text": "x" * (room + 1)}, {"one more": 0}):
        with pytest.raises(snapkv.CommitTooLargeError):
            store.save("k", b"2", meta=facts | more)
    assert place.revision() == before


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_the_largest_commit_has_room_for_the_largest_meta(store):
    """The server would reject a request that is larger than it takes."""
    size, left = store._core.engine.limits.request_bytes, 0
    said = {"note": "n" * 4_096, "writer": "w" * 256, "meta": {"m": "x" * (META_BYTES_MAX - 6)}}
    while size != left:
        left = size
        try:
            store.save("k", bytes(size), **said)
        except snapkv.CommitTooLargeError as e:
            size -= e.size - e.limit
    assert len(store.load("k")) == size
    (commit,) = store.commits()
    assert commit.meta == said["meta"]
    with pytest.raises(snapkv.CommitTooLargeError):
        store.save("k", bytes(size + 1))


def test_a_meta_may_change_while_it_is_used(store):
    facts = {"n": 1}
    commit = store.commit(puts={"k": b"1"}, meta=facts)
    facts["n"] = 2
    assert commit.meta == {"n": 1}


def test_keywords_beside_a_function(store):
    for said in ({"writer": "alice"}, {"meta": {}}, {"note": ""}):
        with pytest.raises(snapkv.errors.InvalidOptionError):
            store.commit(lambda _: Ops({"k": b"1"}), **said)
    assert list(store.commits()) == []


# --- groups, files, foreign keys ---


PEOPLE = [
    {},
    {"writer": "alice"},
    {"writer": "bob", "meta": {"n": 1}},
    {"writer": "bob", "meta": {"n": True}},
    {"meta": {"n": 1}, "note": "why"},
]


def test_calls_for_different_people_do_not_share_a_stamp(store):
    """And those for the same one do, in groups that form while the first commit is held."""
    asked = [PEOPLE[n % len(PEOPLE)] for n in range(4 * len(PEOPLE))]
    queue, began, release = store._core.committer._queue, threading.Event(), threading.Event()

    def held(stamp):
        began.set()
        release.wait(WAIT_S)
        return Ops()

    with ThreadPoolExecutor(1 + len(asked)) as pool:
        calls = [pool.submit(store.commit, held, timeout=WAIT_S)]
        assert began.wait(WAIT_S)  # from now on no call joins its transaction
        for n, said in enumerate(asked):
            calls.append(pool.submit(store.save, f"{n}", b"", **said))
            until_waiting(queue, len(calls))
        release.set()
        first, *stamps = [call.result(WAIT_S) for call in calls]
    told = {}
    for ts, said in zip(stamps, asked, strict=True):
        assert told.setdefault(ts, said) is said, "one stamp for two"
    assert len(told) == len(PEOPLE), "a stamp for each"
    for commit in store.commits(since=first.ts):
        said = {"writer": "ann@test"} | told[commit.ts]
        assert (commit.writer, commit.note) == (said["writer"], said.get("note"))
        assert repr(dict(commit.meta or {})) == repr(said.get("meta", {}))


def until_waiting(queue, calls):
    deadline = monotonic() + WAIT_S
    while len(queue.waiting) < calls:
        assert monotonic() < deadline, "a call did not join the queue"
        pause(0.001)


def test_a_dump_and_back(store, place, clock):
    """A dump is the state of a moment: it has no commits, so nothing of who made them."""
    store.commit(puts={"k": b"1"}, **SAID)
    file = io.BytesIO()
    store.dump(file)
    assert b"alice" not in file.getvalue()
    target = place.open(name="target", clock=clock)
    file.seek(0)
    commit = target.load_dump(file, **SAID)
    assert [said_of(version) for version in target.history("k")] == [("alice", "why", META)]
    assert list(target.commits()) == [commit]


def test_an_import_in_batches(store, place, engine, monkeypatch):
    write_raw(engine, *(Put(b"r/%d" % n, b"1") for n in range(3)))
    monkeypatch.setattr("snapkv.copying.import_prefix.CommitRoom.parts", one_by_one)
    options = {"source_options": place.kind.options, "batches": True}
    import_prefix(store, place.url, "r/", **SAID, **options)
    assert [said_of(commit) for commit in store.commits()] == [
        ("alice", f"import {n} of 3: why", META) for n in (1, 2, 3)
    ]


def one_by_one(room, writes):
    for write in writes:
        yield [write], room.size(write)


def test_an_import_checks_them_first(store, place, engine):
    write_raw(engine, Put(b"r/a", b"1"))
    before = place.revision()
    for said in ({"meta": {"a": []}}, {"writer": 5}, {"writer": "x" * 257}):
        with pytest.raises(snapkv.SnapKVError):
            import_prefix(
                store, place.url, "r/", dry_run=True, source_options=place.kind.options, **said
            )
    assert place.revision() == before


def test_of_foreign_writes_nothing_is_known(cluster):
    """Only the commit that ticks has them, for the keys that it wrote itself."""
    observed = cluster.observe("")
    cluster.write(a=b"1")
    tick = cluster.ticker.commit(puts={"own": b"1"}, **SAID)
    foreign, own = "/r/a", "default/data/own"
    expected = {foreign: (None, None, None), own: ("alice", "why", META)}
    for key, said in expected.items():
        (version,) = observed.history(key)
        assert (version.ts, *said_of(version)) == (tick.ts, *said)
    with observed.watch("", since=0) as watch:
        found = {change.key: said_of(change.commit) for change in watch.next(20)}
    assert {key: found[key] for key in expected} == expected
