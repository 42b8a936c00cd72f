"""The holes of simpler commit protocols, each by its shortest trace; numbers as in DESIGN.md.

A and B are two processes; timestamps are their clocks' milliseconds. In each trace a simpler
protocol told somebody something wrong; here everybody is told exactly what became of it.
"""

import pytest
from protocol_remote import (
    TS_KEY,
    WAIT_S,
    Fate,
    Gate,
    Network,
    VirtualTime,
    before_the_answer,
    delay,
    deliver,
    give_up,
    interrupt_after,
    interrupt_before,
    lose,
    lose_answer,
    meanwhile,
    refuse,
    twice,
    twice_and_late,
)
from protocol_threads import Caller, until

import snapkv
from snapkv import Absent, AtRevision, CommitUnknownError, ConflictError, HeadAt
from snapkv.engine.contract import Delete, Put, Txn
from snapkv.errors import (
    EngineUnavailableError,
    NoSpaceError,
    OutcomeUnknown,
    StoreRecreatedError,
)
from snapkv.times import physical_ms

pytestmark = pytest.mark.usefixtures("time")


def once(network: Network, key: str) -> int:
    """Return the one revision that wrote a key."""
    ((revision, _),) = network.journal.written(key)
    return revision


def never(network: Network, key: str) -> None:
    """Assert that nothing wrote the key, and that nothing on its way will."""
    network.arrive()
    assert network.journal.written(key) == []


def unknown_commit(
    network: Network, store: snapkv.SnapshotKV, *fates, **commit
) -> CommitUnknownError:
    """Commit into the given fates and a dead network; return the error after it is back."""
    client = store._core.committer.writer
    network.plan(client, *fates)
    network.cut(client)
    with pytest.raises(CommitUnknownError) as caught:
        store.commit(**commit, timeout=1)
    network.mend(client)
    assert caught.value.may_still_land
    return caught.value


# --- H1: a conflict is told only of a request that is dead ----------------------------------


def test_h1_no_conflict_while_the_first_copy_may_land(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    network.plan("A", delay, meanwhile(lambda: b.save("k", b"b")))
    with pytest.raises(ConflictError) as caught:
        a.commit(puts={"a": b"1"}, guards=[Absent("k")])
    assert caught.value.failed == ((Absent("k"), once(network, "k")),)
    b.remove("k")
    assert [answer.succeeded for answer in network.arrive()] == [False]
    never(network, "a")
    # B's write came before the fence, A's second attempt after it.
    assert [physical_ms(s.ts) for s in network.journal.stamps[1:3]] == [5, 10]
    assert network.journal.stamps[2].fence_of is not None


def test_h1_two_commits_of_the_other_first(network: Network) -> None:
    a, b = network.open("A", 30), network.open("B", 10)

    def put_and_remove() -> None:
        b.save("k", b"b")
        b.remove("k")

    network.plan("A", delay, meanwhile(put_and_remove))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("k")])
    assert [answer.succeeded for answer in network.arrive()] == [False]
    assert once(network, "a") == committed.revision


def test_h1_the_copy_lands_before_the_fence(network: Network) -> None:
    a, b = network.open("A", 30), network.open("B", 10)
    network.plan("A", delay, meanwhile(network.arrive))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    assert (physical_ms(committed.ts), committed.revision) == (30, once(network, "a"))
    assert b.load("a") == b"1"


# --- H2: a guard does not trip over our own write -------------------------------------------


def test_h2_no_conflict_with_ourselves(network: Network) -> None:
    a = network.open("A", 1)
    network.plan("A", lose_answer)
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    assert (physical_ms(committed.ts), committed.revision) == (1, once(network, "a"))
    with pytest.raises(ConflictError):
        a.commit(puts={"a": b"2"}, guards=[Absent("a")])


