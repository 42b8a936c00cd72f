"""The end of a post: during sends, twice, with calls that hang, by the process's end, in forks."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from etcd_server import eventually

from cdcmeta.scheduler.transport.grpc_post import GrpcPost

from .posting import exchanges, heartbeat, request

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def test_no_thread_remains_after_close(opened):
    """The fixture waits for the end of all threads."""
    posts = [GrpcPost() for _ in range(4)]
    opened += posts
    for one in posts:
        for other in posts:
            exchanges(one, other)


def test_close_during_sends_of_many_threads(opened):
    for _ in range(5):
        sender, receiver = GrpcPost(), GrpcPost()
        opened += [sender, receiver]
        stop, errors, counts = threading.Event(), [], [0] * 6

        def send(turn, sender=sender, receiver=receiver, stop=stop, errors=errors, counts=counts):
            try:
                while not stop.is_set():
                    sender.send(receiver.address, f"f{turn}", request(counts[turn]))
                    sender.send(f"127.0.0.1:{1 + counts[turn] % 50}", "feed", heartbeat(1))
                    counts[turn] += 1
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=send, args=(turn,)) for turn in range(6)]
        for thread in threads:
            thread.start()
        eventually(lambda counts=counts: min(counts) > 20, "sends of all threads")
        sender.close()
        receiver.close()
        at_close = list(counts)
        eventually(
            lambda counts=counts, before=at_close: all(
                now > then + 1 for now, then in zip(counts, before, strict=True)
            ),
            "sends after the end",
        )
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors


def test_close_does_not_wait_for_calls_that_hang(foreign):
    sender = GrpcPost()
    for n in range(100):
        sender.send(foreign.address, "feed", request(n))
    eventually(lambda: foreign.calls, "the call that hangs")
    began = time.monotonic()
    sender.close()
    assert time.monotonic() - began < 4  # the call itself takes 5 s to fail


def test_a_closed_post_gets_and_sends_nothing(post):
    one, other = post(), post()
    exchanges(one, other)
    one.close()
    one.close()
    one.send(other.address, "feed", request(1))
    other.send(one.address, "feed", request(2))
    assert one.receive() == []
    again = post(one.address)
    exchanges(other, again)
    assert other.receive() == []


def test_closed_by_several_threads_at_once(opened):
    one = GrpcPost()
    exchanges(one, one)
    threads = [threading.Thread(target=one.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


PRELUDE = """
import os, signal, socket, sys, threading, time, traceback
from cdcmeta.scheduler.transport.grpc_post import GrpcPost
from scheduler.transport.posting import exchanges, heartbeat, request
signal.alarm(50)
one, other = GrpcPost(), GrpcPost()
exchanges(one, other)
silent = socket.create_server(("127.0.0.1", 0))
one.send(f"127.0.0.1:{silent.getsockname()[1]}", "feed", request(1))
"""


def run(body):
    """Run a program; return its exit code, and what it printed beside the log of lost messages."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + body],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": paths},
    )
    lines = done.stderr.splitlines()
    return done.returncode, [each for each in lines if not each.startswith("messages to ")]


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("sys.exit(3)", 3), ("raise KeyboardInterrupt", -2)]
)
def test_a_process_ends_without_close(end, code):
    done = run(f"for n in range(500): one.send(other.address, 'feed', request(n))\n{end}\n")
    assert done[0] == code
    assert done[1][-1:] == (["KeyboardInterrupt"] if code == -2 else [])


INTERRUPTS = """
def interrupted_at(place, post):
    # signals are handled when a function begins and when a call has returned
    left = place

    def profile(frame, event, argument):
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        post.send(other.address, "feed", request(1))
        sys.setprofile(None)
    except KeyboardInterrupt as e:
        kept.append(e)  # as while a `finally` runs
        return False
    return True

kept, place, over = [], 1, False
while not over:
    post = GrpcPost()
    try:
        over = interrupted_at(place, post)
    finally:
        sys.setprofile(None)
    for ends in (post.close, lambda: exchanges(one, other)):
        thread = threading.Thread(target=ends, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), f"interrupted at place {place}: {ends}"
    place += STEP
assert place > 150, place
"""


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.long)])
def test_an_interrupt_inside_a_call_lets_the_post_close_and_others_send(step):
    assert run(INTERRUPTS.replace("STEP", str(step))) == (0, [])


CRASHED = re.compile(r"child \d+ ended with 0x8?[67b]$", re.MULTILINE)
FORKS = """
stop = threading.Event()
received = []
def load():
    n = 0
    while not stop.is_set():
        one.send(other.address, "feed", request(n)); one.send(other.address, "feed", heartbeat(n))
        received.extend(other.receive()); n += 1
        time.sleep(0.0005)
thread = threading.Thread(target=load)
silent.close()
thread.start()

def child():
    signal.alarm(20)
    one.send(other.address, "feed", request(1))
    assert one.receive() == other.receive() == []
    one.close(); other.close()

for number in range(COUNT):
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            traceback.print_exc(); os._exit(3)
        END
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"child {number} ended with {status:#x}"
    before = len(received)
    until = time.monotonic() + 20
    while len(received) == before:
        assert time.monotonic() < until, "the parent gets no more messages"
        time.sleep(0.001)
stop.set()
thread.join()
one.close(); other.close()
names = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
assert not names, names
"""


@pytest.mark.soak
@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)"])
def test_forks_under_load(end):
    """A child finds the posts closed and ends; the parent's go on.

    It is run again once if gRPC's own threads crashed a child: before a fork waited for calls
    under way, that happened in 1 to 4 forks of 100.
    """
    body = FORKS.replace("COUNT", "15").replace("END", end)
    done = run(body)
    if CRASHED.search("\n".join(done[1])):
        done = run(body)
    assert done == (0, [])


@pytest.mark.soak
def test_a_fork_while_a_call_hangs_waits_a_second_at_most():
    body = """
began = time.monotonic()
pid = os.fork()
if pid == 0:
    one.close()
    os._exit(0)
assert time.monotonic() - began < 4, "it waited for the call"
assert os.waitpid(pid, 0)[1] == 0
exchanges(one, other)
"""
    done = run(body)
    assert done == (0, [])
