"""Topologies: how they are made, what holds of them, how they are stored."""

import random
from collections.abc import Mapping

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from cdcmeta.errors import CorruptTopologyError, InvalidArgumentError
from cdcmeta.generations.streams import RANGES_MAX, StreamId, has_duplicates
from cdcmeta.generations.tokens import TOKEN_MAX, TOKEN_MIN, Sharding, murmur3_token
from cdcmeta.generations.topology import Topology
from tests.generations.vectors import VECTORS

pytestmark = pytest.mark.slow

tokens = st.integers(TOKEN_MIN, TOKEN_MAX)
crowded = st.integers(-9, 9) | st.sampled_from([TOKEN_MIN, TOKEN_MIN + 1, TOKEN_MAX - 1, TOKEN_MAX])
shardings = st.builds(Sharding, st.integers(1, 9), st.sampled_from([0, 1, 12, 31]))
rings = st.dictionaries(tokens | crowded, shardings, min_size=1, max_size=12)


@pytest.mark.parametrize("vector", VECTORS["topologies"], ids=lambda vector: vector["name"])
def test_topologies_that_were_computed_elsewhere(vector):
    ring = {int(token): Sharding(*sharding) for token, sharding in vector["ends"].items()}
    topology = Topology.make(ring)
    assert [[stream.token for stream in each.streams] for each in topology] == vector[
        "stream_tokens"
    ]
    for token, entry, shard in vector.get("lookups", []):
        assert topology.stream_for(token) == topology[entry].streams[shard]


def test_the_published_generation():
    """Three of the 256 ranges that ScyllaDB's documentation shows, in the order of shards."""
    texts = "7ffe0c687fcce86d", "807ae73e07dbd411", "80838c6b76e19a1b", "80c5343222b6eee5"
    ends = [int.from_bytes(bytes.fromhex(text), "big", signed=True) for text in texts]
    topology = Topology.make(dict.fromkeys(ends, Sharding(3)))
    ranges = {each.end: each for each in topology}
    shown = [[stream.raw[:8].hex() for stream in ranges[end].streams] for end in ends[1:]]
    assert shown == [
        ["8000000000000001", "8005555555555556", "7ffe0c687fcce86e"],
        ["8080000000000000", "80838c6b76e19a1b", "807ae73e07dbd412"],
        ["80838c6b76e19a1c", "8085555555555556", "808aaaaaaaaaaaab"],
    ]


@given(rings, st.lists(tokens | crowded, max_size=20))
def test_each_token_is_mapped_into_its_own_range(ring, some):
    topology = Topology.make(ring)
    assert topology.check() == []
    assert [each.end for each in topology] == sorted(ring)
    for token in [*some, *ring]:
        own, stream = topology.range_of(token), topology.stream_for(token)
        shard = ring[own.end].shard_of(token)
        assert stream == own.streams[shard]
        inside = own.start < token <= own.end
        assert inside or (own.start >= own.end and (token > own.start or token <= own.end))
    found = topology.streams_for(np.array([*some, *ring]))
    assert [StreamId(bytes(each)) for each in found] == [
        topology.stream_for(token) for token in [*some, *ring]
    ]


@given(rings)
def test_each_shard_owns_its_stream_s_token_or_takes_the_end(ring):
    for at, each in enumerate(Topology.make(ring)):
        assert (len(each.streams), each.ignore_msb) == tuple(ring[each.end])
        for shard, stream in enumerate(each.streams):
            owner = each.sharding.shard_of(stream.token)
            assert owner == shard or stream.token == each.end
            assert stream.token == each.sharding.first_token_for_shard(each.start, each.end, shard)
            assert stream.index == at
        assert len(set(each.streams)) == len(each.streams)


@given(rings)
def test_it_is_stored_as_a_row_for_each_range(ring):
    topology = Topology.make(ring)
    rows = list(topology.rows())
    assert rows == sorted(rows)
    random.Random(5).shuffle(rows)
    loaded = Topology.of_rows(rows)
    assert loaded == topology
    assert list(loaded) == list(topology)
    assert loaded.shardings() == ring
    assert topology != Topology.make(ring)  # other random parts


def test_random_parts_come_from_where_they_are_told():
    ring = {100: Sharding(4), 110: Sharding(4)}
    first, second = (Topology.make(ring, random_bytes=random.Random(7).randbytes) for _ in "ab")
    assert first == second
    assert len({stream.random for each in first for stream in each.streams}) == 8
    with pytest.raises(InvalidArgumentError, match="repeats itself"):
        Topology.make(ring, random_bytes=bytes)
    for few in (lambda _: b"", lambda _: bytes(8)):  # one number for all would do for NumPy
        with pytest.raises(InvalidArgumentError, match=r"random_bytes\(64\) returned \d+ bytes"):
            Topology.make(ring, random_bytes=few)