def test_h2_the_guard_was_false_and_the_answer_lost(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    b.save("k", b"b")
    network.plan("A", lose_answer)
    with pytest.raises(ConflictError) as caught:
        a.commit(puts={"a": b"1"}, guards=[Absent("k")])
    assert caught.value.failed == ((Absent("k"), once(network, "k")),)
    never(network, "a")


@pytest.mark.parametrize("others", [0, 1, 3])
def test_h2_found_below_newer_commits(network: Network, others: int) -> None:
    a, b = network.open("A", 10), network.open("B", 20)
    a.save("before", b"")

    def more() -> None:
        for i in range(others):
            b.save("k", b"%d" % i)

    network.plan("A", lose_answer, meanwhile(more))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a"), AtRevision("before", 3)])
    assert committed.revision == once(network, "a")
    assert network.journal.found(committed.ts).revision == committed.revision


@pytest.mark.parametrize("landed", [False, True])
def test_h2_another_process_resolves(network: Network, landed: bool) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    error = unknown_commit(
        network, a, lose_answer if landed else delay, puts={"a": b"1"}, guards=[Absent("a")]
    )
    found = b.resolve(error.timestamp, error.nonce, guards=error.guards)
    if landed:
        assert (found.ts, found.revision) == (error.timestamp, once(network, "a"))
        assert found.writer == "A"
    else:
        assert found is None
        never(network, "a")
    # It is settled once and for all, for everybody.
    assert a.resolve(error.timestamp, error.nonce, guards=error.guards) == found


def test_h2_resolving_a_lone_part_that_was_skipped(network: Network) -> None:
    """Nothing was written, and nothing ever will be."""
    a, b = network.open("A", 10), network.open("B", 5)
    b.save("k", b"b")
    error = unknown_commit(network, a, lose_answer, puts={"a": b"1"}, guards=[Absent("k")])
    assert (error.timestamp, "A") in network.journal.arrivals
    assert b.resolve(error.timestamp, error.nonce, guards=error.guards) is None
    b.remove("k")
    never(network, "a")


def test_h2_a_skipped_lone_part_leaves_no_trace(network: Network) -> None:
    a = network.open("A", 10)
    a.save("k", b"1")
    head, log = network.base.info()["revision"], list(a.commits())
    with pytest.raises(ConflictError):
        a.commit(puts={"a": b"1"}, guards=[Absent("k")])
    assert network.base.info()["revision"] == head
    assert list(a.commits()) == log
    assert a.save("a", b"2") > log[-1].ts


def test_h2_resolving_a_part_with_guards_in_a_space(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    space = a.space("s")
    network.plan("A", lose_answer)
    network.cut("A")
    with pytest.raises(CommitUnknownError) as caught:
        space.commit(puts={b"\xff": b"1"}, guards=[Absent(b"\xff")], timeout=1)
    network.mend("A")
    error = caught.value
    found = b.resolve(error.timestamp, error.nonce, guards=error.guards)
    assert found is not None
    assert found.ts == error.timestamp


# --- H3: a group with an unknown outcome is never split -------------------------------------


def test_h3_a_member_is_never_applied_twice(network: Network) -> None:
    a, b = network.open("A", 30), network.open("B", 10)
    gate = Gate()
    network.plan("A", gate, delay, meanwhile(lambda: b.save("k", b"b")))
    first = Caller(lambda: a.save("first", b""))
    assert gate.reached.wait(WAIT_S)
    m1 = Caller(lambda: a.commit(puts={"m1": b"1"}, guards=[Absent("k")]))
    until(lambda: a._core.committer._turnstile.queue)
    m2 = Caller(lambda: a.commit(puts={"m2": b"1"}))
    until(lambda: len(a._core.committer._turnstile.queue) == 2)
    a._core.clock.wall.set(50)
    b._core.clock.wall.set(40)
    gate.open()
    first.value()
    assert isinstance(m1.error(), ConflictError)
    committed = m2.value()
    assert [answer.succeeded for answer in network.arrive()] == [False]
    assert once(network, "m2") == committed.revision
    never(network, "m1")


# --- H4: a refusal of the fence says nothing of the commit ----------------------------------


@pytest.mark.parametrize("fate", [lose_answer, delay, lose])
def test_h4_a_refused_fence_is_no_answer(network: Network, fate: Fate) -> None:
    a = network.open("A", 1)
    network.plan("A", fate, refuse(NoSpaceError("quota")), refuse(NoSpaceError("quota")))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    network.arrive()
    assert once(network, "a") == committed.revision


@pytest.mark.parametrize("others", [0, 1, 3])
def test_h4_a_look_tells_where_fences_are_refused(network: Network, others: int) -> None:
    """What is stored is proof once it is not smaller than T; no fence is needed then."""
    a, b = network.open("A", 10), network.open("B", 20)
    denied = refuse(snapkv.errors.AccessDeniedError("no right to write"))

    def act(message):
        lost = None
        try:
            return lose_answer(message)
        except OutcomeUnknown as e:
            lost = e
        for n in range(others):
            b.save("b", b"%d" % n)
        raise lost

    network.plan("A", act, *[denied] * 100)
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")], timeout=1)
    assert committed.revision == once(network, "a")
    assert network.left("A") == 99, "one fence, one look"


def test_h4_a_look_tells_that_a_request_is_dead(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 20)
    denied = refuse(snapkv.errors.AccessDeniedError("no right to write"))
    network.plan("A", delay, meanwhile(lambda: b.save("b", b"1"), denied))
    committed = a.commit(puts={"a": b"1"}, timeout=1)
    assert [answer.succeeded for answer in network.arrive()] == [False]
    assert committed.revision == once(network, "a")


@pytest.mark.parametrize("failures", [1, 5])
def test_h4_a_look_that_fails_is_taken_again(network: Network, failures: int) -> None:
    a = network.open("A", 10)
    network.plan("A", lose_answer, *[refuse(NoSpaceError("quota"))] * 100)
    network.unreadable["A"] = failures
    committed = a.commit(puts={"a": b"1"}, timeout=10)
    assert committed.revision == once(network, "a")
    assert network.left("A") == 99 - failures


def test_h4_a_look_that_shows_less_is_no_proof(network: Network) -> None:
    """The request is still on its way, so nobody is told that it failed."""
    a, b = network.open("A", 10), network.open("B", 5)
    network.plan("A", delay, *[refuse(NoSpaceError("quota"))] * 200)
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"1"}, timeout=1)
    network.arrive()
    found = b.resolve(caught.value.timestamp, caught.value.nonce)
    assert found.revision == once(network, "a")


