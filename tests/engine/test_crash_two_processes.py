"""Two processes that watch each other: each sees every commit exactly once, in order."""

import threading
from pathlib import Path

import pytest
from crash_processes import WAIT_S, children, until

import snapkv

pytestmark = [pytest.mark.slow, pytest.mark.forks]

COMMITS = 60


def watch_and_write(url: str, me: str, count: int):
    """Return a body that commits, while a thread of it says all that a watch shows."""

    def body(say) -> None:
        with snapkv.open(url, writer=me) as store, store.watch(since=0) as watch:

            def follow() -> None:
                for _ in range(2 * count):
                    changes = watch.next(WAIT_S)
                    assert changes is not None, "the watch went quiet"
                    keys = {change.key: change.value.decode() for change in changes}
                    say(changes.commit.ts, changes.commit.writer, keys)

            follower = threading.Thread(target=follow)
            follower.start()
            for n in range(count):
                store.commit(puts={f"{me}/{n}": b"%d" % n, f"{me}/last": b"%d" % n})
            follower.join(WAIT_S)
            assert watch.next(0) is None, "nothing comes twice"

    return body


def test_each_sees_all_of_the_other_once_and_in_order(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path / 'store'}"
    snapkv.open(url).close()
    with children() as start:
        both = [
            start(tmp_path / f"said.{me}", watch_and_write(url, me, COMMITS))
            for me in ("one", "two")
        ]
        for child in both:
            assert child.wait() == 0, child.heard()[-1]
        seen = [child.heard() for child in both]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2 * COMMITS
    with snapkv.open(url) as store:
        assert [ts for ts, _, _ in seen[0]] == [commit.ts for commit in store.commits()]
        for me in ("one", "two"):
            mine = [keys for _, writer, keys in seen[0] if writer == me]
            assert mine == [{f"{me}/{n}": str(n), f"{me}/last": str(n)} for n in range(COMMITS)]
        assert store.check().problems == ()


def test_a_watcher_sees_what_a_killed_writer_left(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path / 'store'}"

    def write(say) -> None:
        with snapkv.open(url) as store:
            for n in range(1_000_000):
                say(store.save("k", b"%d" % n))

    with snapkv.open(url) as store, store.watch(since=0) as watch, children() as start:
        writer = start(tmp_path / "said", write)
        until(lambda: len(writer.heard()) > 20, "some commits")
        writer.kill()
        told = [ts for (ts,) in writer.heard()]
        mine = store.save("k", b"mine")
        seen = []
        while (changes := watch.next(WAIT_S)).commit.ts != mine:
            seen.append(changes.commit.ts)
        assert seen[: len(told)] == told
        assert len(seen) - len(told) in (0, 1), "one more may have been on its way"
        assert watch.next(0) is None


def test_one_reads_at_times_of_the_other(tmp_path: Path) -> None:
    """Timestamps of another process find its states here, ring, feed and all."""
    url = f"lmdb:{tmp_path / 'store'}"

    def write(say) -> None:
        with snapkv.open(url) as store:
            for n in range(200):
                say(store.save("k", b"%d" % n), n)

    with snapkv.open(url, ring_slots=7) as store, children() as start:
        writer = start(tmp_path / "said", write)
        checked = 0
        while writer.status is None:
            told = writer.heard()
            for ts, n in told[checked:]:
                assert store.load("k", ts) == b"%d" % n
                if n:
                    assert store.load("k", ts - 1) == b"%d" % (n - 1)
            checked = len(told)
            if checked == 200:
                assert writer.wait() == 0
        for ts, n in writer.heard():
            assert store.load("k", ts) == b"%d" % n
