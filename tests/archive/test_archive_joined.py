"""A store with an archive answers, after compaction, what the live store answered before."""

import random

import pytest
from sampling import fewer_on_etcd, some

from snapkv import CompactedError
from snapkv.archive import state_rows, writer

from .histories import Writing, answers, recorder

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 7)
    monkeypatch.setattr(state_rows, "CHUNK_ROWS", 9)


def reopened(place, clock, folder):
    """Open the store with its archive."""
    return place.open(archive=str(folder), clock=clock)


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("place", "seed"), fewer_on_etcd(some(range(4), one_in=2), one_in=4), indirect=["place"]
)
def test_it_answers_what_the_live_store_answered(place, store, clock, tmp_path, seed):
    print("seed", seed)
    rng = random.Random(seed)
    writing = Writing(place, store, clock, rng)
    since = store.save("z", b"the first that is known")
    recording = recorder(store, tmp_path / "archive")
    for _ in range(rng.randrange(2, 9)):
        recording.catch_up()
        while rng.random() < 0.7 and recording.writer.tidy():
            pass
        writing.steps(rng.randrange(25))
    recording.catch_up()
    clock.advance(600_000)
    before = answers(store, since)
    for _ in range(3):
        compacted = store.compact(rng.choice(before["commits"]).ts)
        with reopened(place, clock, tmp_path / "archive") as joined:
            found = answers(joined, since)
        for what, expected in before.items():
            assert found[what] == expected, what
        assert compacted.earliest >= since


def test_before_the_archive_begins_it_says_so(place, store, clock, tmp_path):
    early = store.save("a", b"1")
    first = store.save("a", b"2")
    clock.advance(600_000)
    store.compact(first)
    recorder(store, tmp_path / "archive").catch_up()
    clock.advance(600_000)
    store.compact(store.save("a", b"3"))
    with reopened(place, clock, tmp_path / "archive") as joined:
        assert joined.load("a", first) == b"2"
        with pytest.raises(CompactedError) as caught:
            joined.load("a", early)
        assert caught.value.earliest == first