def test_h4_resolving_where_only_reading_is_allowed(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    error = unknown_commit(network, a, lose_answer, puts={"a": b"1"})
    network.plan("B", *[refuse(snapkv.errors.AccessDeniedError("no right to write"))] * 100)
    found = b.resolve(error.timestamp, error.nonce)
    assert found.revision == once(network, "a")


@pytest.mark.parametrize("fate", [lose_answer, delay])
def test_h4_no_space_until_the_deadline_is_unknown(network: Network, fate: Fate) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    full = [refuse(NoSpaceError("quota"))] * 100
    error = unknown_commit(network, a, fate, *full, puts={"a": b"1"})
    network.arrive()  # space is back
    found = b.resolve(error.timestamp, error.nonce)
    assert (found.ts, found.revision) == (error.timestamp, once(network, "a"))


def test_h4_a_definite_refusal_is_told(network: Network) -> None:
    a = network.open("A", 1)
    network.plan("A", refuse(NoSpaceError("quota")))
    with pytest.raises(NoSpaceError, match="quota"):
        a.save("a", b"1")
    assert len(network.seen) == 2, "one message to make the store, one commit, no fence"
    never(network, "a")


@pytest.mark.parametrize("applied", [True, False])
def test_h4_an_answer_too_large_to_receive(network: Network, applied: bool) -> None:
    a = network.open("A", 1)
    cause = snapkv.CommitTooLargeError("the answer in bytes", 5, 4)
    network.plan("A", give_up(cause, applied=applied))
    if applied:
        assert a.save("a", b"1") == network.journal.found(a.resolved()).ts
        assert once(network, "a")
    else:
        with pytest.raises(snapkv.CommitTooLargeError):
            a.save("a", b"1")
        never(network, "a")


# --- H14: an error that does not say whether the request was applied -------------------------

QUOTA = NoSpaceError("quota")


@pytest.mark.parametrize("others", [0, 1, 3])
@pytest.mark.parametrize("applied", [True, False])
def test_h14_a_look_tells_what_was_refused_and_applied(
    network: Network, applied: bool, others: int
) -> None:
    a, b = network.open("A", 10), network.open("B", 20)
    fate = give_up(QUOTA, applied=applied, answered=True)

    def others_too(message):
        try:
            return fate(message)
        finally:
            for n in range(others):
                b.save("b", b"%d" % n)

    before = len(network.seen)
    network.plan("A", others_too)
    if applied:
        committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
        assert committed.revision == once(network, "a")
    else:
        with pytest.raises(NoSpaceError):
            a.commit(puts={"a": b"1"}, guards=[Absent("a")])
        never(network, "a")
    assert [client for client, _ in network.seen[before:]].count("A") == 1, "no fence was sent"


def test_h14_a_guard_that_did_not_hold_when_it_was_applied(network: Network) -> None:
    a = network.open("A", 10)
    a.save("k", b"1")
    network.plan("A", give_up(QUOTA, applied=True, answered=True))
    with pytest.raises(NoSpaceError):  # nothing was written: the guards of one alone go with it
        a.commit(puts={"a": b"1"}, guards=[Absent("k")])
    never(network, "a")


@pytest.mark.parametrize("fate", [delay, lose, lose_answer])
@pytest.mark.parametrize("applied", [True, False])
def test_h14_a_fence_that_was_refused_and_applied(
    network: Network, fate: Fate, applied: bool
) -> None:
    """The look after it finds the fence, or the commit, or nothing yet: then it goes again."""
    a = network.open("A", 10)
    network.plan("A", fate, give_up(QUOTA, applied=applied, answered=True))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    network.arrive()
    assert committed.revision == once(network, "a")


@pytest.mark.parametrize("failures", [1, 5])
@pytest.mark.parametrize("applied", [True, False])
def test_h14_looks_that_fail_are_repeated(network: Network, applied: bool, failures: int) -> None:
    a = network.open("A", 10)
    network.plan("A", give_up(QUOTA, applied=applied, answered=True))
    network.unreadable["A"] = failures
    if applied:
        assert a.commit(puts={"a": b"1"}).revision == once(network, "a")
    else:
        with pytest.raises(NoSpaceError):
            a.save("a", b"1")
        never(network, "a")


@pytest.mark.parametrize("applied", [True, False])
def test_h14_nobody_can_look_until_the_deadline(network: Network, applied: bool) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    fate = give_up(QUOTA, applied=applied, answered=True)
    error = unknown_commit(network, a, fate, puts={"a": b"1"})
    found = b.resolve(error.timestamp, error.nonce)
    if applied:
        assert found.revision == once(network, "a")
    else:
        assert found is None
        never(network, "a")


def test_h14_a_key_made_anew_is_no_answer(network: Network) -> None:
    a = network.open("A", 10)
    fate = give_up(QUOTA, applied=True, answered=True)

    def recreated(message):
        try:
            return fate(message)
        finally:
            recreate(network)

    network.plan("A", recreated)
    with pytest.raises(StoreRecreatedError):
        a.save("a", b"1")


# --- H5: a timestamp key that was deleted and made again ------------------------------------


def recreate(network: Network) -> None:
    """Delete the timestamp key and make it again, as an administrator might."""
    journal = network.journal
    made = journal.revisions[journal.stamps[0].revision][TS_KEY]
    assert made is not None
    network.apply(Txn(success=(Delete(TS_KEY),)))
    network.apply(Txn(success=(Put(TS_KEY, made),)))
    assert journal.stamps[-1].ts == 0


def test_h5_the_same_request_does_not_commit_twice(network: Network) -> None:
    b = network.open("B", 1)
    network.plan("B", twice_and_late)
    b.save("b", b"1")
    recreate(network)
    assert [answer.succeeded for answer in network.arrive()] == [False]
    once(network, "b")
    with pytest.raises(StoreRecreatedError):
        b.save("c", b"1")
    never(network, "c")


@pytest.mark.parametrize("fate", [lose_answer, delay, lose])
def test_h5_nobody_is_told_failed_or_conflict(network: Network, fate: Fate) -> None:
    a = network.open("A", 1)
    network.plan("A", fate, meanwhile(lambda: recreate(network)))
    with pytest.raises(StoreRecreatedError):
        a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    network.arrive()
    assert len(network.journal.written("a")) == (fate is lose_answer)


def test_h5_a_deleted_key(network: Network) -> None:
    a = network.open("A", 1)
    network.apply(Txn(success=(Delete(TS_KEY),)))
    with pytest.raises(StoreRecreatedError):
        a.save("a", b"1")
    never(network, "a")


# --- H6: an issued timestamp counts for ever ------------------------------------------------


@pytest.mark.parametrize("fate", [interrupt_before, delay])
def test_h6_what_was_given_up_does_not_land_over_later_commits(
    network: Network, fate: Fate
) -> None:
    a = network.open("A", 20)
    if fate is delay:
        unknown_commit(network, a, fate, puts={"a1": b"1"})
    else:
        network.plan("A", fate)
        with pytest.raises(KeyboardInterrupt) as caught:
            a.save("a1", b"1")
        assert "outcome unknown" in caught.value.__notes__[0]
    a._core.clock.wall.set(10)
    committed = a.commit(puts={"a2": b"1"})
    assert physical_ms(committed.ts) == 20, "the clock went back, timestamps do not"
    assert [answer.succeeded for answer in network.arrive()] == [False]
    never(network, "a1")
    assert once(network, "a2") == committed.revision


def test_h6_an_interrupt_after_it_was_applied(network: Network) -> None:
    a, b = network.open("A", 20), network.open("B", 10)
    network.plan("A", interrupt_after)
    with pytest.raises(KeyboardInterrupt) as caught:
        a.save("a1", b"1")
    (note,) = caught.value.__notes__
    stamp = network.journal.stamps[-1]
    assert str(stamp.ts) in note
    assert stamp.nonce.hex() in note
    assert b.resolve(stamp.ts, stamp.nonce).revision == once(network, "a1")
    assert a.commit(puts={"a2": b"1"}).ts > stamp.ts


def test_h6_an_interrupt_while_fencing_names_the_commit_too(network: Network) -> None:
    a, b = network.open("A", 20), network.open("B", 10)
    network.plan("A", lose_answer, interrupt_before)
    with pytest.raises(KeyboardInterrupt) as caught:
        a.save("a1", b"1")
    stamp = network.journal.stamps[-1]
    assert any(stamp.nonce.hex() in note for note in getattr(caught.value, "__notes__", []))
    assert b.resolve(stamp.ts, stamp.nonce).revision == once(network, "a1")


# --- H7: copies of a request change nothing -------------------------------------------------


@pytest.mark.parametrize("fate", [twice, twice_and_late])
def test_h7_copies_of_a_request_are_refused(network: Network, fate: Fate) -> None:
    a, b = network.open("A", 1), network.open("B", 1)
    network.plan("A", fate)
    committed = a.commit(puts={"a": b"1"})
    b.remove("a")
    assert all(not answer.succeeded for answer in network.arrive())
    ((revision, _), (_, removed)) = network.journal.written("a")
    assert (revision, removed) == (committed.revision, None)


# --- H8: a fence is never taken for the commit ----------------------------------------------


def test_h8_our_own_fence_is_not_our_commit(network: Network) -> None:
    a = network.open("A", 1)
    network.plan("A", delay, lose_answer, deliver)
    committed = a.commit(puts={"a": b"1"})
    fence = network.journal.stamps[1]
    assert fence.fence_of is not None
    assert committed.ts > fence.ts
    assert [answer.succeeded for answer in network.arrive()] == [False]
    assert once(network, "a") == committed.revision


def test_h8_another_process_resolves_after_the_fence(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    error = unknown_commit(network, a, delay, lose_answer, puts={"a": b"1"})
    assert network.journal.stamps[-1].fence_of == error.nonce
    assert b.resolve(error.timestamp, error.nonce) is None
    assert a.resolve(error.timestamp, error.nonce) is None
    b.save("more", b"")
    assert b.resolve(error.timestamp, error.nonce) is None
    never(network, "a")


def test_h8_a_fence_of_another_commit_with_the_same_timestamp(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 10)
    ours = unknown_commit(network, a, delay, puts={"a": b"1"})
    theirs = unknown_commit(network, b, delay, puts={"b": b"1"})
    assert ours.timestamp == theirs.timestamp
    assert a.resolve(ours.timestamp, ours.nonce) is None  # fences the other one too
    assert a.resolve(theirs.timestamp, theirs.nonce) is None
    assert [answer.succeeded for answer in network.arrive()] == [False, False]


# --- H9: what ordinals decide is decided; `test_protocol_undecidable.py` has them all -------


@pytest.mark.parametrize(("others", "compacted"), [(1, 1), (2, 1), (2, 0), (3, 0)])
def test_h9_the_ordinal_tells(network: Network, others: int, compacted: int) -> None:
    """Compacted up to the first commit after what A knew: nothing can lie between."""
    a, b = network.open("A", 10), network.open("B", 20)

    def write_and_compact() -> None:
        revisions = [b.commit(puts={"b": b"%d" % i}).revision for i in range(others)]
        network.base.compact(revisions[0] - 1 + compacted)

    network.plan("A", delay, meanwhile(write_and_compact))
    committed = a.commit(puts={"a": b"1"})
    network.arrive()
    assert once(network, "a") == committed.revision
    assert physical_ms(committed.ts) == 20


@pytest.mark.parametrize("fate", [delay, lose_answer])
def test_h9_what_compaction_took_cannot_be_told(network: Network, fate: Fate) -> None:
    a, b = network.open("A", 10), network.open("B", 20)

    def write_and_compact() -> None:
        b.save("b", b"1")
        network.base.compact(b.commit(puts={"b": b"2"}).revision)

    network.plan("A", fate, meanwhile(write_and_compact))
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"1"})
    error = caught.value
    assert not error.may_still_land
    with pytest.raises(CommitUnknownError) as caught:
        network.open("C", 10).resolve(error.timestamp, error.nonce)
    assert not caught.value.may_still_land
    if fate is delay:  # B has seen every commit, and remembers
        assert b.resolve(error.timestamp, error.nonce) is None
    assert all(not answer.succeeded for answer in network.arrive())


