"""Sinks keep their checkpoint with the data, and reject an earlier assignment."""

import json
import random
from functools import partial

import pytest

import snapkv
from cdcmeta.errors import SinkError
from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors.contracts import SinkRecord
from cdcmeta.scheduler.executors.json_lines_sink import JsonLinesWriter, file_name
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter, reached_of
from snapkv import Change, Changes, Commit, CommitUnknownError
from snapkv.model import Meta

T1, T2, T3 = Token(1, 1), Token(1, 2), Token(2, 1)


def commit(ts, **values):
    head = Commit(ts, 0, ts, "ann@host", "why")
    changes = (Change(f"t/{key}", value, head) for key, value in values.items())
    return Changes(head, tuple(changes))


# --- another store ---


@pytest.fixture
def target():
    with snapkv.open("memory:") as store:
        yield store


@pytest.fixture
def stores(target):
    return partial(StoreTableWriter, target, "f")


def keys(target):
    return dict(target.at().items())


def test_a_store_has_data_and_checkpoint_in_one_commit(target, stores):
    writer = stores("t/", T1)
    assert writer.begin(5) == 5
    writer.write([commit(6, a=b"1", b=b"1"), commit(7, a=b"2", b=None)], 7)
    assert keys(target) == {"t/a": b"2"}
    entry = target.space("changefeed/f").entry(b"t/")
    assert reached_of(entry.value) == SinkRecord(T1, 7)
    assert entry.revision == target.at().entry("t/a").revision
    assert stores("t/", T2).begin(6) == 7


def test_an_earlier_assignment_is_fenced(target, stores):
    old, new = stores("t/", T1), stores("t/", T3)
    old.begin(5)
    old.write([commit(6, a=b"1")], 6)
    assert new.begin(5) == 6
    for late in ([commit(7, a=b"late")], []):
        with pytest.raises(SinkError) as caught:
            old.write(late, 7)
        assert caught.value.reason == "fenced"
    new.write([commit(7, a=b"new")], 7)
    assert keys(target) == {"t/a": b"new"}
    with pytest.raises(SinkError, match=r"2\.1") as caught:
        stores("t/", T2).begin(5)
    assert caught.value.reason == "fenced"
    assert keys(target) == {"t/a": b"new"}


@pytest.mark.parametrize("lands", [True, False])
def test_an_unknown_outcome_is_found_out(target, stores, monkeypatch, lands):
    writer = stores("t/", T1)
    writer.begin(5)
    real, failures = target.commit, iter([True])

    def flaky(build, **options):
        if next(failures, False):
            if lands:
                real(build, **options)
            raise CommitUnknownError(1, b"n", may_still_land=False)
        return real(build, **options)

    monkeypatch.setattr(target, "commit", flaky)
    writer.write([commit(6, a=b"1")], 6)
    assert keys(target) == {"t/a": b"1"}
    assert len([each for each in target.commits() if "up to" in (each.note or "")]) == 1


def test_a_target_that_never_answers_is_given_up(target, monkeypatch):
    writer = partial(StoreTableWriter, target, "f", write_s=0.2)("t/", T1)
    writer.begin(5)

    def unknown(build, **options):
        raise CommitUnknownError(1, b"n", may_still_land=True)

    monkeypatch.setattr(target, "commit", unknown)
    with pytest.raises(SinkError, match=r"within 0\.2 s") as caught:
        writer.write([commit(6, a=b"1")], 6)
    assert caught.value.reason == "failed"


def test_a_batch_too_large_is_divided(stores, target, monkeypatch):
    writer = stores("t/", T1)
    writer.begin(1)
    real = target.commit

    def small(build, **options):
        if len(build(snapkv.Stamp(1, 0)).puts) > 2:
            raise snapkv.CommitTooLargeError("operations", 3, 2)
        return real(build, **options)

    monkeypatch.setattr(target, "commit", small)
    writer.write([commit(n, **{f"k{n}": b"1"}) for n in range(2, 11)], 10)
    assert len(keys(target)) == 9
    assert stores("t/", T2).begin(1) == 10
    writer = stores("t/", T3)
    writer.begin(1)
    writer.write([commit(11, a=b"1", b=b"1", c=b"1")], 11)
    assert len(keys(target)) == 12
    assert stores("t/", T3).begin(1) == 11


