"""Whether a new ring refines the one before: it is noticed when it is made, and said."""

import json

import msgpack
import pytest
from typer.testing import CliRunner

from cdcmeta.cli.app import app
from cdcmeta.generations import (
    CdcLog,
    GenerationLog,
    Generations,
    Sharding,
    StreamConsumer,
)
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.generation_layout import Generation

RING = {-100: Sharding(2), 100: Sharding(3)}


@pytest.fixture
def log(store):
    return GenerationLog(store, propagation_delay=0.0, leeway=5.0)


@pytest.mark.parametrize(
    ("ring", "refines"),
    [
        (RING, True),
        (RING | {0: Sharding(2)}, True),
        (dict.fromkeys(RING, Sharding(7)), True),
        ({-100: Sharding(2)}, False),
        ({-100: Sharding(2), 101: Sharding(3)}, False),
        ({5: Sharding(1)}, False),
    ],
)
def test_a_new_ring_says_whether_it_refines_the_one_before(log, ring, refines):
    assert log.make(RING).refines is None
    made = log.make(ring)
    assert made.refines is refines
    assert [each.refines for each in log.generations()] == [None, refines]


def test_generations_of_an_older_version_do_not_say(log):
    made = log.make(RING)
    fields = msgpack.unpackb(layout.encode(made))
    del fields["refines"]
    assert layout.decode(Generation, msgpack.packb(fields)) == made


def test_the_command_line_says_it(tmp_path):
    url = f"lmdb:{tmp_path}/store"
    runner = CliRunner()
    for n, tokens in enumerate((["-5", "5"], ["-5", "5", "9"], ["-5", "9"])):
        ring = tmp_path / f"{n}.json"
        told = {"tokens": dict.fromkeys(tokens, "a"), "nodes": {"a": {"shards": 1}}}
        ring.write_text(json.dumps(told))
        done = runner.invoke(app, ["generations", "make", str(ring), "--store", url])
        assert done.exit_code == 0, done.output
    done = runner.invoke(app, ["generations", "list", "--store", url])
    said = ["not parts of those before" in line for line in done.stdout.splitlines()]
    assert said == [False, False, True]
    done = runner.invoke(app, ["generations", "list", "--store", url, "--json"])
    assert [json.loads(line)["refines"] for line in done.stdout.splitlines()] == [None, True, False]


def test_what_does_not_refine_is_read_all_the_same(log, store, clock):
    generations = Generations(clock=clock)
    rows, written = CdcLog(store, generations), []
    for ring in (RING, {5: Sharding(1)}):
        made = log.make(ring)
        generations.insert(made.time, log.topology(made))
        clock.set(max(clock.now_ms(), made.time >> 18) + 6_000)
        written += [rows.write(b"%d" % n, b"v") for n in range(9)]
    store.tick()
    windows = list(StreamConsumer(log, rows, "c"))
    assert [row for window in windows for row in window.rows] == written
    assert {window.generation.refines for window in windows} == {None, False}
