"""The holes H1 to H4 of simpler commit protocols, on a real server behind a proxy that hurts.

Numbers as in `snapkv/DESIGN.md`; the same traces on a simulated network are in `tests/protocol`.
A is behind the proxy, B is not. H12 is about engines in this process, and not here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from etcd_protocol import CLOSE_S, COMMIT, FENCE, GIVES_UP_S, Caller, Two
from etcd_server import EtcdProxy

import snapkv.engine.etcd.cluster_client
import snapkv.engine.etcd.grpc_client
from snapkv import (
    Absent,
    AtRevision,
    CommitTooLargeError,
    CommitUnknownError,
    ConflictError,
)
from snapkv.errors import NoSpaceError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one endpoint answer in a fraction of a second, or be given up."""
    monkeypatch.setattr(snapkv.engine.etcd.cluster_client, "TRY_S", CLOSE_S)


@pytest.fixture
def two(proxy: EtcdProxy) -> Iterator[Two]:
    with Two(proxy) as two:
        yield two


# --- H1: a conflict is told only of a request that is dead ------------------------------------


def test_h1_no_conflict_while_the_first_copy_may_land(two: Two) -> None:
    a, b = two.a(), two.b()
    held = two.proxy.hold(b"a-value")
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}, guards=[Absent("k")]))
    held.wait_triggered()
    b.save("k", b"b")
    error = call.error()
    assert isinstance(error, ConflictError)
    assert error.failed == ((Absent("k"), two.once("k")),)
    b.remove("k")
    held.release()
    two.never("a")
    fences = [stamp.record.fence_of for stamp in two.history().stamps]
    assert [fence is not None for fence in fences] == [False, False, True, False]


def test_h1_two_commits_of_the_other_first(two: Two) -> None:
    a, b = two.a(), two.b()
    held = two.proxy.hold(b"a-value")
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}, guards=[Absent("k")]))
    held.wait_triggered()
    b.save("k", b"b")
    b.remove("k")
    committed = call.value()
    held.release()
    assert two.once("a") == committed.revision


def test_h1_the_copy_lands_before_the_fence(two: Two) -> None:
    a, b = two.a(), two.b()
    held = two.proxy.hold(b"a-value")
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}, guards=[Absent("a")]))
    held.wait_triggered()
    held.release()
    committed = call.value()
    assert two.once("a") == committed.revision
    assert two.history().stamps[-1].record.timestamp == committed.ts
    assert b.load("a") == b"a-value"


# --- H2: a guard does not trip over our own write ---------------------------------------------


def test_h2_no_conflict_with_ourselves(two: Two) -> None:
    a = two.a()
    cut = two.proxy.cut_after(b"a-value")
    committed = a.commit(puts={"a": b"a-value"}, guards=[Absent("a")])
    cut.wait_cut()
    assert two.once("a") == committed.revision
    with pytest.raises(ConflictError) as caught:
        a.commit(puts={"a": b"again"}, guards=[Absent("a")])
    assert caught.value.failed == ((Absent("a"), committed.revision),)


def test_h2_the_guard_was_false_and_the_answer_lost(two: Two) -> None:
    a, b = two.a(), two.b()
    b.save("k", b"b")
    cut = two.proxy.cut_after(b"a-value")
    with pytest.raises(ConflictError) as caught:
        a.commit(puts={"a": b"a-value"}, guards=[Absent("k")])
    cut.wait_cut()
    assert caught.value.failed == ((Absent("k"), two.once("k")),)
    two.never("a")


