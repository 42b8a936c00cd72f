"""Files of JSON lines whose disk fails, or whose process ended anywhere in between."""

import io
import json
import os
import random
import resource
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from cdcmeta.errors import SinkError
from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors import json_lines_sink
from cdcmeta.scheduler.executors.contracts import SinkRecord
from cdcmeta.scheduler.executors.json_lines_sink import JsonLinesWriter, file_name, last_checkpoint

from .sources import commit


@pytest.fixture
def sink(tmp_path):
    return partial(JsonLinesWriter, tmp_path / "out")


def path_of(sink):
    return sink.args[0] / file_name("t/")


def lines(sink):
    return [json.loads(line) for line in path_of(sink).read_bytes().splitlines()]


def written(sink):
    return [line["ts"] for line in lines(sink) if "ts" in line]


@contextmanager
def full_at(size):
    """Let no file of this process be larger: a write is cut off and fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "content",
    [b"x", b'{"id": 1}\n{"id": 2}\n', b'{"ts": 5}', b"\n", b'{"ts": 9}\n{"checkpoint": 9'],
)
def test_a_file_of_another_program_is_left_alone(sink, content):
    path = path_of(sink)
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(SinkError, match="not a file that a changefeed wrote"):
        sink("t/", Token(1, 1)).begin(1)
    assert path.read_bytes() == content


def test_a_full_disk_costs_no_commit_and_repeats_none(sink):
    writer = sink("t/", Token(1, 1))
    writer.begin(1)
    writer.write([commit(2, a=b"2")], 2)
    batch = [commit(ts, a=b"%d" % ts) for ts in range(3, 40)]
    for room in (1, 50, 300, 1_000):
        with full_at(path_of(sink).stat().st_size + room), pytest.raises(OSError, match="large"):
            writer.write(batch, 39)
    batch.append(commit(40, a=b"40"))
    writer.write(batch, 40)
    writer.close()
    assert written(sink) == list(range(2, 41))


def test_a_disk_that_was_full_until_the_end_leaves_a_file_that_goes_on(sink):
    writer = sink("t/", Token(1, 1))
    writer.begin(1)
    with full_at(path_of(sink).stat().st_size + 300):
        with pytest.raises(OSError, match="large"):
            writer.write([commit(ts, a=b"%d" % ts) for ts in range(2, 40)], 39)
        with suppress(OSError):
            writer.close()
    again = sink("t/", Token(1, 2))
    assert again.begin(1) == 1
    again.write([commit(2, a=b"2")], 2)
    again.close()
    assert written(sink) == [2]


def test_whatever_fails_each_commit_is_there_once(sink, monkeypatch):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng, real = random.Random(seed), os.fsync

    def sync(file):
        if rng.random() < 0.3:
            raise OSError("the disk fails")
        real(file)

    monkeypatch.setattr(json_lines_sink.os, "fsync", sync)
    made = [commit(ts, a=b"%d" % ts) for ts in range(2, 200)]
    done = number = 1
    while done < made[-1].commit.ts:
        number += 1
        writer = sink("t/", Token(1, number))
        try:
            done = max(done, writer.begin(done))
            for _ in range(rng.randrange(6)):
                left = [each for each in made if each.commit.ts > done][: rng.randrange(1, 9)]
                if left:
                    writer.write(left, left[-1].commit.ts)
                    done = left[-1].commit.ts
        except OSError:
            pass  # the next assignment goes on
        writer.close()
    assert written(sink) == [each.commit.ts for each in made]
    reached = [line["checkpoint"] for line in lines(sink) if "checkpoint" in line]
    assert reached == sorted(reached)


def test_the_process_ends_at_any_byte(sink):
    """The file is cut off at each place after the last commit that was acknowledged."""
    writer = sink("t/", Token(1, 1))
    writer.begin(1)
    writer.write([commit(2, a="ä\n".encode())], 2)
    acknowledged = path_of(sink).stat().st_size
    writer.write([commit(3, a=b'{"checkpoint": 9, "token": [9, 9]}\n'), commit(4, b=b"4")], 4)
    writer.close()
    whole = path_of(sink).read_bytes()
    for cut in range(acknowledged, len(whole) + 1):
        path_of(sink).write_bytes(whole[:cut])
        again = sink("t/", Token(1, 2))
        reached = again.begin(2)
        assert reached == (4 if cut == len(whole) else 2)
        again.write([commit(ts, a=b"%d" % ts) for ts in range(reached + 1, 6)], 5)
        again.close()
        assert written(sink) == [2, 3, 4, 5]


def test_the_parts_of_a_state_are_cut_off_until_it_is_complete(sink):
    writer = sink("t/", Token(1, 1))
    writer.begin(4)
    writer.write([commit(5, a=b"1")], 0)
    writer.close()
    again = sink("t/", Token(1, 2))
    assert again.begin(4) == 4
    again.write([commit(5, a=b"1")], 0)
    again.write([], 5)
    again.close()
    assert written(sink) == [5]
    last = sink("t/", Token(1, 3))
    assert last.begin(4) == 5
    last.close()


def test_large_lines_are_read_back_in_few_steps():
    """The checkpoint is before 20 MB that were not acknowledged, in a line without an end."""

    class Counted(io.BytesIO):
        reads = 0

        def read(self, size=-1):
            self.reads += 1
            return super().read(size)

    good = b'{"ts": 5, "v": "%s"}\n{"checkpoint": 5, "token": [1, 2]}\n' % (b"x" * 300_000)
    file = Counted(good + b'{"ts": 6, "v": "' + b'{\\"checkpoint\\": ' * 1_200_000)
    assert last_checkpoint(file) == (SinkRecord(Token(1, 2), 5), len(good))
    assert file.reads < 20


@pytest.mark.parametrize(
    "line", [b'{"checkpoint": 5}', b'{"checkpoint": 5, "token": 7}', b'{"checkpoint": nothing}']
)
def test_a_damaged_checkpoint_is_an_error_and_nothing_is_cut_off(sink, line):
    sink.args[0].mkdir()
    path_of(sink).write_bytes(b'{"ts": 5}\n' + line + b"\n")
    before = path_of(sink).read_bytes()
    with pytest.raises(SinkError, match="not a checkpoint"):
        sink("t/", Token(1, 1)).begin(5)
    assert path_of(sink).read_bytes() == before


@pytest.mark.parametrize("left", [b"", b"{", b'{"checkpoint": 9, "token": [9, 9]}'])
def test_a_file_whose_first_line_was_cut_off_begins_anew(sink, left):
    sink.args[0].mkdir()
    path_of(sink).write_bytes(left)
    writer = sink("t/", Token(1, 1))
    assert writer.begin(5) == 5
    writer.close()
    assert lines(sink) == [{"checkpoint": 5, "token": [1, 1]}]


def test_long_names_have_files_of_their_own(sink):
    names = ["x" * 500, "x" * 499 + "y", "語" * 100 + "a/", "語" * 100 + "b/"]
    for name in names:
        writer = sink(name, Token(1, 1))
        writer.begin(5)
        writer.close()
    assert len({file_name(name) for name in names}) == 4
    assert len(list(sink.args[0].iterdir())) == 4
