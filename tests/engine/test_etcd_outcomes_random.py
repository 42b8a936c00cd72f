"""Clients that commit through connections which break, stall and deliver late, at random.

At the end the whole history of a real server tells whether everybody was told the truth. A failure
prints its seed; `ETCD_SEED=n` uses it again (threads keep their own order, faults come alike).
"""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
from dataclasses import dataclass

import pytest
from chains import check_ends
from etcd_protocol import COMMIT, FENCE, History, other_store
from etcd_server import WAIT_S, EtcdProxy, EtcdServer
from etcd_server.faults import Hold
from sampling import SOAK

import snapkv
import snapkv.engine.etcd.cluster_client
from snapkv import (
    Absent,
    AtRevision,
    Commit,
    CommitTimeoutError,
    CommitUnknownError,
    ConflictError,
    KeyNotFoundError,
    SnapKVError,
    SnapshotKV,
)
from snapkv.errors import EngineUnavailableError

pytestmark = pytest.mark.slow

ROUNDS = 4 if SOAK else 2
ROUND_S = 4.0
MORE_S = 20.0
STORES = 3
THREADS = 3
COUNTERS = ("c0", "c1")
TRY_S = 0.4
AHEAD_MS = 700


class Ahead:
    """A clock that is wrong: what it stamps may land long after others have committed."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms


@dataclass
class Told:
    """One attempt: what it would write, and what its caller was told."""

    token: bytes
    keys: tuple[str, ...]
    guards: tuple[Absent | AtRevision, ...]
    outcome: Commit | SnapKVError | None = None


class Chaos:
    """Arms random faults on one proxy until it is stopped."""

    FAULTS = ("cut before", "cut after", "cut after", "delay", "hold", "hold", "arrive", "arrive")
    FAULTS += ("pause", "cut all")

    def __init__(self, proxy: EtcdProxy, seed: int) -> None:
        self._proxy, self._rng = proxy, random.Random(seed)
        self.stop = threading.Event()
        self.held: list[Hold] = []
        self.arrived = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """End, and take standing faults back."""
        self.stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the faults hang"
        self._proxy.run(self._proxy.armed.clear)
        self._proxy.resume()

    def deliver(self) -> None:
        """Let everything that was held arrive, unless its connection broke."""
        late = [f for f in self.held if f.link and f.triggered.is_set() and not f.link._closed]
        for fault in late:
            fault.release()
            self.held.remove(fault)
        self.arrived += len(late)

    def _run(self) -> None:
        while not self.stop.is_set():
            self._one(self._rng.choice(self.FAULTS), self._rng.choice((COMMIT, COMMIT, FENCE)))
            self.stop.wait(self._rng.uniform(0, 0.15))

    def _one(self, what: str, needle: bytes) -> None:
        proxy, rng = self._proxy, self._rng
        if what == "cut before":
            proxy.cut_before(needle)
        elif what == "cut after":
            proxy.cut_after(needle)
        elif what == "delay":
            proxy.delay_answer(needle, rng.choice([0.05, 0.3, 0.9]))
        elif what == "hold":
            self.held.append(proxy.hold(needle))
        elif what == "arrive":
            self.deliver()
        elif what == "cut all":
            proxy.cut_all()
        elif what == "pause":
            proxy.pause()
            self.stop.wait(rng.choice([0.05, 0.2, 0.7]))
            proxy.resume()


class Client:
    """A thread that commits until the time is over, and notes what it is told."""

    def __init__(self, name: str, store: SnapshotKV, seed: int, until: float) -> None:
        self._name, self._store, self._until = name, store, until
        self._rng, self._number = random.Random(seed), 0
        self.told: list[Told] = []
        self.commits = 0
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            late = self._until + MORE_S  # a busy machine gets more time for as much
            while (now := time.monotonic()) < self._until or (self.commits < 3 and now < late):
                self._one()
        except BaseException as e:
            self.error = e

    def _one(self) -> None:
        self._number += 1
        token = f"{self._name}.{self._number}"
        own = f"own/{self._name}"
        if self._rng.random() < 0.5:
            self._commit(Told(token.encode(), (own,), ()), {own: token.encode()})
            return
        counter = self._rng.choice(COUNTERS)
        try:
            found = self._store.at().entry(counter)
            guard, number = AtRevision(counter, found.revision), int(found.value.split()[0])
        except KeyNotFoundError:
            guard, number = Absent(counter), 0
        except EngineUnavailableError:
            return
        value = b"%d %s" % (number + 1, token.encode())
        self._commit(Told(token.encode(), (counter, own), (guard,)), {counter: value, own: value})

    def _commit(self, told: Told, puts: dict[str, bytes]) -> None:
        self.told.append(told)
        timeout = self._rng.choice([0.2, 1.0, 3.0])
        started = time.monotonic()
        try:
            told.outcome = self._store.commit(puts=puts, guards=told.guards, timeout=timeout)
            self.commits += 1
        except (ConflictError, CommitTimeoutError, CommitUnknownError, EngineUnavailableError) as e:
            check_ends(e)
            told.outcome = e
        assert time.monotonic() - started < timeout + 2, "the deadline was not kept"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapkv.engine.etcd.cluster_client, "TRY_S", TRY_S)


@pytest.fixture
def seed() -> int:
    seed = int(os.environ.get("ETCD_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed {seed}")
    return seed


def run(etcd: EtcdServer, seed: int, seconds: float) -> list[Told]:
    """Let clients and faults loose; return what everybody was told, unknown ones settled."""
    rng, until = random.Random(seed), time.monotonic() + seconds
    proxies = [EtcdProxy(etcd) for _ in range(STORES)]
    stores = [
        snapkv.open(proxy.url, writer=f"S{n}", max_clock_skew=60, clock=Ahead(n * AHEAD_MS))
        for n, proxy in enumerate(proxies)
    ]
    chaos = [Chaos(proxy, rng.randrange(1 << 32)) for proxy in proxies]
    clients = [
        Client(f"{n}{'abc'[i]}", store, rng.randrange(1 << 32), until)
        for n, store in enumerate(stores)
        for i in range(THREADS)
    ]
    try:
        for client in clients:
            client.thread.join(seconds + MORE_S + WAIT_S)
            assert not client.thread.is_alive(), "a client hangs"
        settled = settle(etcd, [told for client in clients for told in client.told], rng)
        for each in chaos:
            each.join()
            each.deliver()  # after the verdicts
    finally:
        for each in chaos:
            each.join()
        for store in stores:
            store.close()
        for proxy in proxies:
            proxy.close()
    for client in clients:
        if client.error is not None:
            raise client.error
    return settled


def settle(etcd: EtcdServer, everything: list[Told], rng: random.Random) -> list[Told]:
    """Resolve what is unknown, twice, from stores that did not send it."""
    with snapkv.open(etcd.url, max_clock_skew=60) as one, snapkv.open(etcd.url) as other:
        unknown = [told for told in everything if isinstance(told.outcome, CommitUnknownError)]
        rng.shuffle(unknown)
        for told in unknown:
            assert told.outcome.may_still_land, "nothing was compacted"
            error = pickle.loads(pickle.dumps(told.outcome))
            verdicts = []
            for store in (one, other):
                try:
                    found = store.resolve(error.timestamp, error.nonce, guards=error.guards)
                    verdicts.append(found and (found.ts, found.revision))
                except ConflictError as e:
                    verdicts.append(None)
                    found = e
            assert verdicts[0] == verdicts[1], f"two verdicts on {error}"
            told.outcome = CommitTimeoutError("never") if found is None else found
    return everything


def compare(history: History, everything: list[Told]) -> None:
    """Assert that everybody was told what the history says."""
    history.check()
    revision_of = {stamp.record.timestamp: stamp.revision for stamp in history.stamps}
    landed: dict[bytes, dict[int, set[str]]] = {}
    for change in history.changes:
        if change.key.startswith(b"default/data/") and change.value is not None:
            key = change.key.removeprefix(b"default/data/").decode()
            token = change.value.split()[-1]
            landed.setdefault(token, {}).setdefault(change.revision, set()).add(key)
    for told in everything:
        where = landed.pop(told.token, {})
        if isinstance(told.outcome, Commit):
            assert where == {told.outcome.revision: set(told.keys)}, f"{told}: {where}"
            assert revision_of[told.outcome.ts] == told.outcome.revision, f"{told}"
        else:
            assert where == {}, f"{told} is said not to have happened: {where}"
    assert landed == {}, "commits of nobody"
    for counter in COUNTERS:
        values = [int(value.split()[0]) for _, value in history.written(counter)]
        assert values == list(range(1, len(values) + 1)), f"{counter} lost an update"


def check_conflicts(history: History, everything: list[Told]) -> None:
    """Assert that nobody was told of a conflict with a commit that was not somebody else's."""
    tokens = {}
    for counter in COUNTERS:
        for revision, value in history.written(counter):
            tokens[counter, revision] = value.split()[-1]
    for told in everything:
        if isinstance(told.outcome, ConflictError):
            for guard, found in told.outcome.failed:
                key = getattr(guard, "key", None)
                key = key.decode().removeprefix("default/data/") if isinstance(key, bytes) else key
                guard = getattr(guard, "guard", guard)
                assert tokens[guard.key, found] != told.token, f"{told}: with itself"
                assert getattr(guard, "revision", 0) < found, f"{told}: with what it had read"


@pytest.mark.long_after(1)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_everybody_is_told_the_truth(etcd: EtcdServer, seed: int, number: int) -> None:
    seed += number
    other_store(etcd, "neighbour")
    everything = run(etcd, seed, ROUND_S)
    history = History(etcd.gateway, etcd.client_port)
    kinds = {type(told.outcome).__name__ for told in everything}
    try:
        compare(history, everything)
        check_conflicts(history, everything)
        with snapkv.open(etcd.url, max_clock_skew=60) as store:
            assert store.check().problems == ()
    except BaseException:
        print(f"seed {seed}, {len(everything)} commits, told {sorted(kinds)}")
        raise
    acknowledged = sum(isinstance(told.outcome, Commit) for told in everything)
    assert acknowledged >= 20, f"seed {seed}: too little happened ({acknowledged})"
