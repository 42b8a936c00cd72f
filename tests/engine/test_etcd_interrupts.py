"""Ctrl-C inside gRPC: whatever it leaves behind there, the store goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from etcd_server import EtcdServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROUNDS, WINDOW_S, ENDS_S = 30, 0.02, 100

_PROGRAM = """
import random, signal, sys, threading, time
import snapkv

url, act = sys.argv[1:3]
rounds, window_s, seed = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
rng = random.Random(seed)
store = snapkv.open(url)
store.save("k", b"0")
acts = {
    "commit": lambda: store.save("k", b"1"),
    "load": lambda: store.load("k"),
    "compaction": store._core.engine.compacted_revision,
}
others = 0
stop = threading.Event()

def other():
    global others
    while not stop.is_set():
        store.save("other", b"1")
        others += 1

rider = threading.Thread(target=other, daemon=True)
rider.start()
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(rounds):
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, window_s))
        while True:
            acts[act]()
    except KeyboardInterrupt:
        pass
    except RuntimeError as e:  # Python's own Condition: see _IN_WAIT
        assert isinstance(e.__context__, KeyboardInterrupt), repr(e)
    before = others
    worked = []
    after = threading.Thread(target=lambda: worked.append(store.save("k", b"2")), daemon=True)
    after.start()
    after.join(8)
    assert worked, "no other thread can commit any more"
    store.save("k", b"3")
    assert store.load("k") == b"3"
stop.set()
rider.join(8)
assert others > rounds, others
closer = threading.Thread(target=store.close, daemon=True)
closer.start()
closer.join(8)
assert not closer.is_alive(), "close() hangs"
print("done")
"""


_IN_GRPC = """
import sys, threading
import snapkv

store = snapkv.open(sys.argv[1])
store.save("k", b"1")

taken = False

def interrupt(frame, event, arg):
    global taken
    name, frame.f_trace_opcodes = frame.f_code.co_name, True
    if name == "get_plugin" and event == "return":
        taken = True
    elif name == "__enter__" and event == "opcode" and taken:
        sys.settrace(None)
        raise KeyboardInterrupt  # the lock is taken, and the block has not begun
    return interrupt

sys.settrace(interrupt)
try:
    store.load("k")
except KeyboardInterrupt as e:
    kept = e
answers = []
reading = threading.Thread(target=lambda: answers.append(store.load("k")), daemon=True)
reading.start()
reading.join(20)
assert kept and answers == [b"1"], "calls of other threads hang"
print("done")
"""


def test_an_interrupt_does_not_leave_the_lock_of_all_channels_taken(etcd: EtcdServer) -> None:
    """The interrupt's traceback refers to the generator that has taken it."""
    program = subprocess.run(
        [sys.executable, "-c", _IN_GRPC, etcd.url], cwd=ROOT, capture_output=True, timeout=ENDS_S
    )
    assert (program.returncode, program.stdout) == (0, b"done\n"), program.stderr.decode()


_IN_WAIT = """
import sys, traceback
import snapkv

store = snapkv.open(sys.argv[1])
find = store._core.engine.compacted_revision
waits = []

def interrupt(frame, event, arg):
    names = [summary.name for summary in traceback.extract_stack(frame)]
    if names[-1] != "wait" or "_next" not in names:
        return None
    if "saved_state" in frame.f_locals:
        waits.append(frame)
        sys.settrace(None)
        raise KeyboardInterrupt  # the condition has released its lock and will not take it again
    return interrupt

for _ in range(100):
    sys.settrace(interrupt)
    try:
        find()
    except KeyboardInterrupt:
        break
    finally:
        sys.settrace(None)
assert len(waits) == 1, waits
store.save("k", b"1")
assert store.load("k") == b"1" and find() > 0
store.close()
print("done")
"""


def test_an_interrupt_in_a_wait_is_what_the_caller_sees(etcd: EtcdServer) -> None:
    """gRPC raises `RuntimeError: cannot release un-acquired lock` there."""
    _compact(etcd)
    program = subprocess.run(
        [sys.executable, "-c", _IN_WAIT, etcd.url], cwd=ROOT, capture_output=True, timeout=ENDS_S
    )
    assert (program.returncode, program.stdout) == (0, b"done\n"), program.stderr.decode()


def _compact(etcd: EtcdServer) -> None:
    etcd.gateway.put(b"x", b"1")
    etcd.gateway.put(b"x", b"2")
    etcd.gateway.compact(etcd.gateway.revision())


@pytest.mark.parametrize("act", ["commit", "load", "compaction"])
def test_a_store_goes_on_after_interrupts(etcd: EtcdServer, act: str) -> None:
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)
    if act == "compaction":
        _compact(etcd)
    command = [sys.executable, "-c", _PROGRAM, etcd.url, act, str(ROUNDS), str(WINDOW_S), str(seed)]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = program.communicate(timeout=ENDS_S)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGKILL)
        pytest.fail(f"hangs after an interrupt: {program.communicate()[1].decode()}")
    assert (program.returncode, out) == (0, b"done\n"), err.decode()
