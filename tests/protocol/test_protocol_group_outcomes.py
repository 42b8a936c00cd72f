"""Groups with real threads: deadlines, interrupts, closing, and answers that are lost."""

import os

import pytest
from protocol_line import Line
from protocol_remote import (
    WAIT_S,
    Gate,
    Network,
    delay,
    deliver,
    lose,
    lose_answer,
    meanwhile,
)
from protocol_threads import until

from snapkv import (
    Absent,
    CommitTimeoutError,
    CommitUnknownError,
    ConflictError,
    Ops,
    Stamp,
)
from snapkv.engine.contract import Refused
from snapkv.errors import (
    InvalidOptionError,
    InvalidTypeError,
    NoSpaceError,
    StoreClosedError,
)

pytestmark = pytest.mark.slow

# --- deadlines, interrupts, closing ---------------------------------------------------------


def test_a_deadline_while_waiting_never_lands(line: Line) -> None:
    late = line.join(lambda store: store.commit(puts={"late": b"1"}, timeout=0.05))
    patient = line.save("patient")
    assert isinstance(late.error(), CommitTimeoutError)
    line.go()
    assert patient.value().batch == 0
    assert line.network.journal.written("late") == []


def test_a_deadline_while_others_are_built_never_lands(line: Line) -> None:
    """It is on board already when its caller gives up: the others are built again without it."""
    leader = line.save("leader")
    early = line.join(lambda store: store.commit(puts={"early": b"1"}, timeout=0.2))
    batches = []

    def build(stamp: Stamp) -> Ops:
        batches.append(stamp.batch)
        until(lambda: not early.is_alive(), "the other caller to give up")
        return Ops({"late": b"1"})

    late = line.join(lambda store: store.commit(build))
    line.go()
    assert isinstance(early.error(), CommitTimeoutError)
    assert leader.value().batch == 0
    assert late.value().batch == batches[-1] == 1
    assert line.network.journal.written("early") == []


# --- which members were applied, when the answer was lost ---------------------------------------


def test_h9_guards_that_compaction_took(line: Line) -> None:
    """The group landed; whether a member was applied depends on a state that is gone."""

    def compact() -> None:
        line.network.base.compact(line.network.journal.stamps[-1].revision)

    guarded = line.commit(puts={"a": b"1"}, guards=[Absent("a")])
    plain = line.save("c")
    line.network.plan("A", lose_answer, meanwhile(compact))
    line.go()
    error = guarded.error()
    assert isinstance(error, CommitUnknownError)
    assert not error.may_still_land
    assert [guard.guard for guard in error.guards] == [Absent("a")]
    assert plain.value().batch == 1


@pytest.mark.parametrize("failures", [1, 3])
def test_h9_reading_the_guards_is_asked_again(line: Line, failures: int) -> None:
    def break_reads() -> None:
        line.network.unreadable["A"] = failures

    callers = [line.commit(puts={key: b"1"}, guards=[Absent(key)]) for key in ("a", "c")]
    line.network.plan("A", lose_answer, meanwhile(break_reads))
    line.go()
    assert [caller.value().batch for caller in callers] == [0, 1]
    assert line.network.unreadable["A"] == 0


def test_h9_reads_that_fail_for_good_are_unknown(line: Line) -> None:
    callers = [
        line.commit(puts={key: b"1"}, guards=[Absent(there)], timeout=1)
        for key, there in (("a", "a"), ("c", "b"))
    ]

    def break_reads() -> None:
        line.network.unreadable["A"] = 1_000_000

    line.network.plan("A", lose_answer, meanwhile(break_reads))
    line.go()
    errors = [caller.error() for caller in callers]
    assert all(isinstance(error, CommitUnknownError) for error in errors), errors
    other = line.network.open("B", 20)
    first, second = errors
    found = other.resolve(first.timestamp, first.nonce, batch=first.batch, guards=first.guards)
    assert (found.ts, found.batch) == (first.timestamp, 0)
    with pytest.raises(ConflictError):
        other.resolve(second.timestamp, second.nonce, batch=second.batch, guards=second.guards)


def test_resolving_tells_the_batch(line: Line) -> None:
    callers = [line.join(lambda store, k=key: store.save(k, b"1")) for key in ("x", "y", "z")]
    line.network.plan("A", lose_answer)
    line.go()
    told = {caller.value() for caller in callers}
    stamp = line.network.journal.stamps[-1]
    assert told == {stamp.ts}
    found = line.store.resolve(stamp.ts, _nonce_of(line, stamp.ts), batch=2)
    assert (found.ts, found.batch) == (stamp.ts, 2)
    for batch in (-1, True, "1"):
        with pytest.raises((InvalidOptionError, InvalidTypeError), match="batch must be"):
            line.store.resolve(stamp.ts, b"n", batch=batch)


def _nonce_of(line: Line, ts: int) -> bytes:
    found = line.store._core.timeline.find(ts)
    assert found is not None
    return found[1].nonce


@pytest.mark.parametrize("applied", [True, False])
def test_a_deadline_in_flight_is_unknown(line: Line, applied: bool) -> None:
    second = Gate(deliver if applied else lose)
    line.network.plan("A", second)
    leader = line.save("leader")
    rider = line.join(lambda store: store.commit(puts={"rider": b"1"}, timeout=0.2))
    line.gate.open()
    assert second.reached.wait(WAIT_S)
    error = rider.error()
    assert isinstance(error, CommitUnknownError)
    assert (error.batch, error.may_still_land) == (1, True)
    second.open()
    commit = leader.value()
    found = line.network.open("B", 1).resolve(error.timestamp, error.nonce)
    if applied:
        assert (found.ts, found.revision) == (commit.ts, commit.revision)
    else:
        assert found is None
    assert len(line.network.journal.written("rider")) == applied


