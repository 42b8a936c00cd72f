"""`kill -9` of writers at random moments: what was acknowledged is there, nothing is half there."""

import os
import random
import time
from pathlib import Path

import pytest
from crash_processes import Child, children, until

import snapkv
from snapkv import Absent, CommitTimeoutError, SnapshotKV
from snapkv.errors import EngineBusyError

pytestmark = [pytest.mark.slow, pytest.mark.forks]

KILLS = int(os.environ.get("CRASH_KILLS", 50))
WRITERS = 3
AGE_MS_MAX = 40
RING_SLOTS = 16


def write_for_ever(url: str, seed: int):
    """Return a body that commits tokens and says each one once it was acknowledged."""

    def body(say) -> None:
        rng = random.Random(seed)
        with snapkv.open(url, ring_slots=RING_SLOTS, writer=str(seed)) as store:
            say("opened")
            for n in range(1_000_000):
                token = f"{seed}.{n}"
                commit = store.commit(**operations(rng, token))
                say(token, commit.ts, commit.revision)

    return body


def operations(rng: random.Random, token: str) -> dict:
    """Several keys with one token; the value says how many there are."""
    keys = [f"token/{token}/{i}" for i in range(rng.randint(2, 5))]
    puts = {key: b"%d" % len(keys) + bytes(rng.choice([0, 10, 5_000])) for key in keys}
    puts["shared"] = token.encode()
    ops = {"puts": puts, "guards": [Absent(keys[0])], "note": token}
    if rng.random() < 0.2:
        ops["delete_prefixes"] = ["scratch/"]
    else:
        puts[f"scratch/{rng.randrange(100)}"] = token.encode()
    return ops


def judge(store: SnapshotKV, heard: list[list]) -> None:
    """Compare the store with what was acknowledged, at the head and at every commit's time."""
    whole: dict[str, list[str]] = {}
    revisions: dict[str, set[int]] = {}
    snap = store.at()
    for key in snap.keys("token/"):
        token = key.split("/")[1]
        entry = snap.entry(key)
        whole.setdefault(token, []).append(key)
        revisions.setdefault(token, set()).add(entry.revision)
        assert int(entry.value.rstrip(b"\0")) <= 5
    for token, keys in whole.items():
        count = int(snap[keys[0]].rstrip(b"\0"))
        assert len(keys) == count, f"{token} is half there: {keys}"
        assert len(revisions[token]) == 1, f"{token} was written in pieces: {revisions[token]}"
    log = {commit.note: commit for commit in store.commits()}
    assert log.keys() - {None} == whole.keys(), "the log and the keys tell the same commits"
    for token, ts, revision in heard:
        assert token in whole, f"{token} was acknowledged at {ts} and is gone"
        assert revisions[token] == {revision}
        assert (log[token].ts, log[token].revision) == (ts, revision)
    for token, ts, _ in random.sample(heard, min(len(heard), 50)):
        then = store.at(ts)
        assert then["shared"] == token.encode()
        assert f"token/{token}/0" in then
        assert f"token/{token}/0" not in store.at(ts - 1)
    assert store.check().problems == ()


def acknowledged(child: Child) -> list[list]:
    said = child.heard()
    assert not [words for words in said if words[0] == "failed"], said[-1][1]
    return [words for words in said if words[0] != "opened"]


@pytest.mark.parametrize("kills", [10, pytest.param(KILLS, marks=pytest.mark.long)])
def test_killed_at_random_moments(tmp_path: Path, kills: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng, url = random.Random(seed), f"lmdb:{tmp_path / 'store'}"
    with children() as start:
        everyone: list[Child] = []

        def writer() -> Child:
            number = len(everyone)
            child = start(tmp_path / f"said.{number}", write_for_ever(url, seed + number))
            everyone.append(child)
            return child

        writers = [writer() for _ in range(WRITERS)]
        for _ in range(kills):
            at = rng.randrange(WRITERS)
            if rng.random() < 0.8:  # else also while it opens
                until(lambda at=at: writers[at].heard(), "a writer to open the store")
            time.sleep(rng.uniform(0, AGE_MS_MAX) / 1_000)
            writers[at].kill()
            survivor = writers[(at + 1) % WRITERS]
            before = len(acknowledged(survivor))
            writers[at] = writer()
            until(lambda s=survivor, n=before: len(acknowledged(s)) > n, "a survivor to go on")
        for child in writers:
            child.kill()
        heard = [words for child in everyone for words in acknowledged(child)]
    assert len(heard) > kills
    with snapkv.open(url, ring_slots=RING_SLOTS) as store:
        judge(store, heard)
        store.commit(**operations(rng, "after"))
        judge(store, heard)
    with snapkv.open(url) as store:
        judge(store, heard)
    print(f"{len(heard)} acknowledged commits of {len(everyone)} writers")


@pytest.mark.long
def test_all_killed_at_once(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng, url, heard = random.Random(seed), f"lmdb:{tmp_path / 'store'}", []
    for generation in range(5):
        with children() as start:
            writers = [
                start(
                    tmp_path / f"said.{generation}.{i}",
                    write_for_ever(url, seed + generation * 10 + i),
                )
                for i in range(WRITERS)
            ]
            until(lambda w=writers: any(acknowledged(child) for child in w), "a first commit")
            time.sleep(rng.uniform(0, AGE_MS_MAX) / 1_000)
            for child in writers:
                child.kill()
            heard += [words for child in writers for words in acknowledged(child)]
        with snapkv.open(url) as store:
            judge(store, heard)


def test_a_process_that_stands_still_inside_a_build_stops_others_for_a_time_only(
    tmp_path: Path,
) -> None:
    """The write lock is its own until it ends; then the next one goes on."""
    url = f"lmdb:{tmp_path / 'store'}"
    snapkv.open(url).close()

    def hold(say) -> None:
        with snapkv.open(url) as store:

            def build(stamp: snapkv.Stamp) -> snapkv.Ops:
                say("inside")
                time.sleep(60)
                return snapkv.Ops({"held": b""})

            store.commit(build)

    with children() as start, snapkv.open(url) as store:
        holder = start(tmp_path / "said", hold)
        until(holder.heard, "the holder to be inside")
        with pytest.raises((CommitTimeoutError, EngineBusyError)):
            store.commit(puts={"k": b"1"}, timeout=0.1)
        assert store.at().count() == 0, "reading goes on"
        holder.kill()
        store.commit(puts={"k": b"2"}, timeout=10)
        assert list(store.at().items()) == [("k", b"2")]
        assert store.check().problems == ()
