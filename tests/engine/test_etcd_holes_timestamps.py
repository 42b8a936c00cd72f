"""The holes H5 to H8: what a timestamp and its nonce prove, on a real server.

The store A talks through a proxy, which loses or delays its messages; B talks to the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from etcd_protocol import CLOSE_S, FENCE, TS_KEY, Caller, Two
from etcd_server import EtcdProxy

import snapkv.engine.etcd.cluster_client
from snapkv import Absent, AtRevision
from snapkv.errors import StoreRecreatedError
from snapkv.times import physical_ms

pytestmark = pytest.mark.slow


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapkv.engine.etcd.cluster_client, "TRY_S", CLOSE_S)


@pytest.fixture
def two(proxy: EtcdProxy) -> Iterator[Two]:
    with Two(proxy) as two:
        yield two


# --- H5: a timestamp key that was deleted and made again --------------------------------------


def test_h5_the_same_request_does_not_commit_twice(two: Two) -> None:
    a = two.a()
    recorded = two.proxy.record(b"a-value")
    a.save("a", b"a-value")
    two.recreate()
    recorded.replay()
    assert len(two.history().written("a")) == 1
    with pytest.raises(StoreRecreatedError):
        a.save("c", b"1")
    assert two.history().written("c") == []


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("lands", ["before", "never", "late"])
def test_h5_nobody_is_told_failed_or_conflict(two: Two, lands: str) -> None:
    a = two.a()
    if lands == "before":
        fault = two.cut_after(b"a-value", two.recreate)
    else:
        fault = two.proxy.hold(b"a-value")
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}, guards=[Absent("a")]))
    fault.wait_triggered()
    if lands != "before":
        two.recreate()
    error = call.error()
    if lands == "late":
        fault.release()
    assert isinstance(error, StoreRecreatedError)
    assert len(two.history().written("a")) == (lands == "before")


def test_h5_a_group_is_told_alike(two: Two) -> None:
    a = two.a()
    riders = [lambda n=n: a.commit(puts={f"m{n}": b"m%d-value" % n}) for n in range(3)]
    with two.riding(a, *riders) as callers:
        two.cut_after(b"m1-value", two.recreate)
    errors = [caller.error() for caller in callers]
    assert [type(error) for error in errors] == [StoreRecreatedError] * 3
    assert len({id(error) for error in errors}) == 3, "one exception object in several threads"


def test_h5_a_deleted_key(two: Two) -> None:
    a = two.a()
    two.gateway.delete(TS_KEY)
    with pytest.raises(StoreRecreatedError):
        a.save("a", b"1")
    two.never("a")


# --- H6: an issued timestamp counts for ever --------------------------------------------------


def test_h6_what_was_given_up_does_not_land_over_later_commits(two: Two) -> None:
    a = two.a(2_000)
    error, held = two.unknown(a, b"a1-value", landed=False, puts={"a1": b"a1-value"})
    a._core.clock.wall.set(two.start_ms)
    committed = a.commit(puts={"a2": b"1"})
    assert committed.ts > error.timestamp, "the clock went back, timestamps do not"
    assert physical_ms(committed.ts) == two.start_ms + 2_000
    held.release()
    two.never("a1")
    assert two.once("a2") == committed.revision


def test_h6_of_a_whole_group(two: Two) -> None:
    a = two.a(2_000)
    riders = [lambda n=n: a.commit(puts={f"m{n}": b"m%d-value" % n}, timeout=1.0) for n in range(3)]
    with two.riding(a, *riders) as callers:
        held = two.proxy.hold(b"m2-value")
    errors = [caller.error() for caller in callers]
    assert len({(error.timestamp, error.nonce) for error in errors}) == 1
    assert sorted(error.batch for error in errors) == [0, 1, 2]
    a._core.clock.wall.set(two.start_ms)
    assert a.commit(puts={"later": b"1"}).ts > errors[0].timestamp
    held.release()
    for n in range(3):
        two.never(f"m{n}")


# --- H7: copies of a request --------------------------------------------------------------------


def test_h7_a_connection_that_comes_twice_changes_nothing(two: Two) -> None:
    """A proxy that replays is not supported, but what landed does not land again."""
    a, b = two.a(), two.b(2_000)
    first = a.commit(puts={"a": b"0"})
    recorded = two.proxy.record(b"a-value")
    a.commit(puts={"a": b"a-value", "other": b"1"}, guards=[AtRevision("a", first.revision)])
    a.remove("other")
    b.remove("a")
    before = two.gateway.revision()
    for _ in range(2):
        recorded.replay()
    assert two.gateway.revision() == before
    history = two.history()
    history.check()
    assert [value for _, value in history.written("a")] == [b"0", b"a-value", None]
    assert a.save("a", b"on it goes") > first.ts


def test_h7_copies_of_a_fenced_request_are_dead_too(two: Two) -> None:
    a, b = two.a(), two.b()
    held = two.proxy.hold(b"a-value")
    recorded = two.proxy.record(b"b-value")
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}, timeout=1.0))
    held.wait_triggered()
    error = call.error()
    assert b.resolve(error.timestamp, error.nonce) is None
    held.release()
    two.never("a")
    late = two.b(3_000, writer="late")
    late.save("b", b"1")
    two.open(two.proxy.url, 4_000).save("b", b"b-value")
    recorded.replay()
    assert [value for _, value in two.history().written("b")] == [b"1", b"b-value"]


def test_h7_a_copy_that_arrives_while_the_answer_is_lost(two: Two) -> None:
    """Both copies arrive before the fence: the guard lets one in, and the fence finds it."""
    behind = SimpleNamespace(client_port=two.proxy.port)
    with EtcdProxy(behind) as outer:  # A - outer - two.proxy - server
        a = two.open(outer.url, 1_000, writer="A")
        recorded = two.proxy.record(b"a-value")
        delayed = outer.delay_answer(b"a-value")
        call = Caller(lambda: a.commit(puts={"a": b"a-value"}, guards=[Absent("a")]))
        delayed.wait_answered()
        recorded.replay()
        outer.cut_all()
        committed = call.value()
        assert two.once("a") == committed.revision
        a.close()


# --- H8: a fence is never taken for the commit ------------------------------------------------


@pytest.mark.usefixtures("hurried")
def test_h8_our_own_fence_is_not_our_commit(two: Two) -> None:
    a = two.a()
    held, cut = two.proxy.hold(b"a-value"), two.proxy.cut_after(FENCE)
    committed = a.commit(puts={"a": b"a-value"})
    cut.wait_cut()
    (fence,) = [s.record for s in two.history().stamps if s.record.fence_of is not None]
    assert committed.ts > fence.timestamp
    held.release()
    assert two.once("a") == committed.revision


def test_h8_another_process_resolves_after_the_fence(two: Two) -> None:
    a, b = two.a(), two.b()
    error, held = two.unknown(a, b"a-value", landed=False, puts={"a": b"a-value"})
    assert b.resolve(error.timestamp, error.nonce) is None
    assert two.history().stamps[-1].record.fence_of == error.nonce
    assert a.resolve(error.timestamp, error.nonce) is None
    b.save("more", b"")
    assert b.resolve(error.timestamp, error.nonce) is None
    held.release()
    two.never("a")


def test_h8_a_fence_of_another_commit_with_the_same_timestamp(two: Two) -> None:
    a, c = two.a(), two.open(two.proxy.url, 1_000, writer="C")
    ours, held = two.unknown(a, b"a-value", landed=False, puts={"a": b"a-value"})
    theirs, kept = two.unknown(c, b"c-value", landed=False, puts={"c": b"c-value"})
    assert ours.timestamp == theirs.timestamp
    assert ours.nonce != theirs.nonce
    assert a.resolve(ours.timestamp, ours.nonce) is None  # fences the other one too
    assert a.resolve(theirs.timestamp, theirs.nonce) is None
    held.release()
    kept.release()
    two.never("a")
    two.never("c")
