"""Sessions in forked children: the parent keeps its own, and a child can make another."""

import os
import threading
import warnings

import pytest
from store.engines import SHARED

from snapkv.errors import SessionLostError

from .test_sessions import LONG_S, STEADY_S, WAIT_S, ids

pytestmark = pytest.mark.slow


def in_child(body) -> int:
    """Run `body` in a forked child; return 0 when it returned true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: what is tested
        pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = 0 if body() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.long_on("memory")
@pytest.mark.forks
def test_in_a_forked_child_it_is_lost_and_stays_the_parents(store, place):
    session = store.session(max(place.kind.ttl_s, STEADY_S))

    def child():
        try:
            session.check()
            return False
        except SessionLostError:
            pass
        try:
            _ = session.guard
            return False
        except SessionLostError:
            pass
        lost = not session.alive and session.wait_lost(WAIT_S)
        session.close()
        store.close()
        return lost

    taken, forked = threading.Event(), threading.Event()

    def holds():
        with session._lock, session._ended._changed:
            taken.set()
            forked.wait(WAIT_S)

    other = threading.Thread(target=holds)
    other.start()
    assert taken.wait(WAIT_S)
    code = in_child(child)
    forked.set()
    other.join()
    assert code == 0
    assert session.alive
    assert not session.wait_lost(2 * session.ttl_s)
    store.commit(puts={"k": b"1"}, guards=[session.guard])


@pytest.mark.parametrize("place", SHARED, indirect=True)
@pytest.mark.forks
def test_a_child_can_have_its_own(store, place):
    session = store.session(LONG_S, b"parent")

    def child():
        with store.session(LONG_S, b"child") as own:
            store.commit(puts={"child": b"1"}, guards=[own.guard])
            return [info.value for info in store.sessions()] == [b"parent", b"child"]

    assert in_child(child) == 0
    assert store.load("child") == b"1"
    assert ids(store) == [session.id]
