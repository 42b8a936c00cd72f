"""The search below the ring: right against brute force, and cheap in round trips."""

import itertools
import random
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapkv.layout import Mark
from snapkv.timeline.lookup import Anchors
from snapkv.timeline.search import (
    ORDINAL,
    PROBES_MAX,
    REVISION,
    TIMESTAMP,
    Block,
    Bracket,
    search,
    search_blocks,
)

pytestmark = pytest.mark.slow

FIELDS = (TIMESTAMP, REVISION, ORDINAL)


class History:
    """A time line with foreign revisions in it, read as the engine would be; counts the reading."""

    def __init__(self, marks):
        self.marks = marks
        self.revisions = [m.revision for m in marks]
        self.asked = []

    def at(self, revision):
        return self.marks[bisect_right(self.revisions, revision) - 1]

    def probe(self, revisions):
        revisions = list(revisions)
        assert 1 <= len(revisions) <= PROBES_MAX
        assert revisions == sorted(set(revisions)), "each revision is asked for once, in order"
        assert self.revisions[0] < revisions[0], "nothing is asked that is known"
        assert revisions[-1] < self.revisions[-1], "nothing is asked that is known"
        self.asked.append(revisions)
        return [self.at(revision) for revision in revisions]

    def read_block(self, revision, limit):
        """Read marks down from a revision, as an embedded engine does; the creation is none."""
        assert self.revisions[0] < revision < self.revisions[-1], "nothing is asked that is known"
        self.asked.append([revision])
        newest = bisect_right(self.revisions, revision)
        marks = [m for m in self.marks[max(0, newest - limit) : newest] if m.timestamp]
        columns = list(zip(*marks, strict=True)) or [(), (), (0,)]
        return Block(revision, columns[2][0], columns[0], columns[1])

    def probe_all(self):
        """Every mark that was read since `asked` was cleared."""
        return [self.at(revision) for revision in itertools.chain(*self.asked)]


def history(gaps):
    """Marks from the creation (timestamp 0) on; a gap is (milliseconds, foreign revisions)."""
    marks, timestamp, revision = [Mark(0, 2, 1)], 1_000_000, 2
    for ordinal, (time_gap, foreign) in enumerate(gaps, 2):
        timestamp += time_gap
        revision += 1 + foreign
        marks.append(Mark(timestamp, revision, ordinal))
    return History(marks)


GAPS = st.tuples(st.sampled_from([1, 2, 10, 1_000, 1 << 40]), st.sampled_from([0, 0, 1, 7, 300]))


@given(gaps=st.lists(GAPS, min_size=1, max_size=30), field=st.sampled_from(FIELDS), data=st.data())
def test_finds_what_brute_force_finds(gaps, field, data):
    line = history(gaps)
    low = data.draw(st.integers(0, len(line.marks) - 2))
    high = data.draw(st.integers(low + 1, len(line.marks) - 1))
    bounds = line.marks[low], line.marks[high]
    line.revisions, line.marks = line.revisions[low : high + 1], line.marks[low : high + 1]
    wanted = data.draw(st.integers(bounds[0][field], bounds[1][field] - 1))
    floor = max(m for m in line.marks if m[field] <= wanted)
    found, after = search(Bracket(field, wanted, *bounds), line.probe)
    assert found == floor
    assert after == line.marks[line.marks.index(floor) + 1] or after_is_known_enough(
        line, found, after
    )


@given(
    gaps=st.lists(GAPS, min_size=1, max_size=60),
    field=st.sampled_from(FIELDS),
    limit=st.sampled_from([1, 2, 3, 16]),
    data=st.data(),
)
def test_blocks_find_what_brute_force_finds(gaps, field, limit, data):
    line = history(gaps)
    low = data.draw(st.integers(0, len(line.marks) - 2))
    high = data.draw(st.integers(low + 1, len(line.marks) - 1))
    bounds = line.marks[low], line.marks[high]
    wanted = data.draw(st.integers(bounds[0][field], bounds[1][field] - 1))
    floor = max(m for m in line.marks if m[field] <= wanted)
    bracket = Bracket(field, wanted, *bounds)
    found = search_blocks(bracket, lambda revision: line.read_block(revision, limit))
    assert found == (floor, line.marks[line.marks.index(floor) + 1])
    width = bounds[1].revision - bounds[0].revision
    assert len(line.asked) <= 2 * width.bit_length()


def after_is_known_enough(line, found, after):
    """Whether nothing stamped lies between the two, which is all a reader needs."""
    return after == next(m for m in line.marks if m > found)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("foreign", [0, 1, 5, 127, 128, 129, 16_384])
def test_every_neighbourhood_of_every_mark(field, foreign):
    line = history([(1 + at % 3, foreign) for at in range(8)])
    for low, high in itertools.combinations(line.marks, 2):
        for mark in line.marks:
            for wanted in (mark[field] - 1, mark[field], mark[field] + 1):
                if low[field] <= wanted < high[field]:
                    expected = max(m for m in line.marks if m[field] <= wanted)
                    found, after = search(Bracket(field, wanted, low, high), line.probe)
                    assert found == expected
                    assert after == min(m for m in line.marks if m > found)