@pytest.mark.long
def test_100_nodes_of_256_vnodes_and_64_shards():
    rng = random.Random(11)
    ring = {rng.randint(TOKEN_MIN, TOKEN_MAX): Sharding(64) for _ in range(25_600)}
    topology = Topology.make(ring, random_bytes=rng.randbytes)
    assert (len(topology), topology.stream_count) == (25_600, 1_638_400)
    assert topology.check() == []
    rows = list(topology.rows())
    assert max(len(value) for _, value in rows) == 1 + 64 * 16
    assert Topology.of_rows(rows) == topology
    key = rng.randbytes(16)
    assert topology.stream_for(murmur3_token(key)) in topology.range_of(murmur3_token(key)).streams


# --- what cannot be ---


@pytest.mark.parametrize(
    "ring",
    [{}, {TOKEN_MIN - 1: (1, 12)}, {2**63: (1, 12)}, {"5": (1, 12)}, {5: (0, 12)}, {5: (1, 40)}],
)
def test_rings_that_cannot_be(ring):
    with pytest.raises(InvalidArgumentError):
        Topology.make({token: Sharding(*sharding) for token, sharding in ring.items()})


@cases(
    "ring",
    [None, [1, 2], "ring", {0: 4}, {0: None}, {0: (1, 2, 3)}, {"x": Sharding(1), 5: Sharding(1)}],
)
def test_what_is_no_ring(ring, log):
    with pytest.raises(InvalidArgumentError):
        Topology.make(ring)
    for make in (log.make, log.regenerate_if_needed):
        with pytest.raises(InvalidArgumentError):
            make(ring)
    assert (log.generations(), log.pending()) == ([], None)


def test_a_ring_is_the_same_however_its_shardings_are_written(log):
    made = log.make({0: Sharding(2)})
    assert log.regenerate_if_needed({0: (2,)}) == made
    assert log.regenerate_if_needed({0: (2, 12)}) == made
    assert log.regenerate_if_needed({0: (2, 11)}) != made


class Endless(Mapping):
    """A ring of more tokens than there are indexes, without the memory."""

    def __len__(self):
        return RANGES_MAX + 1

    def __iter__(self):
        return iter(range(len(self)))

    def __getitem__(self, token):
        return Sharding(1)


def test_more_ranges_than_indexes():
    with pytest.raises(InvalidArgumentError, match="4,194,305 ranges, more than 4,194,304"):
        Topology.make(Endless())


# --- tokens that are none, or NumPy's ---


@pytest.mark.parametrize("ignore_msb", [0, 1, 2, 12])
def test_a_token_of_numpy_is_a_token(ignore_msb):
    """Its 64 bits would wrap around in the middle of a product."""
    rng = random.Random(ignore_msb)
    ring = {rng.randint(TOKEN_MIN, TOKEN_MAX): Sharding(4096, ignore_msb) for _ in range(3)}
    topology = Topology.make(ring)
    for token in np.array([rng.randint(TOKEN_MIN, TOKEN_MAX) for _ in range(50)]):
        assert topology.stream_for(token) == topology.stream_for(int(token)), (ignore_msb, token)


@pytest.mark.parametrize("shardings", [(2, 2), (2, 3)], ids=["alike", "mixed"])
def test_tokens_that_are_none(shardings):
    topology = Topology.make(dict(zip((-5, 5), map(Sharding, shardings), strict=True)))
    for wrong in (1.0, float("nan"), "7", None, True, np.float64(7)):
        with pytest.raises(InvalidArgumentError):
            topology.stream_for(wrong)
    for wrong in ([7], [7.0], np.array([7], np.int32), np.array([7], np.uint64), np.array([[7]])):
        with pytest.raises(InvalidArgumentError):
            topology.streams_for(wrong if isinstance(wrong, np.ndarray) else np.array(wrong, "f8"))
    with pytest.raises(InvalidArgumentError):
        topology.streams_for([7])
    assert topology.streams_for(np.empty(0, np.int64)).tolist() == []
    least = np.array([TOKEN_MIN - 1])  # before all keys, which is in the first range
    assert topology.stream_for(int(least[0])).raw == bytes(topology.streams_for(least)[0])


RING = {-5: Sharding(2), 5: Sharding(3)}


def spoiled(change):
    rows = dict(Topology.make(RING, random_bytes=random.Random(3).randbytes).rows())
    first, second = sorted(rows)
    change(rows, first, second)
    return rows.items()


def swap(rows, first, _):
    value = rows[first]
    rows[first] = value[:1] + value[17:33] + value[1:17]


def another_index(rows, first, second):
    rows[first] = rows[first][:1] + rows[second][1:33]


