"""Every record equals its source, after any sequence of commits of any size.

The source and the target are any two engines, the source a store or an observed prefix. The model
is a dict for each moment, kept by the test. The targets are small, so that commits need parts.
"""

import hashlib
import random

import pytest
from etcd_server import shared_pool
from sampling import SOAK, first_of
from store.engines import write_raw

import snapkv
from snapkv.engine.contract import Delete, Put

SIZES = (1, 2, 5, 126, 127, 300) + ((5_000,) if SOAK else ())
VALUES = (0, 1, 40, 2_000, 30_000)
LIMITS = {
    "archive": {},
    "lmdb": {"request_bytes_max": 64 << 10, "durability": "none"},
    "etcd": {"max_request_bytes": 64 << 10},
}
PREFIX = "config/"
CASES = [
    (source, observed, target)
    for target in LIMITS
    for observed in (False, True)
    for source in ("memory", "lmdb", "etcd")
]


class History:
    """Random commits of a source, and the state after each."""

    def __init__(self, place, store, clock, rng, *, observed):
        self._store, self._clock, self._rng, self._observed = store, clock, rng, observed
        self._engine = place.engine()
        self._now = {}
        self.states = []
        """The time of each commit, of a prefix its revision, with the keys and values then."""

    def step(self):
        rng = self._rng
        self._clock.advance(rng.choice([0, 0, 1, 900]))
        kind = rng.random()
        if kind < 0.2 and self._now:
            start = rng.choice(sorted(self._now))[: rng.randrange(len(PREFIX), 12)]
            removed = [key for key in self._now if key.startswith(start)]
            self._commit({}, removed)
            return
        size = rng.choice(SIZES)
        keys = {self._key() for _ in range(size)}
        length = rng.choice(VALUES[: 3 if size > 5 else None])
        puts = {key: rng.randbytes(length) for key in keys}
        removed = rng.sample(sorted(self._now), len(self._now) // 9)
        self._commit(puts, [key for key in removed if key not in puts])

    def _key(self):
        rng = self._rng
        key = f"{PREFIX}{rng.choice('abc')}/{rng.randrange(2_000)}"
        if rng.random() < 0.02 and self._engine.limits.key_bytes > 1_000:
            key += "n" * rng.choice([500, 900])
        if self._observed and rng.random() < 0.02:
            key += "\udcff"  # a byte that is not UTF-8
        return key

    def _commit(self, puts, removed):
        for key in removed:
            del self._now[key]
        self._now |= puts
        if not self._observed:
            at = self._store.commit(puts=puts, deletes=removed).ts
        else:
            ops = [Put(_raw(key), value) for key, value in puts.items()]
            at = self._write([*ops, *(Delete(_raw(key)) for key in removed)])
        self.states.append((at, dict(self._now)))

    def _write(self, ops):
        """Write as another program does; what is too large for it takes several revisions."""
        at = 0
        for start in range(0, len(ops), 100):
            at = write_raw(self._engine, *ops[start : start + 100])
        return at


def _raw(key):
    return key.encode(errors="surrogateescape")


def held(recorded, at):
    """All keys and values that a record has at a time, with their full names."""
    found = {_raw(key): value for key, value in recorded.at(at).items()}
    found |= dict(recorded.space("not-utf-8").at(at).items())
    names = dict(recorded.space("long-key-names").at(at).items())
    for short, value in recorded.space("long-keys").at(at).items():
        stored = names.pop(short)
        assert short.endswith(hashlib.sha256(stored).hexdigest().encode())
        found[stored.removeprefix(b"data/").removeprefix(b"space/not-utf-8/")] = value
    assert not names
    return found


@pytest.fixture
def target(request, tmp_path):
    """The URL of a target, and the options of its engine."""
    if request.param != "etcd":
        url = f"lmdb:{tmp_path / 'r'}" if request.param == "lmdb" else str(tmp_path / "r")
        yield url, LIMITS[request.param]
        return
    with shared_pool().taken() as server:
        yield server.url, LIMITS["etcd"]


@pytest.mark.parametrize(
    ("place", "observed", "target"), first_of(CASES, one_in=4), indirect=["place", "target"]
)
@pytest.mark.parametrize("round_", range(5 if SOAK else 1))
def test_a_record_equals_its_source(place, store, clock, target, observed, round_):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng, (url, own) = random.Random(seed), target
    history = History(place, store, clock, rng, observed=observed)
    options = {"into_options": own} if ":" in url else {}
    options |= {"observe": PREFIX} if observed else {}
    store.save("first", b"")

    def record():
        snapkv.record(
            place.url, into=url, options=place.kind.options, clock=clock, **options
        ).catch_up()

    record()
    for _ in range(rng.randrange(2, 4)):
        for _ in range(rng.randrange(1, 5)):
            history.step()
        record()
    opening = snapkv.open(url, clock=clock, **own) if ":" in url else snapkv.open_archive(url)
    with opening as recorded:
        whole = [c for c in recorded.commits() if not (c.note or "").startswith("part ")]
        times = {c.source_revision or c.revision: c.ts for c in reversed(whole)}
        for at, state in history.states:
            expected = {_raw(key): value for key, value in state.items()}
            found = held(recorded, times[at] if observed else at)
            assert {key: value for key, value in found.items() if key != b"first"} == expected
        if not observed:
            assert [c.ts for c in whole] == [c.ts for c in store.commits()]
        assert recorded.check().problems == ()