def test_a_rider_that_left_is_not_committed_again(line: Line) -> None:
    """Its transaction is dead; the others try again without it, so batches move up."""
    second = Gate(lose)
    line.network.plan("A", second)
    leader = line.save("leader")
    rider = line.join(lambda store: store.commit(puts={"rider": b"1"}, timeout=0.2))
    last = line.save("last")
    line.gate.open()
    assert second.reached.wait(WAIT_S)
    assert isinstance(rider.error(), CommitUnknownError)
    second.open()
    assert (leader.value().batch, last.value().batch) == (0, 1)
    assert leader.value().ts == last.value().ts
    assert line.network.journal.written("rider") == []


@pytest.mark.parametrize("fate", [lose_answer, lose, delay])
def test_when_the_leader_leaves_the_next_one_settles(line: Line, fate) -> None:
    line.network.plan("A", fate, *[lose] * 3)
    line.network.cut("A")
    leader = line.join(lambda store: store.commit(puts={"leader": b"1"}, timeout=1.0))
    riders = [line.save(f"rider{i}") for i in range(3)]
    line.go()
    error = leader.error()
    assert isinstance(error, CommitUnknownError)
    line.network.mend("A")
    commits = [rider.value() for rider in riders]
    line.network.arrive()
    for i, commit in enumerate(commits):
        ((revision, _),) = line.network.journal.written(f"rider{i}")
        assert revision == commit.revision
    found = line.network.open("B", 1).resolve(error.timestamp, error.nonce, guards=error.guards)
    assert (found is not None) == (fate is lose_answer)
    if found is not None:
        assert [commit.batch for commit in commits] == [1, 2, 3]
        assert commits[0].ts == found.ts
    else:
        assert [commit.batch for commit in commits] == [0, 1, 2]


@pytest.mark.parametrize("applied", [True, False])
def test_an_interrupted_leader_leaves_the_truth_to_the_others(line: Line, applied: bool) -> None:
    def interrupt(message):
        if applied:
            message.deliver()
        raise KeyboardInterrupt

    line.network.plan("A", interrupt)
    leader, rider = line.save("leader"), line.save("rider")
    line.go()
    error = leader.error()
    assert isinstance(error, KeyboardInterrupt)
    assert "outcome unknown" in error.__notes__[0]
    assert rider.value().batch == (1 if applied else 0)
    assert len(line.network.journal.written("leader")) == applied
    assert len(line.network.journal.written("rider")) == 1


def test_everybody_hears_of_a_refusal(line: Line) -> None:
    def refuse(message):
        raise Refused(NoSpaceError("quota"))

    line.network.plan("A", refuse)
    callers = [line.save(f"k{i}") for i in range(3)]
    line.go()
    errors = [caller.error() for caller in callers]
    assert {type(error) for error in errors} == {NoSpaceError}
    assert len({id(error) for error in errors}) == 3, "one exception is not raised in two threads"
    assert all(line.network.journal.written(f"k{i}") == [] for i in range(3))


def test_closing_while_callers_wait(line: Line) -> None:
    waiting = [line.save(f"k{i}") for i in range(3)]
    line.store.close()
    assert {type(caller.error()) for caller in waiting} == {StoreClosedError}
    line.gate.open()
    assert line.first.value().revision == line.network.journal.written("first")[0][0]
    with pytest.raises(StoreClosedError):
        line.store.save("k", b"1")
    assert all(line.network.journal.written(f"k{i}") == [] for i in range(3))


@pytest.mark.parametrize("fate", [lose_answer, lose, delay])
def test_closing_while_the_outcome_is_unknown(network: Network, fate) -> None:
    line = Line(network, fate)
    waiting = line.save("waiting")
    line.store.close()
    line.gate.open()
    error = line.first.error()
    assert isinstance(error, CommitUnknownError), "closed is no outcome of what was sent"
    assert isinstance(waiting.error(), StoreClosedError)
    found = network.open("B", 1).resolve(error.timestamp, error.nonce)
    assert (found is not None) == (fate is lose_answer)
    network.arrive()
    assert len(network.journal.written("first")) == (fate is lose_answer)


def test_closing_with_riders_in_flight(line: Line) -> None:
    second = Gate(lose_answer)
    line.network.plan("A", second)
    callers = [line.save(f"k{i}") for i in range(3)]
    line.gate.open()
    assert second.reached.wait(WAIT_S)
    line.store.close()
    second.open()
    errors = [caller.error() for caller in callers]
    assert {type(error) for error in errors} == {CommitUnknownError}
    assert [error.batch for error in errors] == [0, 1, 2]


@pytest.mark.forks
def test_a_fork_in_between(line: Line) -> None:
    """The child has the parent's queue in its memory; its own commits do not wait for it."""
    waiting = line.save("waiting")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            line.store.commit(puts={"child": b"1"}, timeout=5)
            os.write(write, b"ok %d" % len(line.network.journal.written("waiting")))
        except BaseException as e:
            os.write(write, repr(e).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert answer.read() == b"ok 0"
    assert os.waitpid(pid, 0)[1] == 0
    line.go()
    assert waiting.value().batch == 0
    assert line.network.journal.written("child") == [], "the child's memory engine is its own"