def test_h9_a_lone_commit_whose_guards_saw_what_compaction_took(network: Network) -> None:
    """It landed, and its timestamp with it: so its guards held."""
    a = network.open("A", 10)

    def compact() -> None:
        network.base.compact(network.journal.stamps[-1].revision)

    for key, guards in (("a", [Absent("a")]), ("b", [])):
        network.plan("A", lose_answer, meanwhile(compact))
        assert a.commit(puts={key: b"1"}, guards=guards).revision == once(network, key)


def test_h9_compaction_races_with_the_question(network: Network) -> None:
    """Compaction goes on between two reads of the settling: the outcome is not "failed"."""
    a, b = network.open("A", 10), network.open("B", 20)
    revisions: list[int] = []

    def write_and_compact() -> None:
        revisions.extend(b.commit(puts={"b": b"%d" % i}).revision for i in range(6))
        network.base.compact(revisions[1])

    asked = []

    def go_on(client: str, ranges) -> None:
        if client == "A" and revisions:
            asked.append(ranges)
            network.base.compact(revisions[min(len(asked) + 1, 5)])

    network.before_read = go_on
    network.plan("A", lose_answer, meanwhile(write_and_compact))
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"1"})
    assert not caught.value.may_still_land
    assert once(network, "a")
    assert asked