@pytest.mark.parametrize("others", [0, 1, 3])
def test_h2_found_below_newer_commits(two: Two, others: int) -> None:
    a, b = two.a(1_000), two.b(2_000)
    before = a.commit(puts={"before": b""}).revision

    def more() -> None:
        for n in range(others):
            b.save("k", b"%d" % n)

    cut = two.cut_after(b"a-value", more)
    committed = a.commit(puts={"a": b"a-value"}, guards=[Absent("a"), AtRevision("before", before)])
    cut.wait_cut()
    assert two.once("a") == committed.revision
    stamps = {stamp.record.timestamp: stamp.revision for stamp in two.history().stamps}
    assert stamps[committed.ts] == committed.revision
    assert len(stamps) == 3 + others, "nothing was sent a second time"


# --- H3: a group with an unknown outcome is never split ---------------------------------------


def test_h3_a_member_is_never_applied_twice(two: Two) -> None:
    a, b = two.a(), two.b()
    riders = [
        lambda: a.commit(puts={"m1": b"m1-value"}, guards=[Absent("k")]),
        lambda: a.commit(puts={"m2": b"m2-value"}),
    ]
    with two.riding(a, *riders) as (m1, m2):
        held = two.proxy.hold(b"m1-value")
    held.wait_triggered()
    b._core.clock.wall.advance(500)  # after what stalled, before the group
    a._core.clock.wall.advance(500)
    b.save("k", b"b")
    assert isinstance(m1.error(), ConflictError)
    committed = m2.value()
    held.release()
    two.never("m1")
    assert two.once("m2") == committed.revision


def test_h3_a_lost_answer_tells_each_member_its_own(two: Two) -> None:
    """What is evaluated are the guards as they were: others write to their keys meanwhile."""
    a, b = two.a(1_000), two.b(3_000)
    taken = a.commit(puts={"taken": b""}).revision
    riders = [
        lambda: a.commit(puts={"m1": b"m1-value"}, guards=[Absent("free"), Absent("m1")]),
        lambda: a.commit(puts={"m2": b"m2-value"}, guards=[Absent("taken")]),
        lambda: a.commit(puts={"m3": b"m3-value"}),
    ]

    def turn_around() -> None:
        b.save("free", b"b")
        b.remove("taken")

    with two.riding(a, *riders) as (m1, m2, m3):
        cut = two.cut_after(b"m3-value", turn_around)
    cut.wait_cut()
    first, third, refused = m1.value(), m3.value(), m2.error()
    assert (first.ts, first.revision) == (third.ts, third.revision)
    assert {first.batch, third.batch} == {0, 2}
    assert isinstance(refused, ConflictError)
    assert refused.failed == ((Absent("taken"), taken),)
    two.never("m2")
    assert two.once("m1") == two.once("m3") == first.revision


def test_h3_a_group_that_never_arrived_goes_again_as_one(two: Two) -> None:
    a = two.a()
    riders = [lambda n=n: a.commit(puts={f"m{n}": b"m%d-value" % n}) for n in range(4)]
    with two.riding(a, *riders) as callers:
        cut = two.proxy.cut_before(b"m2-value")
    committed = [caller.value() for caller in callers]
    cut.wait_triggered()
    for n, commit in enumerate(committed):
        assert two.once(f"m{n}") == commit.revision
    stamps = two.history().stamps
    (fence,) = [stamp.record for stamp in stamps if stamp.record.fence_of]
    assert all(commit.ts > fence.timestamp for commit in committed)


# --- H4: a refusal of the fence says nothing of the commit ------------------------------------


def raise_alarm(two: Two) -> None:
    """Let the server refuse every write for want of space."""
    member = two.gateway.status()["header"]["member_id"]
    body = {"action": "ACTIVATE", "memberID": member, "alarm": "NOSPACE"}
    two.gateway.call("/v3/maintenance/alarm", body)


def test_h4_a_refused_fence_is_no_answer(two: Two) -> None:
    a = two.a()
    fences = [two.proxy.look(FENCE) for _ in range(2)]
    held = two.proxy.hold(b"a-value")
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}, guards=[Absent("a")]))
    held.wait_triggered()
    raise_alarm(two)
    for fence in fences:
        fence.wait_answered()
    assert call.is_alive(), "a refused fence was taken for an outcome"
    two.gateway.disarm()
    committed = call.value()
    held.release()
    assert two.once("a") == committed.revision


