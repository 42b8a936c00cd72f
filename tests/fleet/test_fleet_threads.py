"""One fleet, used by several threads while its members are written to, and come and go."""

import random
import threading
import time

import pytest

import snapkv
from snapkv import MembersBehindError
from snapkv.errors import EngineUnavailableError, StoreClosedError
from snapkv.fleet import members

from .sites import WAIT_S, eventually


class Threads:
    """Runs functions again and again in threads, each with a random number generator."""

    def __init__(self, seed) -> None:
        self.done, self.failed, self._threads = threading.Event(), [], []
        self._rng = random.Random(seed)

    def run(self, body) -> None:
        rng = random.Random(self._rng.random())

        def repeat():
            try:
                while not self.done.is_set():
                    body(rng)
            except BaseException as e:
                self.failed.append(e)
                self.done.set()

        self._threads.append(threading.Thread(target=repeat))

    def until(self, condition) -> None:
        """Run them until a condition holds, or one fails."""
        for thread in self._threads:
            thread.start()
        try:
            eventually(lambda: self.done.wait(0.02) or condition())
        finally:
            self.done.set()
            for thread in self._threads:
                thread.join()
        if self.failed:
            raise self.failed[0]


@pytest.mark.parametrize("seed", range(2))
def test_what_was_final_stays_as_it_was(sites, servers, seed):
    print(f"seed {seed}")
    clock = snapkv.SystemClock()
    sites.clock.set(clock.now_ms() - 10_000)
    names = ["a", "b", "c"]
    sites.add(*names)
    sites.tick()
    stores = {name: sites.open(name, clock=clock) for name in names}
    described = sites.described("a", "b") | {"c": sites.described_as("c", prefix="default/data/")}
    fleet = sites.fleet(described, clock=clock, timeout=0.05)
    for each in fleet._members.by_name.values():
        each.away_s = 0.01
    threads, seen, unnamed = Threads(seed), [], []

    def write(rng):
        store = stores[rng.choice(names)]
        store.commit(puts={f"k{rng.randrange(4)}": rng.randbytes(4)} if rng.random() < 0.8 else {})
        time.sleep(0.0005)

    def look(rng):
        behind = rng.choice(["error", "stale", "leave out"])
        try:
            moment = fleet.at(rng.choice([None, "-5ms"]), behind=behind)
            if moment.final:
                seen.append((moment.timestamp, moment.token, dict(moment.items())))
        except MembersBehindError:
            pass
        except EngineUnavailableError as e:  # it was there when the moment was found
            unnamed.extend([e] if e.member not in names else [])

    def hinder(rng):
        url = sites.urls[rng.choice(names)]
        servers.set(url, rng.choice(["here", "here", "away", "hung"]))
        time.sleep(0.02)

    for body in (write, write, look, look, look, hinder):
        threads.run(body)
    threads.until(lambda: len({ts for ts, *_ in seen}) >= 8)
    assert unnamed == []
    for name in names:
        servers.set(sites.urls[name], "here")
        stores[name].tick()
    eventually(lambda: fleet.at(behind="stale").final)
    other = sites.fleet(described, clock=clock)
    for ts, token, items in seen[:: max(1, len(seen) // 40)]:
        assert dict(other.at(ts).items()) == items
        assert dict(other.at(token=token).items()) == items


def test_archives_are_read_while_they_are_recorded(sites):
    sites.add("a", "b")
    for store in sites.stores.values():
        store.save("k", b"0")
    urls = {name: f"archive:{sites.archive(name)}" for name in "ab"}
    fleet, threads, seen = sites.fleet(urls), Threads(1), []

    def record(rng):
        sites.later()
        for store in sites.stores.values():
            store.save(f"k{rng.randrange(3)}", rng.randbytes(3))
        for name in "ab":
            sites.archive(name)

    def look(rng):
        moment = fleet.at()
        assert moment.final
        seen.append((moment.timestamp, dict(moment.items())))
        fleet.at(moment.timestamp, members=rng.choice("ab"))

    threads.run(record)
    threads.run(look)
    threads.run(look)
    threads.until(lambda: len({ts for ts, _ in seen}) >= 3)
    live = sites.fleet()
    for ts, items in seen[:: max(1, len(seen) // 20)]:
        assert dict(live.at(ts).items()) == items


def test_closing_while_members_are_asked(sites, servers, monkeypatch):
    sites.add("a", "b", "c")
    sites.tick()
    monkeypatch.setattr(members, "THREADS_MAX", 1)  # b and c wait for a thread
    fleet = sites.fleet(timeout=WAIT_S)
    url, raised = sites.urls["a"], []
    servers.set(url, "hung")
    calls = servers.calls[url]

    def ask():
        try:
            fleet.resolved()
        except BaseException as e:
            raised.append(e)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: servers.calls[url] > calls)
    fleet.close()
    servers.set(url, "here")
    thread.join(WAIT_S)
    assert [type(e) for e in raised] == [StoreClosedError]
    with pytest.raises(StoreClosedError):
        fleet._members.each(["a", "b"], lambda each: each.name)


@pytest.mark.parametrize("read", ["everywhere", "count"])
def test_members_are_read_in_parallel(sites, servers, read):
    names = ["c", "a", "b"]
    sites.add(*names)
    stamps = [store.save("k", name.encode()) for name, store in sites.stores.items()]
    fleet, found = sites.fleet(timeout=WAIT_S), []
    ts = min(sites.tick().values())
    assert ts > max(stamps)
    moment = fleet.at(ts)
    for name in names:
        servers.set(sites.urls[name], "hung")
    before = dict(servers.calls)

    def ask():
        found.append(moment.everywhere("k") if read == "everywhere" else len(moment))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        eventually(lambda: all(servers.calls[url] > before[url] for url in sites.urls.values()))
    finally:
        for name in names:
            servers.set(sites.urls[name], "here")
        thread.join(WAIT_S)
    if read == "count":
        assert found == [3]
    else:
        assert [*found[0].items()] == [("a", b"a"), ("b", b"b"), ("c", b"c")]
