"""The hole H9: what compaction between sending and looking leaves decidable, on a real server.

The store A talks through a proxy, which loses or delays its messages; B talks to the server.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from etcd_protocol import CLOSE_S, Caller, Two
from etcd_server import EtcdProxy

import snapkv.engine.etcd.cluster_client
from snapkv import Absent, CommitUnknownError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapkv.engine.etcd.cluster_client, "TRY_S", CLOSE_S)


@pytest.fixture
def two(proxy: EtcdProxy) -> Iterator[Two]:
    with Two(proxy) as two:
        yield two


@pytest.mark.parametrize(("others", "compacted"), [(1, 1), (2, 1), (2, 0), (3, 0)])
def test_h9_the_ordinal_tells(two: Two, others: int, compacted: int) -> None:
    """Compacted up to the first commit after what A knew: nothing can lie between."""
    a, b = two.a(1_000), two.b(2_000)
    held = two.proxy.hold(b"a-value")
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}))
    held.wait_triggered()
    revisions = [b.commit(puts={"b": b"%d" % n}).revision for n in range(others)]
    two.gateway.compact(revisions[0] - 1 + compacted)
    committed = call.value()
    held.release()
    history = two.history(first=revisions[0] + compacted)
    assert [revision for revision, _ in history.written("a")] == [committed.revision]


@pytest.mark.parametrize("landed", [True, False])
def test_h9_what_compaction_took_cannot_be_told(two: Two, landed: bool) -> None:
    a, b = two.a(1_000), two.b(2_000)

    def write_and_compact() -> None:
        b.save("b", b"1")
        two.gateway.compact(b.commit(puts={"b": b"2"}).revision)

    if landed:
        two.cut_after(b"a-value", write_and_compact)
        call = Caller(lambda: a.commit(puts={"a": b"a-value"}))
    else:
        held = two.proxy.hold(b"a-value")
        call = Caller(lambda: a.commit(puts={"a": b"a-value"}))
        held.wait_triggered()
        write_and_compact()
    error = call.error()
    assert isinstance(error, CommitUnknownError)
    assert not error.may_still_land
    with pytest.raises(CommitUnknownError) as caught:
        two.b(writer="C").resolve(error.timestamp, error.nonce)
    assert not caught.value.may_still_land
    if not landed:  # B has seen every commit, and remembers
        assert b.resolve(error.timestamp, error.nonce) is None
        held.release()
    assert (two.gateway.get(b"default/data/a") is not None) == landed


def test_h9_guards_that_compaction_took(two: Two) -> None:
    """Who rode alone landed only if its guards held; of a group that cannot be told any more."""
    a = two.a()
    two.cut_after(b"a-value", lambda: two.gateway.compact(two.gateway.revision()))
    committed = a.commit(puts={"a": b"a-value"}, guards=[Absent("a")])
    found = two.gateway.get(b"default/data/a")
    assert found is not None
    assert found.mod_revision == committed.revision
    riders = [
        lambda: a.commit(puts={"m1": b"m1-value"}, guards=[Absent("m1")]),
        lambda: a.commit(puts={"m2": b"m2-value"}),
    ]
    with two.riding(a, *riders) as (guarded, plain):
        two.cut_after(b"m1-value", lambda: two.gateway.compact(two.gateway.revision()))
    error = guarded.error()
    assert isinstance(error, CommitUnknownError)
    assert not error.may_still_land
    assert plain.value().batch == 1
    assert a.load("m1") == b"m1-value"


def test_h9_compaction_of_all_but_the_outcome(two: Two) -> None:
    """Everything before the commit is gone, so is what its guard saw; the commit is found."""
    a, b = two.a(1_000), two.b(2_000)
    a.save("before", b"1")

    def compact() -> None:
        landed = two.gateway.revision()
        b.save("b", b"1")
        two.gateway.compact(landed - 1)

    two.cut_after(b"a-value", compact)
    committed = a.commit(puts={"a": b"a-value"}, guards=[Absent("a")])
    found = two.gateway.get(b"default/data/a")
    assert found is not None
    assert (found.mod_revision, found.version) == (committed.revision, 1)


def test_h9_compaction_while_the_history_is_read(two: Two) -> None:
    """Compaction goes on between the reads of the settling: the outcome is not "failed"."""
    a, b = two.a(1_000), two.b(2_000)
    engine = a._core.engine
    read, revisions = engine.read, []

    def write_and_compact() -> None:
        revisions.extend(b.commit(puts={"b": b"%d" % n}).revision for n in range(6))
        two.gateway.compact(revisions[1])

    asked = []

    def reading(ranges, **options):
        if revisions and len(asked) < 4:
            asked.append(ranges)
            two.gateway.compact(revisions[len(asked) + 1])
        return read(ranges, **options)

    engine.read = reading
    two.cut_after(b"a-value", write_and_compact)
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"a-value"})
    assert not caught.value.may_still_land
    assert asked
    assert two.gateway.get(b"default/data/a") is not None
