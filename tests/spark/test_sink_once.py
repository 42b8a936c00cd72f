"""Each micro-batch is in a store once, whatever is repeated, killed, or still running."""

import random

import pytest
from sinks import Sink, refused
from sinks import in_a_query as in_a_query
from sinks import small_commits as small_commits
from store.engines import Place

from snapkv import tuples
from snapkv.errors import CommitUnknownError, EngineUnavailableError
from snapkv.spark import batch_commits
from snapkv.store.store import SnapshotKV

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("in_a_query"),
    pytest.mark.spark_since("4.1", "a stream's sink that takes Arrow"),
]
ROWS = [(f"k{n:02}", "x" * 500) for n in range(30)]
"""Some five commits if these are small."""
MARKER = tuples.pack(("", "0eee7a21"))


def sink(place: Place, **options) -> Sink:
    return Sink(place.url, stream=True, valueFormat="utf8", **options)


def state(store) -> dict:
    return {key: (entry.value.decode(), entry.version) for key, entry in store.at().entries()}


def notes(store) -> list:
    return [commit.note for commit in store.commits() if commit.note]


def test_a_batch_that_is_repeated(store, place):
    first = sink(place, note="copies")
    first.micro_batch(0, ("a", "1"))
    first.micro_batch(1, ("a", "2"), ("b", "2"))
    for again in (first, sink(place)):
        again.micro_batch(1, ("a", "2"), ("b", "2"))
        again.micro_batch(0, ("a", "1"))
    assert state(store) == {"a": ("2", 2), "b": ("2", 1)}
    assert notes(store) == ["copies 0eee7a21, batch 0", "copies 0eee7a21, batch 1"]
    sink(place).micro_batch(2, ("a", "3"))
    assert state(store)["a"] == ("3", 3)


def test_batches_without_rows(store, place):
    into = sink(place)
    into.micro_batch(0)
    into.writer.commit([], 1)
    into.micro_batch(2, ("a", "1"), tasks=5)
    assert state(store) == {"a": ("1", 1)}


def test_a_complete_table_is_replaced(store, place):
    into = sink(place, overwrite=True, keyPrefix="n/")
    store.save("other", b"1")
    into.micro_batch(0, ("n/a", "1"), ("n/b", "1"))
    into.micro_batch(1, ("n/a", "2"), ("n/c", "1"))
    into.micro_batch(1, ("n/a", "2"), ("n/c", "1"))
    head = store.at().revision
    into.micro_batch(2, ("n/a", "2"), ("n/c", "1"))
    assert store.at().revision == head, "a batch without effect is no change that others follow"
    assert state(store) == {"n/a": ("2", 2), "n/c": ("1", 1), "other": ("1", 1)}
    into.micro_batch(3)
    assert state(store) == {"other": ("1", 1)}


# --- killed between two commits of a batch ---


class DiedError(Exception):
    """The driver was killed."""


def dies_after(monkeypatch, commits: int) -> None:
    """Let commits of a store succeed, and then none."""
    commit, done = SnapshotKV.commit, []

    def limited(self, *arguments, **options):
        if len(done) == commits:
            raise DiedError
        done.append(None)
        return commit(self, *arguments, **options)

    monkeypatch.setattr(SnapshotKV, "commit", limited)


@pytest.mark.parametrize("commits", range(6))
def test_a_batch_goes_on_where_it_was_killed(store, place, small_commits, commits):
    with pytest.MonkeyPatch.context() as patched:
        dies_after(patched, commits)
        try:
            sink(place).micro_batch(4, *ROWS)
        except DiedError:
            assert len(state(store)) < len(ROWS)
    shuffled = random.Random(commits).sample(ROWS, len(ROWS))
    sink(place).micro_batch(4, *shuffled, tasks=3)
    assert state(store) == {key: (value, 1) for key, value in ROWS}  # each was written once
    assert notes(store) == [
        f"Spark query 0eee7a21, batch 4, rows {first} to {first + 5} of 30"
        for first in range(1, 31, 6)
    ]


def test_other_rows_begin_again(store, place, small_commits):
    with pytest.MonkeyPatch.context() as patched:
        dies_after(patched, 2)
        with pytest.raises(DiedError):
            sink(place).micro_batch(4, *ROWS)
    other = [(key, "y" * 500) for key, _ in ROWS]
    sink(place).micro_batch(4, *other)
    assert {key: value for key, (value, _) in state(store).items()} == dict(other)
    sink(place).micro_batch(4, *ROWS)
    assert {key: value for key, (value, _) in state(store).items()} == dict(other)


