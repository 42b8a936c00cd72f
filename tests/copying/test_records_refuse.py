"""A record takes no commits but its recorder's, unless it is asked to become a store of its own."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from store.engines import write_raw

import snapkv
from snapkv import SnapshotKV
from snapkv.engine.contract import Put
from snapkv.errors import ArchiveError, ReadOnlyError

from .targets import target_url

KINDS = ("lmdb", "memory")
R = b"/registry/"


def dumped() -> io.BytesIO:
    file = io.BytesIO()
    with snapkv.open("memory:") as store:
        store.save("a", b"1")
        store.dump(file)
    file.seek(0)
    return file


WRITES: dict[str, Callable[[SnapshotKV], Any]] = {
    "save": lambda record: record.save("/registry/a", b"x"),
    "remove": lambda record: record.remove("/registry/a"),
    "commit": lambda record: record.commit(puts={"b": b"1"}, note="mine"),
    "space": lambda record: record.space("s").save(b"k", b"1"),
    "update": lambda record: record.update("/registry/a", lambda value: b"x"),
    "restore": lambda record: record.restore(record.resolved()),
    "revert": lambda record: record.revert(record.resolved()),
    "load_dump": lambda record: record.load_dump(dumped(), replace=True),
    "tick": lambda record: record.tick(),
    "final": lambda record: record.at(record.resolved() + 1, final=True),
    "resolve": lambda record: record.resolve(record.resolved() + 1, b"n" * 16),
}


@pytest.fixture(params=KINDS)
def into(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    return target_url(request.param, tmp_path / "record")


@pytest.fixture
def again(place: Any, engine: Any, clock: Any, into: str) -> Callable[[], int]:
    """Record a prefix once more."""
    write_raw(engine, Put(R + b"a", b"1"))

    def record() -> int:
        recorder = snapkv.record(
            place.url, into=into, observe="/registry/", clock=clock, options=place.kind.options
        )
        return recorder.catch_up()

    record()
    return record


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("write", WRITES)
def test_each_way_to_commit_is_rejected(
    engine: Any, clock: Any, into: str, again: Callable[[], int], write: str
) -> None:
    with snapkv.open(into, clock=clock) as record:
        before = record.resolved(), dict(record.at().items())
        for _ in range(2):
            with pytest.raises(ReadOnlyError) as caught:
                WRITES[write](record)
        for said in (into, "record of the keys below '/registry/'", "force_fork", "kubectl"):
            assert said in str(caught.value)
        assert (record.resolved(), dict(record.at().items())) == before
    write_raw(engine, Put(R + b"a", b"2"))
    again()
    with snapkv.open(into, clock=clock) as record:
        assert record.load("/registry/a") == b"2"


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_what_commits_nothing_is_allowed(
    engine: Any, clock: Any, into: str, again: Callable[[], int]
) -> None:
    with snapkv.open(into, clock=clock) as record:
        with record.session(), record.election("readers") as election:
            election.campaign(timeout=10)
            record.live.put("reader", b"here", ttl=5)
        clock.advance(3_600_000)
        write_raw(engine, Put(R + b"a", b"2"))
        again()
        record.compact(record.resolved())
        assert record.load("/registry/a") == b"2"
    again()


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_forked_record_is_a_store(
    engine: Any, clock: Any, into: str, again: Callable[[], int]
) -> None:
    with snapkv.open(into, clock=clock, force_fork=True) as record:
        record.save("/registry/a", b"mine")
    for value in (b"2", b"3"):
        with snapkv.open(into, clock=clock) as store:
            store.save("/registry/a", value)
            assert store.load("/registry/a") == value
    with pytest.raises(ArchiveError, match="its history is its own now"):
        again()


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_the_record_of_a_store(place: Any, store: SnapshotKV, into: str) -> None:
    store.save("a", b"1")
    snapkv.record(place.url, into=into, options=place.kind.options).catch_up()
    with snapkv.open(into) as record, pytest.raises(ReadOnlyError) as caught:
        record.save("a", b"2")
    assert "record of the store 'default'" in str(caught.value)
    assert "kubectl" not in str(caught.value)
    assert store.save("a", b"2"), "the source takes commits"