def test_a_record_that_is_none_is_an_error(target, stores):
    target.space("changefeed/f").commit(puts={b"t/": b"\xc1"})
    with pytest.raises(SinkError, match="invalid record"):
        stores("t/", T1).begin(5)


# --- JSON lines ---


@pytest.fixture
def lines(tmp_path):
    return partial(JsonLinesWriter, tmp_path / "out")


def read(lines, table="t/"):
    path = lines.args[0] / file_name(table)
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def written(lines):
    return [line["ts"] for line in read(lines) if "ts" in line]


def test_a_line_has_the_meta_of_its_commit(lines):
    head = Commit(6, 0, 6, "alice", None, meta=Meta({"request": "r-17", "ticket": 4}))
    writer = lines("t/", T1)
    writer.begin(5)
    writer.write([Changes(head, (Change("t/a", b"1", head),))], 6)
    writer.close()
    line = read(lines)[1]
    assert (line["writer"], line["meta"]) == ("alice", {"request": "r-17", "ticket": 4})


def test_a_line_is_a_commit(lines):
    writer = lines("t/", T1)
    assert writer.begin(5) == 5
    writer.write([commit(6, a=b"text", b=b"\xff\x00", c=None)], 6)
    writer.close()
    first, line, last = read(lines)
    assert first == {"checkpoint": 5, "token": [1, 1]}
    assert last == {"checkpoint": 6, "token": [1, 1]}
    assert (line["ts"], line["writer"], line["note"]) == (6, "ann@host", "why")
    assert "meta" not in line
    assert line["changes"] == [
        {"key": "t/a", "value": "text"},
        {"key": "t/b", "value_base64": "/wA="},
        {"key": "t/c", "value": None},
    ]


def test_one_writer_at_a_time_and_later_tokens_only(lines):
    old = lines("t/", T2)
    old.begin(5)
    with pytest.raises(SinkError, match="another writer") as caught:
        lines("t/", T3).begin(5)
    assert caught.value.reason == "failed"
    old.close()
    with pytest.raises(SinkError, match="closed"):
        old.write([commit(6, a=b"1")], 6)
    new = lines("t/", T3)
    assert new.begin(5) == 5
    new.close()
    with pytest.raises(SinkError) as caught:
        old.begin(5)
    assert caught.value.reason == "fenced"


TAILS = [
    b'{"ts": 7, "chan',
    b'{"ts": 7}\n{"ts": 8}\n',
    b'{"checkpoint": 9, "token": [1, 1]}',
    b'{"ts": 7, "v": "{\\"checkpoint\\": 9}"}\n',
    b"x" * 200_000,
    b"\n\n\0\0",
]


@pytest.mark.parametrize("tail", TAILS, ids=range(len(TAILS)))
def test_what_a_crash_left_is_cut_off(lines, tail):
    writer = lines("t/", T1)
    writer.begin(5)
    writer.write([commit(6, a=b'{"checkpoint": 99, "token": [9, 9]}' * 5_000)], 6)
    writer.close()
    path = lines.args[0] / file_name("t/")
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    again = lines("t/", T2)
    assert again.begin(5) == 6
    again.write([commit(7, a=b"1")], 7)
    again.close()
    assert path.read_bytes().startswith(whole)
    assert written(lines) == [6, 7]


def test_cut_off_anywhere_each_commit_is_there_once(lines):
    """The file ends at a random byte, as after a crash; the source is at the last checkpoint."""
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    path = lines.args[0] / file_name("t/")
    for token in range(1, 40):
        writer = lines("t/", Token(1, token))
        reached = writer.begin(1)
        for ts in range(reached + 1, reached + rng.randrange(2, 5)):
            writer.write([commit(ts, a=b"%d" % ts)], ts)
        writer.close()
        path.write_bytes(path.read_bytes()[: -rng.randrange(1, 60)])
    writer = lines("t/", T3)
    reached = writer.begin(1)
    writer.close()
    assert written(lines) == list(range(2, reached + 1))


@pytest.mark.parametrize("table", ["a/b", "..", ".", "*", "ü\n", "%", "A b"])
def test_names_of_tables_stay_in_the_folder(lines, table):
    writer = lines(table, T1)
    writer.begin(5)
    writer.close()
    assert [path.name for path in lines.args[0].iterdir()] == [file_name(table)]
    assert "/" not in file_name(table)
    assert not file_name(table).startswith(".")
    assert len(file_name(table * 300)) <= 255
