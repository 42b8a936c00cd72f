"""`record(keep=)` drops what is older than it says and nothing else, in each kind of target."""

import random

import pytest

import snapkv
from snapkv import CompactedError, pack

KEEP_MS = 3_600_000
ROUNDS = 12


@pytest.mark.long_after(1)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("target", ["lmdb:", ""])
@pytest.mark.parametrize("place", ["memory", "lmdb"], indirect=True)
def test_keep_of_a_record_drops_what_is_older_and_nothing_else(
    place, store, clock, tmp_path, target, seed
):
    print(f"seed {seed}")
    rng, into = random.Random(seed), f"{target}{tmp_path}/record"
    options = dict(place.kind.options)
    recorder = snapkv.record(place.url, into=into, keep="1h", clock=clock, options=options)
    now, states = {}, []
    for _ in range(ROUNDS):
        for _ in range(rng.randrange(1, 6)):
            clock.advance(rng.choice([1, 60_000, 700_000]))
            puts = {key: rng.randbytes(3) for key in rng.sample("abcd", rng.randrange(3))}
            now = now | puts
            states.append((store.commit(puts=puts).ts, dict(now)))
        recorder.catch_up()
        horizon = pack(clock.now_ms() - KEEP_MS)
        with opened(into) as record:
            for ts, state in states:
                if ts >= horizon:
                    assert dict(record.at(ts).items()) == state
            in_force = [state for ts, state in states if ts <= horizon][-1:]
            for state in in_force:
                assert dict(record.at(horizon).items()) == state
    assert dict(store.at(states[0][0]).items()) == states[0][1], "the source loses nothing"
    clock.advance(24 * KEEP_MS)
    for _ in range(2):
        states.append((store.save("a", b"last"), now | {"a": b"last"}))
        recorder.catch_up()
        clock.advance(2 * KEEP_MS)
    with opened(into) as record:
        with pytest.raises(CompactedError):
            record.load("a", states[0][0])
        assert dict(record.at().items()) == states[-1][1]


def opened(into):
    if into.startswith("lmdb:"):
        return snapkv.open(into, create=False)
    return snapkv.open_archive(into)
