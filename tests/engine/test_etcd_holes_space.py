"""The hole H14: near its quota etcd applies a request and refuses it all the same.

What the cluster answers for want of space says nothing of what it did; each test looks what stands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from etcd_engines import opened
from etcd_protocol import COMMIT, FENCE, Caller, History, Two
from etcd_server import EtcdProxy, EtcdServer

import snapkv
from snapkv.engine.contract import ALL_KEYS_END, Range
from snapkv.errors import NoSpaceError

pytestmark = pytest.mark.slow

FLAGS = ["--quota-backend-bytes=16777216"]
WRITERS = 12
CANDIDATES = 4
ROUNDS_MAX = 400


def filling(store: snapkv.SnapshotKV, done: dict[str, int], size: int) -> str:
    """Save one key after the other until there is no space; return the one that failed."""
    for n in range(ROUNDS_MAX):
        key = f"k{n}"
        try:
            done[key] = store.save(key, b"%d" % n + b"x" * size)
        except NoSpaceError:
            return key
    raise AssertionError("there is no end of the space")


@pytest.mark.etcd_since("3.5.7", "reading and removing under the alarm NOSPACE")
def test_h14_what_is_told_near_the_quota_is_true(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, flags=FLAGS) as server:
        stores = [snapkv.open(server.url, name=f"n{i}") for i in range(WRITERS)]
        done: list[dict[str, int]] = [{} for _ in stores]
        callers = [
            Caller(lambda s=store, d=told: filling(s, d, 20_000))
            for store, told in zip(stores, done, strict=True)
        ]
        failed = [caller.value() for caller in callers]
        for store, told, key in zip(stores, done, failed, strict=True):
            assert {commit.ts for commit in store.commits()} == set(told.values())
            assert set(store.at()) == set(told), f"{key} was told as failed"
        assert server.gateway.alarms() == ["NOSPACE"]
        for store in stores:
            with pytest.raises(NoSpaceError):
                store.save("more", b"")
            assert "more" not in set(store.at())
            store.close()
        History(server.gateway, server.client_port)  # every revision can be read


@pytest.mark.etcd_since("3.5.7", "reading and removing under the alarm NOSPACE")
def test_h14_a_lone_writer_is_told_the_truth(tmp_path: Path) -> None:
    """It meets the quota when its request is applied, or when the next one is proposed."""
    with EtcdServer(tmp_path, flags=FLAGS) as server, snapkv.open(server.url) as store:
        done: dict[str, int] = {}
        filling(store, done, 300_000)
        assert set(store.at()) == set(done)


@pytest.mark.etcd_since("3.5.7", "reading and removing under the alarm NOSPACE")
def test_h14_who_stands_near_the_quota_knows_it(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, flags=FLAGS) as server:
        stores = [snapkv.open(server.url, name=f"f{i}") for i in range(6)]
        with snapkv.open(server.url) as store:
            sessions = [store.session(60.0) for _ in range(CANDIDATES)]
            elections: list[list[snapkv.Election]] = [[] for _ in sessions]

            def stand(i: int) -> None:
                for n in range(ROUNDS_MAX):
                    election = store.election(f"e{i}-{n}", session=sessions[i])
                    elections[i].append(election)
                    try:
                        election.campaign(b"x" * 5_000, timeout=5.0)
                    except NoSpaceError:
                        return
                raise AssertionError("there is no end of the space")

            callers = [Caller(lambda s=s: filling(s, {}, 20_000)) for s in stores]
            callers += [Caller(lambda i=i: stand(i)) for i in range(CANDIDATES)]
            for caller in callers:
                caller.value()
            for election in [e for of_one in elections for e in of_one]:
                leader = election.leader()
                assert (leader is not None) == election.leading, election
            for of_one in elections:
                assert not of_one[-1].leading
                of_one[0].resign()  # no space is needed for it
                assert of_one[0].leader() is None
        for filler in stores:
            filler.close()


def standing(server: EtcdServer) -> list[bytes]:
    """Return all keys of elections that stand."""
    with opened(server.url) as engine:
        kvs = engine.read([Range(b"default/live/", ALL_KEYS_END, keys_only=True)]).results[0].kvs
    return [kv.key for kv in kvs if b"/live/election/" in kv.key]


def raise_alarm(server: EtcdServer) -> None:
    """Let the server refuse every write for want of space."""
    member = server.gateway.status()["header"]["member_id"]
    body = {"action": "ACTIVATE", "memberID": member, "alarm": "NOSPACE"}
    server.gateway.call("/v3/maintenance/alarm", body)


def test_h14_no_space_is_told_without_a_fence(proxy: EtcdProxy) -> None:
    with Two(proxy) as two:
        a = two.a()
        raise_alarm(two.etcd)
        fence, commits = two.proxy.look(FENCE), [two.proxy.look(COMMIT) for _ in range(2)]
        with pytest.raises(NoSpaceError):
            a.save("a", b"a-value")
        two.gateway.disarm()
        assert [commit.triggered.is_set() for commit in commits] == [True, False]
        assert not fence.triggered.is_set()
        two.never("a")


def test_h14_resolving_needs_no_space(proxy: EtcdProxy) -> None:
    with Two(proxy) as two:
        a, b = two.a(), two.b()
        error, _ = two.unknown(a, b"a-value", landed=True, puts={"a": b"a-value"})
        raise_alarm(two.etcd)
        found = b.resolve(error.timestamp, error.nonce)
        assert found is not None
        assert found.revision == two.once("a")
        two.gateway.disarm()


def lost_on_the_way(proxy: EtcdProxy, needle: bytes, act: Callable[[], object]) -> object:
    """Lose the answer of a request, and let the space end before it is sent again.

    Returns what the action raised.
    """

    def fill_up() -> bool:
        cut.wait_answered()
        raise_alarm(proxy.server)
        return True

    cut = proxy.cut_after(needle, fill_up)
    error = Caller(act).error()
    cut.wait_cut()
    return error


def test_h14_a_candidate_whose_answer_was_lost_leads(proxy: EtcdProxy) -> None:
    """Its second copy is refused for want of space; a look tells that the first one stands."""
    with snapkv.open(proxy.url) as store, store.session(60.0) as session:
        election = store.election("e", session=session)
        value = b"candidate-value"
        assert lost_on_the_way(proxy, value, lambda: election.campaign(value)) is None
        assert election.leading
        with pytest.raises(NoSpaceError):  # it cannot write what shuts out late copies
            election.resign()
        assert standing(proxy.server) == [], "nobody leads who does not know it"
        proxy.server.gateway.disarm()
        election.resign()
        assert election.campaign(b"again", timeout=0).leading
        election.resign()
        assert standing(proxy.server) == []


def test_h14_a_proclamation_whose_answer_was_lost(proxy: EtcdProxy) -> None:
    with snapkv.open(proxy.url) as store, store.session(60.0) as session:
        election = store.election("e", session=session).campaign(b"first")
        value = b"second-value"
        assert lost_on_the_way(proxy, value, lambda: election.proclaim(value)) is None
        leader = election.leader()
        assert leader is not None
        assert leader.value == value
        with pytest.raises(NoSpaceError):
            election.proclaim(b"third")
        assert election.leading
        election.resign()
        assert standing(proxy.server) == []
        proxy.server.gateway.disarm()


def test_h14_who_stands_without_space_is_told_so(proxy: EtcdProxy) -> None:
    with snapkv.open(proxy.url) as store, store.session(60.0) as session:
        raise_alarm(proxy.server)
        with pytest.raises(NoSpaceError):
            store.election("e", session=session).campaign(b"1", timeout=0)
        assert standing(proxy.server) == []
        with pytest.raises(NoSpaceError):
            store.session(60.0)
        proxy.server.gateway.disarm()
        with store.election("e", session=session) as election:  # the place is free again
            assert election.campaign(b"2", timeout=0).leading
