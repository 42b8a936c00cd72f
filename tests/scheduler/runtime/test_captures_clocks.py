"""Captures whose wall clocks are wrong, from the beginning or from some moment on, under load."""

import time
from contextlib import ExitStack
from itertools import product

import pytest
from etcd_server import shared_pool
from sampling import first_of

from snapkv.times import physical_ms

from . import program
from .fleet import Fleet, source_content
from .steps import FEED, PatientLoad, Steps, opened, tables

pytestmark = pytest.mark.slow

LABELS = ["c1", "c2", "c3"]
TABLES = tables(12)
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
REJECTED = "the local clock differs from the server's by"


class Clocks(Steps):
    """A fleet each capture of which has a clock of its own."""

    def start(self, **ahead_ms):
        for label, ms in ahead_ms.items():
            self.set(label, ms)
            clock = {program.CLOCK: str(self.file(label))}
            self.fleet.start(label, module="scheduler.runtime.program", **clock)

    def set(self, label, ms):
        """Let the clock of a capture be ahead from now on."""
        new = self.file(label).with_suffix(".new")
        new.write_text(str(ms))
        new.rename(self.file(label))

    def file(self, label):
        return self.fleet.folder / f"{label}.clock"


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def clocks_on(stack, url, folder):
    fleet = stack.enter_context(Fleet(url, folder))
    return Clocks(fleet, opened(stack, url), TABLES)


@pytest.fixture
def steps(stack, tmp_path):
    return clocks_on(stack, stack.enter_context(shared_pool().taken()).url, tmp_path)


@pytest.mark.soak  # the next one has wrong clocks, too, and jumps make them wrong
def test_captures_with_wrong_clocks_replicate_for_an_owner_with_a_right_one(steps, seed):
    steps.start(c1=0)
    steps.until(lambda: steps.leader() == "c1", "c1 to lead")
    steps.start(c2=HOUR_MS, c3=-HOUR_MS)
    steps.begin(*LABELS)
    with PatientLoad(steps.store, TABLES, seed) as load:
        steps.until_written(load)
        steps.fleet.kill("c2")
        steps.until_shared("c1", "c3")
        steps.until_written(load)
    steps.check_end(load)


@pytest.mark.long
def test_a_capture_whose_clock_is_wrong_writes_to_no_store(steps, stack, seed):
    steps.start(c1=0)
    steps.until(lambda: steps.leader() == "c1", "c1 to lead")
    steps.start(c2=HOUR_MS, c3=-HOUR_MS)
    steps.until_registered(*LABELS)
    steps.store.multi_save({f"{table}first": b"1" for table in TABLES})
    url, start = steps.fleet.url, steps.store.resolved()
    mirror = opened(stack, url, name="mirror")
    names = {"sink_name": "mirror", "with_state": True}
    steps.feeds.create(FEED, url, url, TABLES, start=start, **names)
    with PatientLoad(steps.store, TABLES, seed) as load:
        steps.until(lambda: load.done > 100, "the load")
    steps.until(
        lambda: source_content(mirror) == source_content(steps.store), "the sink to have all of it"
    )
    newest = max(ts for commits in load.commits.values() for ts in commits)
    steps.until(lambda: steps.feeds.checkpoint(FEED).checkpoint >= newest, "the checkpoint")
    latest_ms = max(physical_ms(commit.ts) for commit in mirror.commits())
    assert latest_ms < time.time() * 1_000 + MINUTE_MS
    reasons = {each.why for table in TABLES for each in steps.feeds.history(FEED, table)}
    for label in ("c2", "c3"):
        assert any(why.startswith(f"it failed on {label}-") for why in reasons), reasons


@pytest.mark.long
def test_clocks_that_differ_a_little_change_nothing(steps, seed):
    steps.start(c1=0, c2=2_000, c3=-2_000)
    steps.begin(*LABELS)
    with PatientLoad(steps.store, TABLES, seed) as load:
        owner = steps.leader()
        rest = [label for label in LABELS if label != owner]
        steps.until_written(load)
        steps.fleet.kill(owner)
        steps.until_shared(*rest)
        steps.until_written(load)
    steps.check_end(load)
    log = steps.fleet.log()
    assert "ClockWarning" not in log
    assert REJECTED not in log


@pytest.mark.long
@pytest.mark.parametrize(
    ("who", "ahead_ms"),
    first_of(product(["another", "owner"], [HOUR_MS, -HOUR_MS]), one_in=4),
)
def test_a_clock_jumps(steps, seed, who, ahead_ms):
    steps.start(c1=0, c2=0, c3=0)
    steps.begin(*LABELS)
    with PatientLoad(steps.store, TABLES, seed) as load:
        owner = steps.leader()
        other, lost = (label for label in LABELS if label != owner)
        wrong = owner if who == "owner" else other
        steps.set(wrong, ahead_ms)
        steps.until_written(load)
        steps.fleet.kill(lost)
        steps.until_written(load)
        steps.check_writers()
        steps.set(wrong, 0)
        steps.until_shared(owner, other)
        steps.until_written(load)
    steps.check_end(load)


def test_all_captures_of_a_machine_follow_the_fastest_clock(stack, tmp_path, seed):
    steps = clocks_on(stack, f"lmdb:{tmp_path / 'meta'}", tmp_path)
    steps.start(c1=0, c2=HOUR_MS, c3=-HOUR_MS)
    steps.begin(*LABELS)
    with PatientLoad(steps.store, TABLES, seed) as load:
        steps.until_written(load)
        owner = steps.leader()
        steps.fleet.kill(owner)
        steps.until_shared(*(label for label in LABELS if label != owner))
        steps.until_written(load)
    steps.check_end(load)


@pytest.mark.parametrize("ahead_ms", first_of([HOUR_MS, -HOUR_MS], one_in=2))
def test_an_owner_whose_clock_is_wrong_makes_way_for_another(steps, seed, ahead_ms):
    steps.start(c1=ahead_ms)
    steps.until(lambda: "c1" in steps.registered(), "c1")
    steps.start(c2=0, c3=0)
    steps.begin(*LABELS)
    with PatientLoad(steps.store, TABLES, seed) as load:
        steps.until_written(load)
    steps.check_end(load)
    assert steps.leader() != "c1"