@pytest.mark.parametrize("failures", [1, 3])
def test_h9_reads_that_fail_are_asked_again(network: Network, failures: int) -> None:
    """A commit that landed has not failed because the engine could not be read for a while."""
    a, b = network.open("A", 10), network.open("B", 20)

    def write() -> None:
        b.save("b", b"1")
        b.save("b", b"2")
        network.unreadable["A"] = failures

    network.plan("A", lose_answer, meanwhile(write))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    assert committed.revision == once(network, "a")
    assert network.unreadable["A"] == 0


# --- H10: the ring is one contiguous run, whatever comes when ---------------------------------


def look_everywhere(network: Network, store: snapkv.SnapshotKV) -> None:
    """Every lookup tells the true revision, or that it was compacted; twice, for the caches."""
    stamps = network.journal.stamps
    for _ in range(2):
        for ts in {stamp.ts + d for stamp in stamps for d in (-1, 0, 1)} - {
            -1,
            1,
        }:  # 1 is not a time here
            true = max(stamp.revision for stamp in stamps if stamp.ts <= ts)
            try:
                assert store.at(ts).revision == true
            except snapkv.CompactedError:
                assert true < network.base.compacted_revision()
        store._core.timeline.check()
    ring = store._core.timeline.ring
    marks = [ring.newest] if ring.newest else []
    while marks and (newer := ring.after(marks[-1])):
        marks.append(newer)
    for mark in marks:
        assert network.journal.found(mark.timestamp).revision == mark.revision