def test_starts_above_the_revision_up_to_which_low_is_known():
    line = history([(10, 0), (10, 1_000), (10, 0)])
    low, high = line.marks[1], line.marks[3]
    bracket = Bracket(TIMESTAMP, low.timestamp + 12, low, high, low.revision + 900)
    assert search(bracket, line.probe) == (line.marks[2], line.marks[3])
    assert min(itertools.chain(*line.asked)) > low.revision + 900


def test_neighbours_need_no_probe():
    line = history([(10, 0), (10, 400)])
    low, high = line.marks[1:3]
    assert search(Bracket(TIMESTAMP, low.timestamp + 3, low, high), line.probe) == (low, high)
    assert not line.asked


def test_what_the_probe_raises_passes_through():
    line = history([(10, 0)] * 9)

    def probe(revisions):
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        search(Bracket(TIMESTAMP, line.marks[4].timestamp, line.marks[0], line.marks[-1]), probe)


def steady(rng):
    return 1_000, 0


def steady_among_foreign(rng):
    return 1_000, rng.choice((0, 0, 0, 1, 2, 9))


def bursts(rng):
    return (1 if rng.random() < 0.97 else 60_000_000), 0


def heavy_tailed(rng):
    return 1 + int(1_000 * rng.paretovariate(0.6)), rng.choice((0, 0, 30))


def one_long_silence(rng):
    return (1 << 45 if rng.random() < 0.0002 else 1_000), 0


def long_history(pace, seed=1):
    """At least 30,000 revisions of commits at a pace."""
    rng = random.Random(seed)
    marks = [Mark(0, 2, 1), Mark(1_000_000, 3, 2)]
    while marks[-1].revision < 30_000:
        gap, foreign = pace(rng)
        last = marks[-1]
        marks.append(Mark(last.timestamp + gap, last.revision + 1 + foreign, last.ordinal + 1))
    return History(marks), rng


def round_trips(line, field, wanted, low, high):
    line.asked.clear()
    found, _ = search(Bracket(field, wanted[field], low, high), line.probe)
    assert found == wanted
    return len(line.asked)


PACES = [steady, steady_among_foreign, bursts, heavy_tailed, one_long_silence]


@pytest.mark.long_after(2)
@pytest.mark.parametrize("pace", PACES)
def test_a_first_search_of_30_000_revisions_takes_3_round_trips(pace):
    line, rng = long_history(pace)
    first, last = line.marks[0], line.marks[-1]
    counts = [
        round_trips(line, TIMESTAMP, mark, first, last)
        for mark in rng.sample(line.marks[1:-1], 1_000)
    ]
    assert sum(counts) / len(counts) <= 3
    assert max(counts) <= 6


@pytest.mark.long_after(2)
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("field", FIELDS)
def test_between_any_two_commits_it_never_takes_more_than_6(pace, field):
    line, rng = long_history(pace)
    for mark in rng.sample(line.marks[1:-1], 1_000):
        low = line.marks[rng.randrange(1, mark.ordinal)]
        high = line.marks[rng.randrange(mark.ordinal, len(line.marks))]
        assert round_trips(line, field, mark, low, high) <= 6


@pytest.mark.long_after(2)
@pytest.mark.parametrize("pace", PACES)
def test_a_first_search_of_30_000_revisions_takes_few_blocks(pace):
    line, rng = long_history(pace)
    first, last = line.marks[0], line.marks[-1]
    counts = []
    for mark in rng.sample(line.marks[1:-1], 1_000):
        line.asked.clear()
        bracket = Bracket(TIMESTAMP, mark.timestamp, first, last)
        assert search_blocks(bracket, lambda at: line.read_block(at, 128))[0] == mark
        counts.append(len(line.asked))
    assert sum(counts) / len(counts) <= 5
    assert max(counts) <= 2 * (30_000).bit_length()


@pytest.mark.long_after(2)
@pytest.mark.parametrize("pace", PACES)
def test_what_was_found_makes_later_searches_cheaper(pace):
    line, rng = long_history(pace)
    anchors, counts = Anchors(), []
    for mark in rng.sample(line.marks[1:-1], 1_000):
        low, high = anchors.around(TIMESTAMP, mark.timestamp)
        counts.append(
            round_trips(line, TIMESTAMP, mark, low or line.marks[0], high or line.marks[-1])
        )
        for found in line.probe_all():
            if found.ordinal > 1:
                anchors.add(found)
    anchors.check()
    assert sum(counts) / len(counts) <= 3
    assert sum(counts[-100:]) <= sum(counts[:100])
    assert max(counts) <= 6


def test_steady_commits_are_found_in_2():
    line, rng = long_history(steady)
    counts = [
        round_trips(line, TIMESTAMP, mark, line.marks[1], line.marks[-1])
        for mark in rng.sample(line.marks[2:-1], 1_000)
    ]
    assert sum(counts) / len(counts) <= 2.2


def test_a_single_guess_comes_first():
    line = history([(1_000, 0)] * 5_000)
    low, high = line.marks[1], line.marks[-1]
    search(Bracket(TIMESTAMP, line.marks[3_000].timestamp, low, high), line.probe)
    assert len(line.asked) <= 2
    assert len(line.asked[0]) == 1
    assert all(len(asked) <= PROBES_MAX for asked in line.asked)
