"""What does it cost to place many tables over gRPC? In one process: `benchmarks/scheduler.py`.

`python -m benchmarks.captures_placing agents OWNER` and `... floor` are the other process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import msgpack

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulated_captures import SimulatedExecutor

from benchmarks.captures import ROOT, cpu_s, memory_mb, write
from benchmarks.harness import show
from benchmarks.scheduler import MESSAGES_PER_TABLE
from cdcmeta.scheduler import Agent, Cluster, Coordinator, KnownOwner
from cdcmeta.scheduler.transport.grpc_post import GrpcPost

TABLES, CAPTURES = 150_000, 8
TICK_S = 0.05
GOAL_S, LIMIT_S = 120.0, 400.0
FEED, OWNER = "copy", "owner"
FLOOR_CALL = 1_000
"""Tables in a call of the floor."""
_METHOD = "/benchmarks.Floor/Call"
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

Row = dict[str, float | str]


def main(tables: int = TABLES) -> None:
    """Place all tables on agents in another process."""
    show(0, 2)
    rows = {f"{MESSAGES_PER_TABLE} messages for each table in bare gRPC (floor)": _floor(tables)}
    show(1, 2)
    rows["placed"] = _placed(tables)
    for row in rows.values():
        row["x floor"] = round(float(row["s"]) / float(next(iter(rows.values()))["s"]), 1)
    notes = (
        f"One owner in a process, {CAPTURES} agents in another one, each with a `GrpcPost` of its "
        f"own and a simulated executor, ticks of {TICK_S * 1_000:g} ms or more, the limits and "
        "Python's collector as captures have them. Seconds from the first tick until the owner "
        "knows that all tables replicate, and the CPU time of both processes meanwhile. The floor "
        "packs as many messages one by one with msgpack, sends them with "
        f"{FLOOR_CALL:,} tables in a call, unpacks them in the other process, and back. Memory is "
        "the largest of each process (VmHWM). The goal is "
        f"{GOAL_S:g} s. Without gRPC, in one process: `scheduler.md`."
    )
    found = {f"{tables:,} tables placed on {CAPTURES} captures over gRPC": rows}
    write("captures_placing", "What does it cost to place many tables over gRPC?", found, notes)


@contextmanager
def _other(*words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run the other process; yield it with the addresses that it prints."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


def _forget_memory() -> None:
    """Let the largest memory of this process begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def _used(other: int) -> tuple[float, float]:
    return cpu_s(os.getpid()), cpu_s(other)


def _row(took_s: float, before: tuple[float, float], other: int) -> Row:
    used = [b - a for a, b in zip(before, _used(other), strict=True)]
    return {
        "s": round(took_s, 1),
        "CPU s, the owner": round(used[0], 1),
        "CPU s, the agents": round(used[1], 1),
        "memory, MB, the owner": round(memory_mb(os.getpid(), "VmHWM")),
        "memory, MB, the agents": round(memory_mb(other, "VmHWM")),
    }


# --- the owner ---


def _placed(count: int) -> Row:
    _forget_memory()
    tables = {f"table-{n:06}": 1.0 for n in range(count)}
    captures = {f"c{n}": n + 1 for n in range(CAPTURES)}
    revision = CAPTURES + 1
    owner = Coordinator(OWNER, "c0", revision=revision)
    with closing(GrpcPost()) as post, _other("agents", post.address) as (other, found):
        addresses = dict(zip(captures, found, strict=True))
        before = _used(other.pid)
        began, ticks, evictions, longest_s = time.monotonic(), 0, 0, 0.0
        while owner.replication.unsettled or not owner.replication.sets:
            tick_began = time.monotonic()
            if tick_began - began > LIMIT_S:
                raise TimeoutError(f"not placed: {owner.replication.unsettled} tables")
            seen = Cluster(int(tick_began * 1e6), captures, tables, 1, revision)
            tick = owner.tick([each for _, each in post.receive()], seen)
            for each in tick.messages:
                post.send(addresses[each.header.to], FEED, each)
            ticks, evictions = ticks + 1, evictions + len(tick.evict)
            used_s = time.monotonic() - tick_began
            longest_s = max(longest_s, used_s)
            time.sleep(max(0.0, TICK_S - used_s))
        took_s = time.monotonic() - began
        row = _row(took_s, before, other.pid)
        post.close()  # before the agents end
    row |= {"ticks": ticks, "longest tick, s": round(longest_s, 2), "evictions": evictions}
    return {**row, "goal": "met" if took_s <= GOAL_S else "missed"}


# --- the agents ---


def agents(owner: str) -> None:
    """Let all agents tick until the standard input ends."""
    posts = {f"c{n}": GrpcPost() for n in range(CAPTURES)}
    executors = {name: SimulatedExecutor() for name in posts}
    ours = {
        name: Agent(name, executor, epoch=n + 1, owner=KnownOwner())
        for n, (name, executor) in enumerate(executors.items())
    }
    print(*(post.address for post in posts.values()), flush=True)
    _end_with_input()
    while True:
        began = time.monotonic()
        for name, agent in ours.items():
            executors[name].now = int(time.monotonic() * 1e6)
            for each in agent.tick([each for _, each in posts[name].receive()]):
                posts[name].send(owner, FEED, each)
        time.sleep(max(0.0, TICK_S - (time.monotonic() - began)))


def _end_with_input() -> None:
    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


# --- the floor ---


def _floor(count: int) -> Row:
    with (
        _other("floor") as (other, (address,)),
        grpc.insecure_channel(address, _OPTIONS) as channel,
    ):
        call = channel.unary_unary(_METHOD)
        call(msgpack.packb([]), wait_for_ready=True)
        before = _used(other.pid)
        began, done = time.monotonic(), dict[str, object]()
        for at in range(0, count, FLOOR_CALL):
            names = [f"table-{n:06}" for n in range(at, min(at + FLOOR_CALL, count))]
            answers = call(msgpack.packb(_packed(names)))
            for raw in msgpack.unpackb(answers):
                message = msgpack.unpackb(raw)
                done[message[3][0]] = message
        return _row(time.monotonic() - began, before, other.pid)


def _packed(names: list[str]) -> list[bytes]:
    """Return half of the messages of some tables."""
    return [
        msgpack.packb([1, kind, [OWNER, "c0", 9, 3, 0], [name, [9, kind], 1, True]])
        for name in names
        for kind in range(MESSAGES_PER_TABLE // 2)
    ]


def floor() -> None:
    """Answer to each message until the standard input ends."""

    def answer(raw: bytes, context: grpc.ServicerContext) -> bytes:
        found = [msgpack.unpackb(each) for each in msgpack.unpackb(raw)]
        names = list(dict.fromkeys(message[3][0] for message in found))
        packed: bytes = msgpack.packb(_packed(names))
        return packed

    server = grpc.server(ThreadPoolExecutor(1), options=_OPTIONS)
    service, method = _METHOD[1:].split("/")
    handler = grpc.method_handlers_generic_handler(
        service, {method: grpc.unary_unary_rpc_method_handler(answer)}
    )
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    _end_with_input()
    server.wait_for_termination()


if __name__ == "__main__":
    if sys.argv[1:2] == ["agents"]:
        agents(*sys.argv[2:])
    elif sys.argv[1:] == ["floor"]:
        floor()
    else:
        main()
