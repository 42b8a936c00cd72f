"""A full disk while commits are made: nobody is told anything wrong, and nothing is lost."""

import os
import random
import resource
import signal
from pathlib import Path

import pytest
from crash_processes import children
from sampling import first_of

import snapkv
from snapkv import CommitTimeoutError, CommitUnknownError
from snapkv.errors import EngineBusyError, NoSpaceError

pytestmark = [pytest.mark.slow, pytest.mark.forks]


def limit_files(size: int) -> None:
    """No file of this process grows beyond `size` bytes; writing there fails with EFBIG."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


def used_bytes(store: snapkv.SnapshotKV) -> int:
    return int(store.info()["engine"]["used_bytes"])


def fill(url: str, seed: int, room: int):
    """Return a body that commits into a disk with little room, then gets its space back."""

    def body(say) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        rng = random.Random(seed)
        with snapkv.open(url, commit_timeout=0.05) as store:
            for n in range(5):
                say("there", f"{n}", store.save(f"{n}", b"before"))
            limit = used_bytes(store) + room
            unknown = []
            for n in range(5, 35):
                key = f"{n}"
                limit_files(rng.choice([limit, limit, limit, 4_096, resource.RLIM_INFINITY]))
                try:
                    ts = store.save(key, bytes(rng.choice([10, 3_000, 100_000])))
                except NoSpaceError:
                    outcome = ("absent", key, 0)
                except CommitUnknownError as e:
                    outcome = ("unknown", key, e.timestamp)
                    unknown.append((key, e))
                else:
                    outcome = ("there", key, ts)
                limit_files(resource.RLIM_INFINITY)
                say(*outcome)
                assert store.load("0") == b"before", "reading goes on"
            for key, e in unknown:
                found = store.resolve(e.timestamp, e.nonce, timeout=10)
                say("absent" if found is None else "there", key, e.timestamp)
            say("there", "after", store.save("after", b"space is back"))
            assert store.check().problems == ()

    return body


@pytest.mark.long_after(1)
@pytest.mark.parametrize("room", first_of([0, -8_192, 50_000, 400_000], one_in=2))
def test_space_runs_out_and_comes_back(tmp_path: Path, room: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    url = f"lmdb:{tmp_path / 'store'}"
    with children() as start:
        child = start(tmp_path / "said", fill(url, seed, room))
        status, said = child.wait(), child.heard()
        assert status == 0, said[-1]
    last = {key: (what, ts) for what, key, ts in said}
    kinds = {what for what, _, _ in said}
    assert "there" in kinds
    assert kinds & {"absent", "unknown"}, "the disk was never full"
    with snapkv.open(url) as store:
        for key, (what, ts) in last.items():
            assert (key in store.at()) == (what == "there"), (key, what)
            if what == "there":
                assert key in store.at(ts)
                assert key not in store.at(ts - 1)
        assert store.check().problems == ()
        store.save("again", b"")


def test_others_go_on_where_one_may_not_write(tmp_path: Path) -> None:
    """One process is out of its quota, another one is not: they agree on what happened."""
    url = f"lmdb:{tmp_path / 'store'}"

    def starve(say) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with snapkv.open(url, commit_timeout=0.2) as store:
            limit_files(4_096)
            for n in range(10):
                try:
                    store.save(f"starved/{n}", bytes(20_000))
                    say("there", n)
                except NoSpaceError:
                    say("absent", n)
                except (CommitTimeoutError, EngineBusyError):  # the other one saves all the time
                    say("crowded out", n)
                except CommitUnknownError as e:
                    say("unknown", n, e.timestamp, e.nonce.hex())

    with snapkv.open(url) as store, children() as start:
        store.save("first", b"")
        starved = start(tmp_path / "said", starve)
        n = 0
        while starved.status is None:
            store.save(f"mine/{n}", b"%d" % n)
            n += 1
            pid, status = os.waitpid(starved.pid, os.WNOHANG)
            starved.status = status if pid else None
            assert n < 100_000
        assert starved.status == 0, starved.heard()[-1]
        said = starved.heard()
        assert {what for what, *_ in said} & {"absent", "unknown"}
        for what, number, *rest in said:
            if what == "unknown":
                found = store.resolve(rest[0], bytes.fromhex(rest[1]))
                what = "absent" if found is None else "there"
            assert (f"starved/{number}" in store.at()) == (what == "there")
        assert store.at().count("mine/") == n
        assert store.check().problems == ()
    with snapkv.open(url) as store:
        assert store.at().count("mine/") == n
        assert store.check().problems == ()
