"""Leaders that are killed or stopped: the next one takes over, and no two terms ever overlap."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from crash_processes import WAIT_S, Child, children, until

import snapkv
from snapkv import CommitTimeoutError, ConflictError
from snapkv.errors import EngineBusyError, SessionLostError

pytestmark = [pytest.mark.slow, pytest.mark.forks]

TTL_S = 0.5
CONTENDERS = 5
TERMS = int(os.environ.get("CRASH_TERMS", 12))


def contend(url: str, number: int, seed: int):
    """Return a body that stands for ever; each guarded commit of a term carries its revision."""

    def body(say) -> None:
        rng = random.Random(seed + number)
        with snapkv.open(url, writer=str(number)) as store:
            say("opened")
            while True:
                election = store.election("e", ttl=TTL_S)
                try:
                    election.campaign(b"%d" % number)
                    say("leads", election.revision)
                    term(say, store, election, rng.randrange(3, 40))
                except (ConflictError, SessionLostError):
                    say("deposed", election.revision)
                election.close()

    return body


def term(say, store: snapkv.SnapshotKV, election, commits: int) -> None:
    revision, guard = election.revision, election.guard
    for n in range(commits):
        if not election.leading:
            raise SessionLostError("it was told")
        puts = {"term": b"%d" % revision, f"terms/{revision}/{n}": b""}
        done = store.commit(puts=puts, guards=[guard])
        say("committed", revision, n, done.revision)


def stop(child: Child, store: snapkv.SnapshotKV) -> None:
    """Stop a process, but not while it holds the write lock: then nobody else could do anything."""
    for _ in range(100):
        os.kill(child.pid, signal.SIGSTOP)
        try:
            store.commit(puts={"probe": b""}, timeout=1)
            return
        except (CommitTimeoutError, EngineBusyError):
            os.kill(child.pid, signal.SIGCONT)
            store.commit(puts={"probe": b""}, timeout=WAIT_S)  # it goes on, and lets go
    raise AssertionError("it always holds the lock")


def go_on(child: Child) -> None:
    """Let a stopped process go on, unless it was killed since: it may have led once more."""
    if child.status is None:
        os.kill(child.pid, signal.SIGCONT)


def said(child: Child, word: str) -> list[list]:
    failed = [words for words in child.heard() if words[0] == "failed"]
    assert not failed, failed[0][1]
    return [words[1:] for words in child.heard() if words[0] == word]


def judge(url: str, everyone: list[Child]) -> None:
    """What was acknowledged is there; in the log, the terms only rise."""
    with snapkv.open(url) as store:
        log = [(int(v.value), v.revision) for v in store.history("term")]
        assert [t for t, _ in log] == sorted(t for t, _ in log)
        assert all(term < revision for term, revision in log)
        heard = [words for child in everyone for words in said(child, "committed")]
        assert {(t, revision) for t, _, revision in heard} <= set(log)
        present = set(store.at().keys("terms/"))
        assert {f"terms/{t}/{n}" for t, n, _ in heard} <= present
        won = [t for child in everyone for (t,) in said(child, "leads")]
        assert len(won) == len(set(won)), "no two lead with one revision"
        assert {t for t, _ in log} <= set(won)
        assert store.check().problems == ()


def test_the_next_one_takes_over_from_a_leader_that_is_killed(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path / 'store'}"
    snapkv.open(url).close()

    def lead(say) -> None:
        with snapkv.open(url) as store:
            election = store.election("e", ttl=TTL_S).campaign(b"first")
            store.commit(puts={"k": b"first"}, guards=[election.guard])
            say("leads", election.revision)
            election._candidacy.session.wait_lost(WAIT_S)

    with children() as start, snapkv.open(url) as store:
        leader = start(tmp_path / "said", lead)
        until(lambda: said(leader, "leads"), "a leader")
        ((revision,),) = said(leader, "leads")
        election = store.election("e", ttl=TTL_S)
        assert election.leader().value == b"first"
        assert len(store.sessions()) == 1
        leader.kill()
        killed = time.monotonic()
        election.campaign(b"second", timeout=WAIT_S)
        assert time.monotonic() - killed < TTL_S + 5
        assert election.revision > revision
        store.commit(puts={"k": b"second"}, guards=[election.guard])
        assert [info.id for info in store.sessions()] == [election.leader().session]
        election.resign()
        assert store.sessions() == []
        assert store.check().problems == ()


def test_a_stopped_leader_is_deposed_and_its_next_commit_fails(tmp_path: Path) -> None:
    """SIGSTOP is what a long pause is: on waking it believes that it leads."""
    url = f"lmdb:{tmp_path / 'store'}"
    snapkv.open(url).close()
    go = tmp_path / "go"

    def lead(say) -> None:
        with snapkv.open(url) as store:
            election = store.election("e", ttl=TTL_S).campaign(b"first")
            guard = election.guard
            store.commit(puts={"k": b"first"}, guards=[guard])
            say("leads", election.revision)
            until(go.exists, "the second leader")
            try:
                store.commit(puts={"k": b"late"}, guards=[guard])
                say("committed")
            except ConflictError:
                say("refused", election.leading)
            election.close()
            election.campaign(b"first again")
            say("again", election.revision)

    with children() as start, snapkv.open(url) as store:
        leader = start(tmp_path / "said", lead)
        until(lambda: said(leader, "leads"), "a leader")
        stop(leader, store)
        with store.election("e", ttl=TTL_S).campaign(b"second", timeout=WAIT_S) as second:
            store.commit(puts={"k": b"second"}, guards=[second.guard])
            go.touch()
            os.kill(leader.pid, signal.SIGCONT)
            until(lambda: said(leader, "refused"), "the first to learn it")
            assert said(leader, "committed") == []
            store.commit(puts={"k": b"second"}, guards=[second.guard])
        until(lambda: said(leader, "again"), "the first to lead again")
        assert leader.wait() == 0
        assert store.load("k") == b"second"
        ((first,), (again,)) = said(leader, "leads") + said(leader, "again")
        assert first < second.revision < again


@pytest.mark.long
def test_contenders_that_are_killed_stopped_or_resign(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng, url = random.Random(seed), f"lmdb:{tmp_path / 'store'}"
    snapkv.open(url).close()
    everyone: list[Child] = []
    with children() as start, snapkv.open(url) as store:

        def contender() -> Child:
            number = len(everyone)
            child = start(tmp_path / f"said.{number}", contend(url, number, seed))
            everyone.append(child)
            return child

        alive = {len(everyone): contender() for _ in range(CONTENDERS)}
        leaders = store.election("e").watch_leader()
        stopped: list[Child] = []
        for _ in range(TERMS):
            found = leaders.next(WAIT_S)
            assert found is not None, "somebody leads again"
            number = int(found.value)
            if number not in alive:
                continue
            what = rng.choice(("kill", "stop", "let it resign"))
            time.sleep(rng.uniform(0, 0.02))  # where in its term it is hit
            if what == "kill":
                alive.pop(number).kill()
                alive[len(everyone)] = contender()
            elif what == "stop":
                stop(alive[number], store)
                stopped.append(alive[number])
            if len(stopped) > 2:
                go_on(stopped.pop(0))
        for child in stopped:
            go_on(child)
        before = leaders.next(WAIT_S)
        assert before is not None
        leaders.close()
        for child in alive.values():
            child.kill()
    judge(url, everyone)
    deposed = sum(len(said(child, "deposed")) for child in everyone)
    terms = sum(len(said(child, "leads")) for child in everyone)
    print(f"{terms} terms, {deposed} ended by somebody else")
    assert terms >= TERMS // 2
