"""kill -9 of a driver between two commits of one batch: its successor commits the rest, once."""

import os
import signal
import sys
from pathlib import Path

import msgpack
import pytest
from etcd_server import eventually
from etcd_server.processes import keeper

import snapkv
from snapkv.spark import batch_commits

pytestmark = pytest.mark.long

DRIVER = Path(__file__).with_name("sink_driver.py")
BATCHES, ROWS = 2, 6_000
"""Each batch is some six megabytes: five commits of etcd."""
WAIT_S = 900


def driver(url: str, folder: Path, number: int):
    java = f"SPARK_SUBMIT_OPTS={os.environ['SPARK_SUBMIT_OPTS']}"
    command = ["env", java, sys.executable, str(DRIVER), url, str(folder / "ck")]
    return keeper.start([*command, str(BATCHES), str(ROWS)], folder / f"log-{number}")


def markers(store) -> list[tuple[int, int, int]]:
    found = store.space(batch_commits.SPACE).at().items()
    return [tuple(msgpack.unpackb(value)[:3]) for _, value in found]


@pytest.mark.soak
@pytest.mark.spark_since("4.1", "a stream's sink that takes Arrow")
def test_each_row_is_written_once(etcd, tmp_path):
    url = etcd.url
    with snapkv.open(url) as store:
        first, second = driver(url, tmp_path, 0), None
        try:

            def in_a_batch() -> bool:
                assert first.poll() is None, (tmp_path / "log-0").read_text()[-3_000:]
                return any(0 < done < total for _, done, total in markers(store))

            eventually(in_a_batch, "a part of a batch", wait_s=WAIT_S)
            os.killpg(first.pid, signal.SIGKILL)
            first.wait(WAIT_S)
            ((number, done, total),) = markers(store)
            assert done < total == ROWS
            second = driver(url, tmp_path, 1)
            eventually(lambda: second.poll() is not None, "the second driver", wait_s=WAIT_S)
            assert second.poll() == 0, (tmp_path / "log-1").read_text()[-3_000:]
        finally:
            for each in (first, second):
                if each is not None:
                    keeper.end(each, grace_s=0)
        entries = dict(store.at().entries())
        assert len(entries) % ROWS == 0
        assert len(entries) >= BATCHES * ROWS
        assert {entry.version for entry in entries.values()} == {1}
        notes = [commit.note for commit in store.commits()]
        parts = [note.split()[-5:] for note in notes if note and f"batch {number}, rows" in note]
        starts, ends = [int(part[0]) for part in parts], [int(part[2]) for part in parts]
        assert starts == [1, *(end + 1 for end in ends[:-1])], "no row is in two commits"
        assert done in ends