@pytest.mark.parametrize("slots", [1, 2, 3, 1_024])
def test_h10_a_watch_that_starts_after_a_gap(network: Network, slots: int) -> None:
    a, b = network.open("A", 10, ring_slots=slots), network.open("B", 20)
    a.save("a", b"1")
    for i in range(3):
        b.save("b", b"%d" % i)
    look_everywhere(network, a)
    a.save("a", b"2")
    b.save("b", b"3")
    a.save("a", b"3")
    look_everywhere(network, a)


@pytest.mark.parametrize("slots", [1, 2, 3, 1_024])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_h10_an_answer_that_the_watch_has_overtaken(
    network: Network, slots: int, others: int
) -> None:
    a, b = network.open("A", 10, ring_slots=slots), network.open("B", 20)
    a.save("a", b"0")
    look_everywhere(network, a)

    def overtake() -> None:
        for i in range(others):
            b.save("b", b"%d" % i)
        look_everywhere(network, a)

    for i in range(3):
        network.plan("A", before_the_answer(overtake))
        a.save("a", b"%d" % i)
        look_everywhere(network, a)


@pytest.mark.parametrize("slots", [1, 2, 3, 1_024])
def test_h10_a_watch_that_compaction_overtakes(network: Network, slots: int) -> None:
    a, b = network.open("A", 10, ring_slots=slots), network.open("B", 20)
    a.save("a", b"1")
    look_everywhere(network, a)
    revisions = [b.commit(puts={"b": b"%d" % i}).revision for i in range(5)]
    network.base.compact(revisions[3])
    a.save("a", b"2")
    look_everywhere(network, a)
    b.save("b", b"6")
    network.base.compact(network.journal.stamps[-1].revision)
    look_everywhere(network, a)