def token_of(which, token):
    """Return what gives the first stream of a range another token."""

    def change(rows, *keys):
        value = rows[keys[which]]
        rows[keys[which]] = value[:1] + token.to_bytes(8, "big", signed=True) + value[9:]

    return change


def another_version(rows, first, _):
    rows[first] = rows[first][:-1] + bytes([rows[first][-1] ^ 1])


def another_slicing(rows, first, _):
    rows[first] = b"\x00" + rows[first][1:]


def twice(rows, first, second):
    tiny = dict(Topology.make({0: Sharding(1), 1: Sharding(3)}).rows())
    rows.clear()
    rows |= tiny
    key = max(tiny)
    rows[key] = tiny[key][:17] + tiny[key][33:] * 2  # two shards of (0, 1] have no token


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows, *_: rows.clear(), "no ranges"),
        (lambda rows, first, _: rows.update({first: b"\x0c"}), "has no streams"),
        (lambda rows, first, _: rows.update({first: b""}), "not a row"),
        (lambda rows, first, _: rows.update({first: rows[first] + b"x"}), "not a row"),
        (lambda rows, first, _: rows.update({first: b"\x20" + rows[first][1:]}), "not a row"),
        (lambda rows, first, _: rows.update({first + b"x": rows.pop(first)}), "not a row"),
        (lambda rows, first, _: rows.update({bytes(8): rows.pop(first)}), "ascend"),
        (swap, "another shard"),
        (another_slicing, "another shard"),
        (another_index, "another index"),
        (token_of(0, 4), "outside"),
        (token_of(0, 5), "outside"),  # where the range begins, which is not in it
        (token_of(1, -5), "outside"),
        (token_of(1, 6), "outside"),
        (token_of(0, TOKEN_MIN - 1), "outside"),  # no key's token
        (another_version, "another version"),
        (twice, "twice"),
    ],
)
def test_rows_that_are_no_topology(change, why):
    Topology.of_rows(spoiled(lambda *_: None))
    with pytest.raises(CorruptTopologyError, match=why):
        Topology.of_rows(spoiled(change))


def test_not_all_of_many_problems_are_told():
    rows = Topology.make(dict.fromkeys(range(0, 1200, 100), Sharding(1))).rows()
    with pytest.raises(CorruptTopologyError) as caught:
        Topology.of_rows([(key, value[:-1] + b"\x02") for key, value in rows])
    told = str(caught.value).split("; ")
    assert told[0] == "range 0 (up to 0) has a stream of another version"
    assert told[10] == "2 more ranges, too"


# --- limits ---


def make_limited(counts, streams_max, limit=True):
    ring = {token: Sharding(count) for token, count in enumerate(counts)}
    topology = Topology.make(ring, streams_max=streams_max, limit=limit)
    assert topology.check() == []
    return [len(each.streams) for each in topology]


@pytest.mark.long
def test_limit_number_of_streams():
    """scylla: test_cdc_generation_limitting."""
    most = 262_144
    assert make_limited([most], most) == [most]
    assert make_limited([most + 1], most) == [most]
    several = list(range(1, 724))  # 261,726 together
    assert make_limited(several, most) == several
    one_too_many = [*several, 419]
    assert make_limited(one_too_many, most) == [min(count, 362) for count in one_too_many]


def test_each_range_keeps_a_stream():
    assert make_limited([3, 1, 2], 2) == [1, 1, 1]
    assert make_limited([3, 3], 4) == [2, 2]


def test_too_many_streams_are_an_error_unless_cut():
    with pytest.raises(InvalidArgumentError, match="7 streams, more than 6"):
        make_limited([3, 4], 6, limit=False)
    assert make_limited([3, 4], 7, limit=False) == [3, 4]
    for wrong in (0, -1, True, "9"):
        with pytest.raises(InvalidArgumentError, match="streams_max"):
            make_limited([3, 4], wrong)


def test_two_are_the_same_where_counts_differ_with_one_as_their_mean():
    counts = np.array([1, 4, 3, 3, 4])
    low = np.repeat(np.arange(5), counts) * 16 + np.arange(15)
    low[9] = low[8]
    at_end = np.isin(np.arange(15), (8, 9))
    assert has_duplicates(low.astype(np.uint64), counts, at_end)


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_what_is_there_twice(data, counts):
    """Two are the same at the end of one range; elsewhere the token tells them apart."""
    index = np.repeat(np.arange(len(counts)), counts)
    random_parts = data.draw(st.lists(st.integers(0, 3), min_size=len(index), max_size=len(index)))
    at_end = data.draw(st.lists(st.booleans(), min_size=len(index), max_size=len(index)))
    low = (index * 16 + np.array(random_parts)).astype(np.uint64)
    seen = [each for each, end in zip(low.tolist(), at_end, strict=True) if end]
    found = has_duplicates(low, np.array(counts), np.array(at_end))
    assert found == (len(seen) > len(set(seen)))
