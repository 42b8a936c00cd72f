"""What callers are told when connections to a real server break, stand still or come too late.

A is behind the proxy, B is not.
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from etcd_protocol import CLOSE_S, COMMIT, FENCE, GIVES_UP_S, Caller, Two
from etcd_server import WAIT_S, EtcdProxy, EtcdServer, eventually

import snapkv.engine.etcd.cluster_client
from snapkv import (
    Absent,
    CommitTimeoutError,
    CommitUnknownError,
    ConflictError,
    SnapshotKV,
)
from snapkv.cli.exits import message_of
from snapkv.errors import EngineUnavailableError, StoreClosedError

pytestmark = pytest.mark.slow

_RESOLVE = """
import pickle, sys
import snapkv
error = pickle.load(sys.stdin.buffer)
with snapkv.open(sys.argv[1], create=False) as store:
    try:
        told = store.resolve(error.timestamp, error.nonce, guards=error.guards)
    except snapkv.SnapKVError as e:
        told = e
sys.stdout.buffer.write(pickle.dumps(told))
"""


def resolve_elsewhere(two: Two, error: CommitUnknownError) -> Any:
    """Return what a process that knows nothing but the error is told, or the error it gets."""
    command = [sys.executable, "-c", _RESOLVE, two.etcd.url]
    done = subprocess.run(
        command, input=pickle.dumps(error), stdout=subprocess.PIPE, timeout=2 * WAIT_S, check=True
    )
    return pickle.loads(done.stdout)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapkv.engine.etcd.cluster_client, "TRY_S", CLOSE_S)


@pytest.fixture
def two(proxy: EtcdProxy) -> Iterator[Two]:
    with Two(proxy) as two:
        yield two


# --- resolving ----------------------------------------------------------------------------------


def test_a_landed_commit_is_resolved_in_another_process(two: Two) -> None:
    a, b = two.a(), two.b()
    error, delayed = two.unknown(
        a, b"a-value", landed=True, puts={"a": b"a-value"}, guards=[Absent("a")]
    )
    found = resolve_elsewhere(two, error)
    assert (found.ts, found.revision, found.writer) == (error.timestamp, two.once("a"), "A")
    delayed.release()
    for store in (a, b):
        assert store.resolve(error.timestamp, error.nonce, guards=error.guards) == found
    assert two.history().stamps[-1].record.fence_of is None, "a landed commit needs no fence"


def test_a_late_commit_is_dead_once_another_process_resolved_it(two: Two) -> None:
    a, b = two.a(), two.b()
    error, held = two.unknown(
        a, b"a-value", landed=False, puts={"a": b"a-value"}, guards=[Absent("a")]
    )
    assert resolve_elsewhere(two, error) is None
    held.release()
    two.never("a")
    b.save("a", b"of B")
    for store in (a, b):
        assert store.resolve(error.timestamp, error.nonce, guards=error.guards) is None
    assert resolve_elsewhere(two, error) is None
    two.once("a")


def test_a_late_commit_that_arrived_before_anybody_resolved_it(two: Two) -> None:
    a, b = two.a(), two.b()
    error, held = two.unknown(a, b"a-value", landed=False, puts={"a": b"a-value"})
    held.release()
    revision = two.once("a")
    assert b.resolve(error.timestamp, error.nonce).revision == revision
    b.save("a", b"of B")
    assert a.resolve(error.timestamp, error.nonce).revision == revision


def test_members_of_a_group_are_resolved_each_for_itself(two: Two) -> None:
    a, b = two.a(), two.b()
    b.save("taken", b"")
    taken = two.once("taken")
    riders = [
        lambda: a.commit(puts={"m1": b"m1-value"}, guards=[Absent("m1")], timeout=1.5),
        lambda: a.commit(puts={"m2": b"m2-value"}, guards=[Absent("taken")], timeout=1.5),
    ]
    with two.riding(a, *riders) as (m1, m2):
        two.proxy.delay_answer(b"m1-value")
    applied, skipped = m1.error(), m2.error()
    assert isinstance(applied, CommitUnknownError)
    assert isinstance(skipped, CommitUnknownError)
    assert (applied.timestamp, applied.nonce) == (skipped.timestamp, skipped.nonce)
    b.remove("taken")
    b.save("m1", b"of B")
    found = resolve_elsewhere(two, applied)
    assert found.revision == two.history().written("m1")[0][0]
    told = resolve_elsewhere(two, skipped)
    assert isinstance(told, ConflictError)
    assert [revision for _, revision in told.failed] == [taken]
    two.never("m2")


def test_resolving_a_lone_commit_that_was_skipped(two: Two) -> None:
    """Its guard failed, so it left no trace: it never happened, and never will."""
    a, b = two.a(), two.b()
    b.save("k", b"b")
    error, _ = two.unknown(a, b"a-value", landed=True, puts={"a": b"a-value"}, guards=[Absent("k")])
    assert resolve_elsewhere(two, error) is None
    b.remove("k")
    two.never("a")


@pytest.mark.parametrize("landed", [True, False])
def test_the_command_line_resolves_what_the_error_names(two: Two, landed: bool) -> None:
    a = two.a()
    error, fault = two.unknown(a, b"a-value", landed=landed, puts={"a": b"a-value"})
    told = re.search(r"'snapkv (resolve .*)' settles it", message_of(error))
    assert told, message_of(error)
    command = [sys.executable, "-m", "snapkv.cli", "--store", two.etcd.url, "--json"]
    done = subprocess.run(
        [*command, *told[1].split()], capture_output=True, text=True, timeout=2 * WAIT_S
    )
    found = json.loads(done.stdout)
    fault.release()
    if landed:
        assert (done.returncode, found["revision"]) == (0, two.once("a"))
    else:
        assert (done.returncode, found) == (1, {"commit": None})
        two.b().save("b", b"")
        two.never("a")


# --- one connection breaks ----------------------------------------------------------------------


@pytest.mark.parametrize("guards", [(), (Absent("a"),)])
@pytest.mark.parametrize("arrives", [True, False])
def test_a_broken_connection_costs_a_fence_and_no_truth(
    two: Two, arrives: bool, guards: tuple[Absent, ...]
) -> None:
    a = two.a()
    cut = two.proxy.cut_after(b"a-value") if arrives else two.proxy.cut_before(b"a-value")
    fence = two.proxy.look(FENCE)
    committed = a.commit(puts={"a": b"a-value"}, guards=guards)
    cut.wait_triggered()
    assert fence.triggered.is_set()
    assert two.once("a") == committed.revision
    landed_fences = [s for s in two.history().stamps if s.record.fence_of is not None]
    assert len(landed_fences) == (not arrives)


def test_an_answer_after_the_deadline_harms_nobody(two: Two) -> None:
    a = two.a()
    error, delayed = two.unknown(a, b"a-value", landed=True, puts={"a": b"a-value"})
    delayed.release()
    assert a.resolve(error.timestamp, error.nonce).revision == two.once("a")
    assert a.commit(puts={"b": b"1"}).ts > error.timestamp


@pytest.mark.parametrize("back_in_time", [True, False])
def test_connections_refused_at_the_fence(two: Two, back_in_time: bool) -> None:
    a, b = two.a(), two.b()
    cut = two.cut_after(b"a-value", two.proxy.refuse)
    call = Caller(
        lambda: a.commit(puts={"a": b"a-value"}, timeout=10.0 if back_in_time else GIVES_UP_S)
    )
    cut.wait_cut()
    if back_in_time:
        two.proxy.resume()
        assert call.value().revision == two.once("a")
        return
    error = call.error()
    two.proxy.resume()
    assert isinstance(error, CommitUnknownError)
    assert error.may_still_land
    assert b.resolve(error.timestamp, error.nonce).revision == two.once("a")
    assert a.load("a") == b"a-value"


def test_the_deadline_holds_while_an_outcome_is_looked_up(two: Two) -> None:
    """The fence is answered, then the network stands still: what is read to tell is bounded."""
    a, b = two.a(), two.b()
    a.save("x", b"")
    two.cut_after(b"a-value", lambda: [b.save("b", b"") for _ in range(3)])
    fence = two.proxy.look(FENCE)
    stop = Caller(lambda: (fence.wait_answered(), two.proxy.pause()))
    started = time.monotonic()
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"a-value"}, timeout=GIVES_UP_S)
    assert time.monotonic() - started < GIVES_UP_S + 1
    stop.value()
    two.proxy.resume()
    error = caught.value
    found = a.resolve(error.timestamp, error.nonce, guards=error.guards)
    assert found is not None
    assert found.revision == two.once("a")


def test_a_dead_server_is_unknown_first_and_then_unavailable(two: Two) -> None:
    a = two.a()
    two.proxy.refuse()
    started = time.monotonic()
    with pytest.raises(CommitUnknownError):  # the connection may have broken behind the request
        a.commit(puts={"a": b"1"}, timeout=GIVES_UP_S)
    with pytest.raises(EngineUnavailableError):  # nothing was sent
        a.commit(puts={"b": b"1"}, timeout=GIVES_UP_S)
    assert time.monotonic() - started < 2 * GIVES_UP_S + 2
    two.proxy.resume()
    a.save("c", b"1")
    two.never("b")


# --- two ways to one server -----------------------------------------------------------------------


@pytest.fixture
def ways(etcd: EtcdServer) -> Iterator[tuple[EtcdProxy, EtcdProxy, SnapshotKV]]:
    with EtcdProxy(etcd) as first, EtcdProxy(etcd) as second, Two(first) as two:
        yield first, second, two.open(f"{first.url},{second.endpoint}", 1_000, writer="A")


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("arrives", [True, False])
def test_a_silent_network_is_left_for_another_way(ways, arrives: bool) -> None:
    first, second, a = ways
    Caller(lambda: a.save("before", b"")).value()  # connects
    if arrives:
        silent = first.delay_answer(b"a-value")
    else:
        first.pause()
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}, guards=[Absent("a")]))
    fence = second.look(FENCE)
    if arrives:
        silent.wait_answered()
        first.pause()
    else:
        silent = first.look(b"a-value")
    committed = call.value()
    assert fence.triggered.is_set(), "the outcome was not found through the other endpoint"
    first.resume()
    silent.wait_triggered()  # what stood in the way has arrived now, and so has its end
    with Two(first) as two:
        assert two.once("a") == committed.revision
    assert a.commit(puts={"b": b"1"}).ts > committed.ts


@pytest.mark.usefixtures("hurried")
def test_a_dead_way_is_left_at_once(ways) -> None:
    first, second, a = ways
    first.refuse()
    started = time.monotonic()
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    assert time.monotonic() - started < 5
    with Two(second) as two:
        assert two.once("a") == committed.revision


# --- closing, deadlines ---------------------------------------------------------------------------


def test_closing_in_flight_is_unknown_and_who_waits_is_refused(two: Two) -> None:
    a, b = two.a(), two.b()
    delayed = two.proxy.delay_answer(b"a-value")
    call = Caller(lambda: a.commit(puts={"a": b"a-value"}))
    delayed.wait_answered()
    waiting = Caller(lambda: a.commit(puts={"waiting": b"1"}))
    eventually(lambda: a._core.committer._queue.waiting, "a caller in the queue")
    started = time.monotonic()
    a.close()
    error = call.error()
    assert time.monotonic() - started < 5, "it waited for a deadline that nobody can meet"
    assert isinstance(error, CommitUnknownError)
    assert isinstance(waiting.error(), StoreClosedError)
    assert b.resolve(error.timestamp, error.nonce).revision == two.once("a")
    two.never("waiting")


def test_a_rider_whose_deadline_passes_in_the_queue_never_lands(two: Two) -> None:
    a = two.a()
    delayed = two.proxy.delay_answer(b"a-value")
    first = Caller(lambda: a.commit(puts={"a": b"a-value"}))
    delayed.wait_answered()
    with pytest.raises(CommitTimeoutError):
        a.commit(puts={"late": b"1"}, timeout=0.1)
    delayed.release()
    assert first.value().revision == two.once("a")
    a.save("after", b"1")
    two.never("late")


def test_the_lead_is_handed_over_with_an_open_outcome(two: Two) -> None:
    """The leader's deadline passes; a rider of the same request goes on and is told the truth."""
    a = two.a()
    riders = [
        lambda: a.commit(puts={"m1": b"m1-value"}, timeout=1.0),
        lambda: a.commit(puts={"m2": b"m2-value"}, timeout=15.0),
    ]
    with two.riding(a, *riders) as (m1, m2):
        held = two.proxy.hold(b"m1-value")
    held.wait_triggered()
    error, committed = m1.error(), m2.value()
    assert isinstance(error, CommitUnknownError)
    assert a.resolve(error.timestamp, error.nonce) is None
    held.release()
    two.never("m1")
    assert two.once("m2") == committed.revision
    assert committed.ts > error.timestamp


def test_a_quiet_network_takes_one_request_for_a_commit(two: Two) -> None:
    a = two.a()
    before = two.proxy.requests
    commits = [two.proxy.look(COMMIT) for _ in range(3)]
    a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    a.save("a", b"2")
    assert two.proxy.requests - before == 2
    assert [commit.triggered.is_set() for commit in commits] == [True, True, False]


@pytest.mark.parametrize("latency_s", [0.02, 0.15])
def test_a_far_away_server_can_be_reached(two: Two, latency_s: float) -> None:
    """300 ms for a round trip: another continent. Connecting takes that long, too."""
    two.proxy.latency_s = latency_s
    a = two.a()
    assert a.commit(puts={"a": b"1"}).revision == two.once("a")