@pytest.mark.parametrize("fate", [lose_answer, delay])
@pytest.mark.parametrize("slots", [1, 2, 3, 1_024])
def test_h10_a_settled_commit_without_its_predecessor(
    network: Network, slots: int, fate: Fate
) -> None:
    a, b = network.open("A", 10, ring_slots=slots), network.open("B", 20)
    a.save("a", b"1")

    def more() -> None:
        b.save("b", b"1")
        b.save("b", b"2")

    network.plan("A", meanwhile(more, fate), meanwhile(more))
    a.save("a", b"2")
    look_everywhere(network, a)
    error = unknown_commit(network, b, fate, puts={"b": b"3"})
    a.resolve(error.timestamp, error.nonce)
    look_everywhere(network, a)
    a.save("a", b"3")
    look_everywhere(network, a)
    look_everywhere(network, b)


@pytest.mark.parametrize("others", [1, 2])
def test_h10_while_another_thread_is_at_the_feed(network: Network, others: int) -> None:
    """Whoever finds the feed taken goes on without it, with what the head has told it."""
    a, b = network.open("A", 10), network.open("B", 20)
    a.save("a", b"1")
    snap = a.at()
    for i in range(others):
        b.save("b", b"%d" % i)
    network.base.compact(network.journal.stamps[-1].revision)
    with a._core.timeline._feed_lock, pytest.raises(snapkv.CompactedError):
        snap.get("a")


# --- H12: an embedded engine whose failed commit surfaces later -----------------------------


def test_h12_a_failed_commit_that_surfaces_is_dead(network: Network) -> None:
    """As lmdb with an I/O error: others go on, a later opener would have seen it."""
    a, b = network.open("A", 10), network.open("B", 5)
    network.plan(
        "A", delay, delay, refuse(NoSpaceError("disk")), meanwhile(lambda: b.save("b", b"1"))
    )
    cause = NoSpaceError("disk")
    network.plan("B", give_up(cause, applied=False))
    with pytest.raises(NoSpaceError):
        b.save("b0", b"")
    committed = a.commit(puts={"a": b"1"})
    assert [answer.succeeded for answer in network.arrive()] == [False, False]
    assert once(network, "a") == committed.revision


# --- whatever else an engine raises ---------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), OSError(5, "I/O"), EngineUnavailableError("down")]
)
def test_any_error_after_sending_is_settled_first(
    network: Network, error: Exception, applied: bool
) -> None:
    a = network.open("A", 1)

    def fate(message):
        if applied:
            message.deliver()
        raise error

    network.plan("A", fate)
    if applied:
        assert a.commit(puts={"a": b"1"}).revision == once(network, "a")
    else:
        with pytest.raises(type(error)):
            a.commit(puts={"a": b"1"})
        never(network, "a")


@pytest.mark.parametrize("error", [NoSpaceError("disk"), snapkv.errors.CorruptStoreError("file")])
def test_an_error_of_the_fence_is_not_an_error_of_the_commit(
    network: Network, error: Exception
) -> None:
    """An engine that must be mended first may raise anything: the commit's outcome stays open."""
    a, b = network.open("A", 10), network.open("B", 5)

    def fate(message):
        raise error

    network.plan("A", lose_answer, *[fate] * 200)
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"1"}, timeout=1)
    found = b.resolve(caught.value.timestamp, caught.value.nonce)
    assert found.revision == once(network, "a")


def test_closing_in_flight_is_unknown(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    network.plan("A", meanwhile(a.close, lose_answer))
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"1"})
    found = b.resolve(caught.value.timestamp, caught.value.nonce)
    assert found.revision == once(network, "a")


