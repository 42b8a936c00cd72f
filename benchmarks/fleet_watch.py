"""What do 50 members cost a process that follows them all, beside 50 single watches?"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import snapkv
from benchmarks.harness import Times, report, rows_of, show
from benchmarks.servers import etcd_server, server_facts

MEMBERS, COMMITS_S, FOLLOW_S, ROUNDS = 50, 2, 15.0, 5
WAIT_S = 120.0
ROOT = Path(__file__).parents[1]
LAST = "last"


def main() -> None:
    """Follow stores that another process writes, by single watches and by a fleet, in turn."""
    times = {"50 single watches (floor)": Times([], []), "fleet.watch": Times([], [])}
    memory: dict[str, list[float]] = {"single": [], "fleet": [], "none": []}
    with etcd_server(fsync=False) as server:
        names = [f"s{n:02}" for n in range(MEMBERS)]
        for name in names:
            with snapkv.open(server.url, name=name) as store:
                store.tick()
        for round_ in range(ROUNDS):
            show(round_, ROUNDS)
            turns = list(zip(times.values(), ("single", "fleet"), strict=True))
            for found, how in turns if round_ % 2 else reversed(turns):
                cpu_s, mib, commits = _followed(server.url, names, how)
                assert commits >= MEMBERS * COMMITS_S * FOLLOW_S / 2
                found.wall.append(cpu_s / commits * 1e6)
                memory[how].append(mib)
            memory["none"].append(_followed(server.url, names, "none")[1])
    none, single, fleet = (min(memory[how]) for how in ("none", "single", "fleet"))
    notes = (
        f"{MEMBERS} stores of one etcd; another process commits {COMMITS_S} times a second to "
        f"each for {FOLLOW_S:g} s. The times are CPU seconds of the following process by commit, "
        "from opening to the last commit. Both have a connection and a thread for each member. "
        f"Memory at the peak: {none:.0f} MiB with the {MEMBERS} stores open, {single:.0f} MiB with "
        f"single watches, {fleet:.0f} MiB with a fleet's: {(fleet - none) / MEMBERS:.2f} MiB for "
        f"each member that is followed. {server_facts(fsync=False)}"
    )
    table = f"following {MEMBERS} members: CPU for each commit"
    report("fleet_watch", "What does following a fleet cost?", {table: rows_of(times)}, notes)


def _followed(url: str, names: list[str], how: str) -> tuple[float, float, int]:
    """Return the CPU seconds, the peak MiB and the commits of a process that follows."""
    command = [sys.executable, "-m", "benchmarks.fleet_watch"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, how, url, *names], stdin=pipe, stdout=pipe, text=True, cwd=ROOT
    ) as following:
        assert following.stdout is not None
        assert following.stdin is not None
        following.stdout.readline()
        if how != "none":
            subprocess.run([*command, "write", url, *names], check=True, cwd=ROOT, timeout=WAIT_S)
        following.stdin.write("end\n")
        following.stdin.flush()
        found = json.loads(following.stdout.readline())
    return found["cpu_s"], found["mib"], found["commits"]


def _follow(how: str, url: str, names: list[str]) -> None:
    commits = 0
    if how == "fleet":
        members = {name: {"url": url, "name": name} for name in names}
        watch = snapkv.fleet.open(members).watch()
        print("ready", flush=True)
        ended: set[str] = set()
        while len(ended) < len(names):
            item = watch.next(WAIT_S)
            assert isinstance(item, snapkv.fleet.FleetChanges)
            commits += len(item.members)
            for name, changes in item.members.items():
                if changes.changes[0].key == LAST:
                    ended.add(name)
    elif how == "single":
        stores = [snapkv.open(url, name=name) for name in names]
        watches = [store.watch() for store in stores]
        print("ready", flush=True)
        counts = [0] * len(names)

        def count(n: int) -> None:
            for changes in watches[n]:
                counts[n] += 1
                if changes.changes[0].key == LAST:
                    return

        threads = [threading.Thread(target=count, args=(n,)) for n in range(len(names))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        commits = sum(counts)
    else:
        stores = [snapkv.open(url, name=name) for name in names]
        print("ready", flush=True)
    sys.stdin.readline()
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu_s": time.process_time(), "mib": mib, "commits": commits}), flush=True)


def _write(url: str, names: list[str]) -> None:
    """Commit to all stores at regular times; then tick them, so that the last one is final."""
    stores = [snapkv.open(url, name=name) for name in names]
    began = time.monotonic()
    for n in range(int(COMMITS_S * FOLLOW_S)):
        for m, store in enumerate(stores):
            due = began + (n + m / len(stores)) / COMMITS_S
            time.sleep(max(0.0, due - time.monotonic()))
            store.save("key", b"%d" % n)
    for store in stores:
        store.save(LAST, b"")
    for store in stores:
        store.tick()


if __name__ == "__main__":
    if not sys.argv[1:]:
        main()
    elif sys.argv[1] == "write":
        _write(sys.argv[2], sys.argv[3:])
    else:
        _follow(*sys.argv[1:3], sys.argv[3:])
