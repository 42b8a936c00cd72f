"""Searches for a text in values, and for the commits in which a value gained or lost it."""

import random

import pytest

import snapkv
import snapkv.reading.log
from snapkv import codecs
from snapkv.errors import InvalidOptionError

SEED = 20_261_129
KEYS = ["a", "a/1", "b", "c/1", "c/2"]
WORDS = ["web:1.25", "WEB:1.25", "beta", "web:1.25 web:1.25", ""]


def times(value: bytes | None, text: str, *, ignore_case: bool = False) -> int:
    found = (value or b"").decode()
    return (found.lower() if ignore_case else found).count(text.lower() if ignore_case else text)


@pytest.fixture
def made(store):
    """Commits of random values, each with the states before and after it."""
    rng, state, made = random.Random(SEED), dict[str, bytes](), []
    print(f"seed {SEED}")
    for _ in range(120):
        some = rng.sample(KEYS, rng.choice([0, 1, 1, 2, 4]))
        deletes = [key for key in some if key in state and rng.random() < 0.3]
        puts = {key: rng.choice(WORDS).encode() for key in some if key not in deletes}
        before = dict(state)
        state |= puts
        for key in deletes:
            del state[key]
        made.append((store.commit(puts=puts, deletes=deletes), before, dict(state)))
    return made


@pytest.mark.parametrize("pages", [(256, 64, 100), (5, 3, 2)])
def test_commits_of_a_text_are_those_of_a_model(store, made, monkeypatch, pages):
    """With small pages, too, so that a page ends anywhere, and with few counts in memory."""
    monkeypatch.setattr(snapkv.reading.log, "LOG_PAGE_COMMITS", pages[0])
    monkeypatch.setattr(snapkv.reading.log, "HELD_COMMITS_MAX", pages[1])
    monkeypatch.setattr(snapkv.reading.log, "COUNTS_MAX", pages[2])
    middle, late = made[40][0].ts, made[100][0].ts
    for text in ("web:1.25", "beta", "5 w", "nowhere"):
        for options in ({}, {"ignore_case": True}):
            expected = [
                commit
                for commit, before, after in made
                if any(
                    times(before.get(key), text, **options)
                    != times(after.get(key), text, **options)
                    for key in KEYS
                )
            ]
            assert list(store.commits(text=text, **options)) == expected
            newest = store.commits(text=text, newest_first=True, **options)
            assert list(newest) == expected[::-1]
            within = [each for each in expected if middle < each.ts <= late]
            assert list(store.commits(middle, late, text=text, **options)) == within
            assert list(store.commits(text=text, limit=2, **options)) == expected[:2]
    assert list(store.commits(text="nowhere")) == []


def test_a_search_returns_the_values_of_that_moment_in_order(store, made):
    for commit, _, state in made[::20]:
        expected = [(key, state[key]) for key in sorted(state) if times(state[key], "beta")]
        assert list(store.at(commit.ts).search("beta")) == expected
        below = [pair for pair in expected if pair[0].startswith("c/")]
        assert list(store.at(commit.ts).search("beta", "c/")) == below
        assert list(store.at(commit.ts).search("beta", limit=1)) == expected[:1]
    (_, _, state) = made[-1]
    found = [key for key, _ in store.at().search("WEB:1.25", ignore_case=True)]
    assert found == [
        key for key in sorted(state) if times(state[key], "web:1.25", ignore_case=True)
    ]


def test_a_search_decodes_what_it_returns_and_nothing_else(store):
    store.commit(puts={"a": b"{broken", "b": b'{"image": "web"}'})
    assert list(store.with_codec(codecs.json).at().search("web")) == [("b", {"image": "web"})]


@pytest.mark.parametrize("text", ["", "x" * 1_001])
def test_a_text_has_1_to_1000_bytes(store, text):
    with pytest.raises(InvalidOptionError, match="search for 1 to 1,000 bytes"):
        list(store.at().search(text))
    with pytest.raises(InvalidOptionError, match="search for 1 to 1,000 bytes"):
        store.commits(text=text)


def test_values_of_spaces_are_not_searched(store):
    store.space("jobs").commit(puts={b"k": b"beta"})
    assert list(store.commits(text="beta")) == []