def test_closing_before_sending_is_closed(network: Network) -> None:
    a = network.open("A", 10)
    a.close()
    with pytest.raises(snapkv.errors.StoreClosedError):
        a.save("a", b"1")
    never(network, "a")


# --- lost rounds, timestamps ----------------------------------------------------------------


def test_a_lost_round_builds_again_for_the_new_timestamp(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 20)
    built: list[snapkv.Stamp] = []

    def build(stamp: snapkv.Stamp) -> snapkv.Ops:
        built.append(stamp)
        return snapkv.Ops({"a": b"%d" % stamp.ts})

    network.plan("A", meanwhile(lambda: b.save("b", b"1")))
    committed = a.commit(build)
    assert [physical_ms(stamp.ts) for stamp in built] == [10, 20]
    assert built[1].ts == b.resolved() == committed.ts
    assert a.load("a") == b"%d" % committed.ts


def test_deadline_after_lost_rounds_never_lands(network: Network, time: VirtualTime) -> None:
    a, b = network.open("A", 10), network.open("B", 20)

    def overtake() -> None:
        b._core.clock.wall.advance(100)
        b.save("b", b"")

    network.plan("A", *[meanwhile(overtake)] * 10_000)
    started = time.now
    with pytest.raises(snapkv.CommitTimeoutError):
        a.commit(puts={"a": b"1"}, timeout=1)
    assert time.now - started <= 1.001
    never(network, "a")


def test_claiming_ahead_wins_against_a_steady_writer(network: Network) -> None:
    """The other one commits each time that A has sent, and its clock is ahead by 8 ms."""
    a, b = network.open("A", 100), network.open("B", 108)
    network.plan("A", *[meanwhile(lambda: b.save("b", b""))] * 200)
    committed = a.commit(puts={"a": b"1"})
    assert 200 - network.left("A") <= 20
    assert physical_ms(committed.ts) <= 108 + 16


def test_a_settled_refusal_is_merged(network: Network) -> None:
    """What the refused fence tells spares the next attempt a lost round."""
    a, b = network.open("A", 10), network.open("B", 1_000)
    network.plan("A", delay, meanwhile(lambda: b.save("b", b"1")))
    sent_before = len(network.seen)
    a.save("a", b"1")
    mine = [txn for client, txn in network.seen[sent_before:] if client == "A"]
    assert len(mine) == 3, "the lost one, its fence, and the one that made it"


# --- guards on the head ---------------------------------------------------------------------


def test_head_guard_after_a_fence_of_our_own(network: Network) -> None:
    a = network.open("A", 10)
    head = a.at().revision
    network.plan("A", delay)
    with pytest.raises(ConflictError) as caught:
        a.commit(puts={"a": b"1"}, guards=[HeadAt(head)])
    assert caught.value.failed == ((HeadAt(head), head + 1),), "the fence, not our own transaction"
    never(network, "a")


def test_head_guard_on_a_revision_to_come(network: Network) -> None:
    """The guard is false when it is looked at, though it names the revision of our own refusal."""
    a = network.open("A", 10)
    head = a.at().revision
    with pytest.raises(ConflictError) as caught:
        a.commit(puts={"a": b"1"}, guards=[HeadAt(head + 1)])
    assert caught.value.failed == ((HeadAt(head + 1), head),)
    never(network, "a")


def test_head_guard_with_a_lost_answer(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    head = a.at().revision
    network.plan("A", lose_answer, meanwhile(lambda: b.tick()))
    assert a.commit(puts={"a": b"1"}, guards=[HeadAt(head)]).revision == once(network, "a")
    network.plan("A", lose_answer)
    with pytest.raises(ConflictError):
        a.commit(puts={"c": b"1"}, guards=[HeadAt(head)])
    never(network, "c")


# --- opening --------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", [lose, lose_answer, delay])
def test_opening_survives_an_unknown_outcome(network: Network, fate: Fate) -> None:
    network.plan("A", fate)
    a = network.open("A", 1)
    network.arrive()
    a.save("a", b"1")
    assert network.open("B", 1, create=False).load("a") == b"1"
    assert len({stamp.revision for stamp in network.journal.stamps if stamp.ts == 0}) == 1


def test_two_openers_make_one_store(network: Network) -> None:
    network.plan("A", meanwhile(lambda: network.open("B").save("b", b"1")))
    a = network.open("A")
    assert a.load("b") == b"1"