@pytest.mark.parametrize("commits", range(3))
def test_a_replacement_that_was_killed(store, place, small_commits, commits):
    store.commit(puts={f"old{n}": b"x" * 500 for n in range(10)} | {"k00": b"x" * 500})
    with pytest.MonkeyPatch.context() as patched:
        dies_after(patched, commits)
        with pytest.raises(DiedError):
            sink(place, overwrite=True, keyPrefix="").micro_batch(4, *ROWS)
    sink(place, overwrite=True, keyPrefix="").micro_batch(4, *ROWS)
    assert state(store) == {key: (value, 1) for key, value in ROWS}


# --- unknown outcomes, and two drivers ---


@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_outcome_is_looked_up(store, place, small_commits, monkeypatch, landed):
    commit, calls = SnapshotKV.commit, []

    def unknown(self, *arguments, **options):
        calls.append(None)
        if len(calls) != 2:
            return commit(self, *arguments, **options)
        made = commit(self, *arguments, **options) if landed else self.tick()
        timeline = self.reader.timeline
        nonce = timeline.stamp(timeline.head()).nonce if landed else b"n"
        raise CommitUnknownError(made.ts, nonce, may_still_land=True)

    monkeypatch.setattr(SnapshotKV, "commit", unknown)
    sink(place).micro_batch(4, *ROWS)
    assert state(store) == {key: (value, 1) for key, value in ROWS}
    assert len(notes(store)) == 5


def test_a_driver_that_still_runs_is_stopped(store, place, small_commits, monkeypatch):
    """It read the marker, then its successor committed all of the batch."""
    read_marker, left = batch_commits.read_marker, [1]

    def overtaken(*arguments):
        found = read_marker(*arguments)
        if left and left.pop():
            sink(place).micro_batch(4, *ROWS)
        return found

    monkeypatch.setattr(batch_commits, "read_marker", overtaken)
    sink(place).micro_batch(4, *ROWS)
    assert len(notes(store)) == 5
    assert state(store) == {key: (value, 1) for key, value in ROWS}


def test_another_driver_is_committing(store, place, small_commits, monkeypatch):
    commit, calls = SnapshotKV.commit, []

    def overtaken(self, *arguments, **options):
        calls.append(None)
        if len(calls) == 3:  # of five
            marker = batch_commits.Marker(4, 1, 2, b"other rows")
            with place.open(writer="elsewhere") as elsewhere:
                elsewhere.space(batch_commits.SPACE).commit(puts={MARKER: marker.encode()})
        return commit(self, *arguments, **options)

    monkeypatch.setattr(SnapshotKV, "commit", overtaken)
    message = refused("CONFLICT", sink(place).micro_batch, 4, *ROWS)
    assert "another run of 0eee7a21 is committing batch 4" in message
    assert len(calls) == 3
    assert len(state(store)) == 12


def test_no_engine(store, place, monkeypatch):
    def down(*_, **__):
        raise EngineUnavailableError("no answer")

    monkeypatch.setattr(SnapshotKV, "commit", down)
    assert "no answer" in refused("UNAVAILABLE", sink(place).micro_batch, 0, ("a", "1"))
    monkeypatch.undo()


# --- batches that a program numbers ---


def test_numbered_batches(store, place):
    def write(version: int, *rows) -> None:
        options = {"txnAppId": "nightly", "txnVersion": version, "valueFormat": "utf8"}
        Sink(place.url, **options).write(*rows)

    write(1, ("a", "1"))
    write(1, ("a", "other"))  # as in Delta Lake, a number that was committed is skipped
    write(0, ("a", "other"))
    write(2, ("a", "2"))
    assert state(store) == {"a": ("2", 2)}
    assert notes(store) == ["batch 1 of nightly", "batch 2 of nightly"]


def test_one_number_for_several_spaces(store, place):
    """As Delta Lake has it for several tables, in a function of foreachBatch."""
    options = {"txnAppId": "app", "txnVersion": 7, "valueFormat": "utf8", "keyFormat": "utf8"}
    for space in ("a", "b"):
        Sink(place.url, space=space, **options).write(("k", "1"))
        assert dict(store.space(space).at().items()) == {b"k": b"1"}
    Sink(place.url, space="a", **options).write(("k", "2"))
    assert store.space("a").load(b"k") == b"1"


def test_a_numbered_replacement_without_effect(store, place):
    store.save("k", b"1")
    options = {"txnAppId": "app", "txnVersion": 7, "valueFormat": "utf8", "keyPrefix": ""}
    Sink(place.url, overwrite=True, **options).write(("k", "1"))
    Sink(place.url, overwrite=True, **options).write(("k", "2"))
    assert state(store) == {"k": ("1", 1)}


def test_streams_number_their_batches_themselves(place):
    message = refused("INVALID_OPTION", sink, place, txnAppId="a", txnVersion=1)
    assert "a stream has its own" in message


def test_the_marker_is_not_a_key(store, place):
    sink(place).micro_batch(0, ("a", "1"))
    assert list(store.at().keys()) == ["a"]
    assert list(store.space(batch_commits.SPACE).at().keys()) == [MARKER]