@pytest.mark.parametrize("others", [0, 2])
def test_h4_a_look_tells_where_fences_are_refused(two: Two, others: int) -> None:
    """What is stored is proof once it is not smaller; others may have committed on top."""
    a, b = two.a(1_000), two.b(2_000)

    def fill_up() -> None:
        for n in range(others):
            b.save("b", b"%d" % n)
        raise_alarm(two)

    two.cut_after(b"a-value", fill_up)
    committed = a.commit(puts={"a": b"a-value"}, guards=[Absent("a")])
    assert two.gateway.alarms() == ["NOSPACE"]
    assert two.once("a") == committed.revision
    two.gateway.disarm()


def test_h4_a_look_tells_that_a_request_is_dead(two: Two) -> None:
    """Another's larger timestamp stands there: what never arrived is dead without any fence."""
    a, b = two.a(1_000), two.b(2_000)
    held, fence = two.proxy.hold(b"a-value"), two.proxy.look(FENCE)
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}))
    held.wait_triggered()
    b.save("b", b"1")
    raise_alarm(two)
    assert isinstance(call.error(), NoSpaceError), "built again, which is refused for good"
    fence.wait_answered()
    held.release()
    two.gateway.disarm()
    two.never("a")


def test_h4_no_space_until_the_deadline_is_unknown(two: Two) -> None:
    a, b = two.a(), two.b()
    held = two.proxy.hold(b"a-value")
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}, timeout=2 * GIVES_UP_S))
    held.wait_triggered()
    raise_alarm(two)
    error = call.error()
    assert isinstance(error, CommitUnknownError)
    with pytest.raises(CommitUnknownError):
        b.resolve(error.timestamp, error.nonce, timeout=GIVES_UP_S)
    two.gateway.disarm()
    assert b.resolve(error.timestamp, error.nonce) is None
    held.release()
    two.never("a")


def test_h4_a_definite_refusal_is_told_without_a_fence(two: Two) -> None:
    a = two.a(max_request_bytes=8 << 20)
    fence, commits = two.proxy.look(FENCE), [two.proxy.look(COMMIT) for _ in range(2)]
    with pytest.raises(CommitTooLargeError):
        a.save("a", b"a-value" * 230_000)
    assert [commit.triggered.is_set() for commit in commits] == [True, False]
    assert not fence.triggered.is_set()
    two.never("a")


def test_h4_an_answer_too_large_to_receive_is_no_refusal(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer tells what the timestamp key held before: a long note, and the client chokes."""
    two.b().commit(puts={"b": b"1"}, note="n" * 4_000)
    limits = {"grpc.max_receive_message_length": 3_000}
    options = tuple({**dict(snapkv.engine.etcd.grpc_client._OPTIONS), **limits}.items())
    two_a = two.open(two.proxy.url, 1_000, writer="A", create=False)
    monkeypatch.setattr(snapkv.engine.etcd.grpc_client, "_OPTIONS", options)
    two.proxy.cut_all()
    two_a._core.engine._connection._endpoints[0].drop()
    fence = two.proxy.look(FENCE)
    committed = two_a.commit(puts={"a": b"a-value"}, guards=[Absent("a")])
    assert fence.triggered.is_set(), "the answer fitted: the test shows nothing"
    assert two.once("a") == committed.revision


@pytest.mark.parametrize("size", [1_600_000, 4_000_000])
def test_h4_a_request_too_large_for_the_server(two: Two, size: int) -> None:
    """etcd refuses the one, gRPC the other before etcd sees it: told alike, nothing lands."""
    a = two.a(max_request_bytes=8 << 20)
    with pytest.raises(CommitTooLargeError):
        a.save("a", bytes(size))
    two.never("a")
    a.save("after", b"1")
