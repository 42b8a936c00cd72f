"""What the pages show is what a plain walk over the whole history finds."""

import random
from collections import Counter

import pytest

from snapkv import pack
from snapkv.errors import CompactedError, InvalidOptionError, InvalidTimeError, StoreRestoredError
from snapkv.times import physical_ms
from snapkv.ui.commit_list import commit_at, steps_back, steps_on
from snapkv.ui.key_differences import child_of, differences, kind_of
from snapkv.ui.key_listings import level, search
from snapkv.ui.key_versions import versions_back
from snapkv.ui.page_answers import status_of
from snapkv.ui.page_source import Source
from snapkv.ui.time_bar import bar, span_of
from snapkv.ui.url_state import State

from .histories import KEYS, none, plenty, write
from .served import Served

COMMITS = 60


@pytest.fixture(params=[1, 2])
def rng(request):
    return random.Random(request.param)


@pytest.fixture
def made(store, clock, rng):
    return write(store, clock, rng, COMMITS)


@pytest.fixture
def source(store, made):
    return Source(store)


def test_each_bucket_of_the_bar_counts_its_commits(source, made, rng):
    first, last = physical_ms(made[0]), physical_ms(made[-1])
    spans = [span_of(source, "all", None), (first, last), (first - 5_000, first + 1)]
    for _ in range(20):
        low, high = sorted((rng.randrange(first, last), rng.randrange(first, last)))
        spans.append((low, high + 1))
    for start, end in spans:
        found = bar(source, start, end, buckets_max=rng.choice([3, 17, 160]))
        assert found.start_ms <= start < end <= found.end_ms
        assert [each.count for each in found.buckets] == [
            sum(each.start_ms <= physical_ms(ts) < each.end_ms for ts in made)
            for each in found.buckets
        ]
        assert found.final_ms == last
    assert bar(source, *span_of(source, "all", None)).total == COMMITS


def test_a_bar_of_an_empty_store_has_no_commits(place, clock):
    source = Source(place.open(clock=clock))
    found = bar(source, *span_of(source, "all", None))
    assert found.total == 0
    assert found.end_ms >= clock.now_ms()


def test_spans_end_now_or_at_the_moment(source, clock, made):
    assert span_of(source, "15m", None) == (clock.now_ms() - 900_000, clock.now_ms())
    assert span_of(source, "1h", 7_200_000)[0] == 3_600_001
    assert span_of(source, "5000..3000", None) == (3_000, 5_000)
    for text in ("x", "1..y", "-1..2", "1h..2h"):
        with pytest.raises((InvalidOptionError, InvalidTimeError)):
            span_of(source, text, None)


def test_the_differences_of_any_range_are_those_of_the_states(source, store, made, rng):
    for _ in range(15):
        before, after = rng.choice([0, *made]), rng.choice([None, *made])
        prefix = rng.choice(["", "a/", "a/b", "zwei/", "nothing"])
        states = [dict(store.at(when).items(prefix or None)) for when in (before, after)]
        wanted = {
            key: (states[0].get(key), states[1].get(key))
            for key in sorted(states[0].keys() | states[1].keys(), key=str.encode)
            if states[0].get(key) != states[1].get(key)
        }
        found = differences(source, before, after, prefix, budget=plenty())
        assert {each.key: (each.before, each.after) for each in found.rows} == wanted
        assert found.complete
        assert found.after is None
        kinds = {key: kind_of(*pair) for key, pair in wanted.items()}
        assert found.counts == Counter(kinds.values())
        children: dict[str, Counter[str]] = {}
        for key, kind in kinds.items():
            children.setdefault(child_of(key, prefix), Counter())[kind] += 1
        assert found.children == children


def test_pages_of_differences_join_to_the_whole(source, made):
    whole = differences(source, 0, None, budget=plenty())
    pages, start = [], None
    while True:
        page = differences(source, 0, None, start=start, limit=2, budget=plenty())
        assert page.total == whole.total - len(pages)
        pages += page.rows
        start = page.after
        if start is None:
            break
    assert pages == whole.rows


def test_without_time_pages_are_shorter_but_join_to_the_whole(store):
    source, names = Source(store), [f"k/{number:04}" for number in range(2_500)]
    for low in range(0, len(names), 100):
        store.commit(puts=dict.fromkeys(names[low : low + 100], b"1"))
    found, start, pages = [], None, 0
    while True:
        page = differences(source, 0, None, start=start, limit=2_000, budget=none())
        found, start, pages = found + [each.key for each in page.rows], page.after, pages + 1
        assert page.complete == (start is None)
        if start is None:
            break
    assert (found, pages > 1) == (names, True)
    found, after = [], None
    while True:
        part = level(source, None, "k/", after=after, limit=2_000, budget=none())
        found, after = found + [each.path for each in part.nodes], part.after
        assert part.nodes
        if after is None or len(found) > 5:
            break
    assert found == names[: len(found)]


def test_each_level_of_the_tree_has_the_children_of_its_prefix(source, store, made, rng):
    for _ in range(20):
        when = rng.choice([None, *made])
        prefix = rng.choice(["", "a/", "a/b/", "a/b", "b/", "/", "nothing/"])
        wanted = {}
        for key, entry in store.at(when).entries(prefix or None):
            folder = key.find("/", len(prefix)) >= 0
            wanted[child_of(key, prefix)] = None if folder else (len(entry.value), entry.revision)
        whole = level(source, when, prefix, budget=plenty())
        shown = {
            each.path: None if each.folder else (each.size, each.revision) for each in whole.nodes
        }
        assert shown == wanted
        assert [each.path for each in whole.nodes] == sorted(wanted, key=str.encode)
        pages, after = [], None
        while True:
            page = level(source, when, prefix, after=after, limit=2, budget=plenty())
            pages += page.nodes
            after = page.after
            if after is None:
                break
        assert pages == whole.nodes


def test_the_tree_shows_what_changed_and_what_is_gone(source, made, rng):
    for _ in range(15):
        since, until = rng.choice([0, *made]), rng.choice([None, *made])
        prefix = rng.choice(["", "a/", "a/b/"])
        found = level(source, until, prefix, since=since, compared=True, budget=plenty())
        changed = differences(source, since, until, prefix, budget=plenty()).children
        assert {each.path: each.changed for each in found.nodes if each.changed} == changed
        now = {each.path for each in level(source, until, prefix, budget=plenty()).nodes}
        assert {each.path for each in found.nodes if each.gone} == changed.keys() - now
        assert found.complete


def test_the_filter_of_a_level_keeps_names_that_contain_it(source, store):
    names = {each.name for each in level(source, None, budget=plenty()).nodes}
    found = {each.name for each in level(source, None, name="ZW", budget=plenty()).nodes}
    assert found == {name for name in names if "zw" in name}


def test_commits_go_back_and_forth(source, store, made, rng):
    log = [each for each in store.commits() if not _is_tick(store, each)]
    for _ in range(10):
        until, limit = rng.choice([None, *made]), rng.choice([1, 5, 100])
        wanted = [each for each in log if until is None or each.ts <= until]
        pages, at = [], until
        while True:
            page = steps_back(source, at, limit=limit, budget=plenty())
            pages += page.steps
            if page.following is None:
                break
            at = f"rev:{page.following}"
        assert [(each.timestamp, each.note, each.writer) for each in reversed(pages)] == [
            (each.ts, each.note, each.writer) for each in wanted
        ]
        (first,) = steps_on(source, until, budget=plenty()).steps or [None]
        after = [each.ts for each in log if until is not None and each.ts > until]
        assert (first and first.timestamp) == (after[0] if after else None)


def _is_tick(store, commit):
    changes = [
        each for each in store.watch(since=commit.ts - 1, timeout=0) if each.commit == commit
    ]
    spaces = list(store.space("s/%").changes_to_arrow(None, commit.ts - 1, commit.ts).to_pylist())
    return not changes and not spaces and commit.note is None


def test_commits_of_a_prefix_and_of_a_range(source, store, made):
    watched = list(store.watch("a/", since=0, timeout=0))
    found = steps_back(source, None, prefix="a/", limit=1_000, budget=plenty())
    assert [each.timestamp for each in found.steps] == [each.commit.ts for each in watched][::-1]
    middle = made[COMMITS // 2]
    found = steps_back(source, None, since=middle, prefix="a/", limit=1_000, budget=plenty())
    after = [each.commit.ts for each in watched if each.commit.ts > middle]
    assert [each.timestamp for each in found.steps] == after[::-1]


def test_a_commit_has_all_that_it_changed(source, store, made):
    for ts in made:
        before, after = dict(store.at(ts - 1).items()), dict(store.at(ts).items())
        page = commit_at(source, ts, limit=100)
        assert page.step.timestamp == ts
        rows = {each.key: (each.before, each.after) for each in page.rows}
        changed = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
        assert changed <= rows.keys()  # a key may be written with the value that it had
        assert rows == {key: (before.get(key), after.get(key)) for key in rows}
        assert page.step.total == len(rows)
    big = commit_at(source, made[-1], limit=0)
    assert len(big.rows) == 0
    assert big.more == big.step.total


def test_a_commit_has_its_facts(source, store):
    commit = store.commit(puts={"a": b"new"}, writer="<ann>", meta={"ticket": 4, "<b>": "r-17"})
    step = commit_at(source, commit.ts, limit=1).step
    assert (step.writer, step.meta) == ("<ann>", {"ticket": 4, "<b>": "r-17"})


def test_the_versions_of_each_key_go_back_to_its_first(source, store, made, rng):
    for key in KEYS:
        until = rng.choice([None, *made])
        wanted = [v for v in store.history(key) if until is None or v.ts <= until]
        for limit in (1, 3, 100):
            pages, at = [], until
            while True:
                page = versions_back(source, key, at, limit=limit, budget=plenty())
                assert len(page.versions) <= limit
                pages += page.versions
                if page.following is None:
                    break
                at = f"rev:{page.following}"
            assert pages == wanted[::-1], (key, until, limit)


def test_a_search_finds_keys_and_values(source, store, rng):
    for text, where in (
        ("A/", "keys"),
        ("3", "values"),
        ("1", "both"),
        ("ü", "keys"),
        ("zz", "both"),
    ):
        wanted = [
            key
            for key, value in store.at().items()
            if (where != "values" and text.lower() in key.lower())
            or (where != "keys" and text.encode() in value)
        ]
        pages, after = [], None
        while True:
            page = search(source, None, text, where=where, after=after, limit=2, budget=plenty())
            pages += page.hits
            after = page.after
            if after is None:
                break
        assert [each.key for each in pages] == wanted
    assert search(source, None, "zz", budget=none()).after is not None
    for text in ("", "x" * 1_001):
        with pytest.raises(InvalidOptionError):
            search(source, None, text, budget=plenty())


def test_compaction_bounds_what_is_shown(source, store, made, clock):
    clock.advance(3_600_000)
    store.tick()
    middle = made[COMMITS // 2]
    store.compact(middle)
    found = bar(source, *span_of(source, "all", None))
    assert found.earliest_ms == physical_ms(middle)
    steps = steps_back(source, None, limit=1_000, budget=plenty()).steps
    assert min(each.timestamp for each in steps) > middle
    with pytest.raises(CompactedError):
        commit_at(source, made[3], limit=10)
    for key in KEYS:
        page = versions_back(source, key, None, limit=1_000, budget=plenty())
        assert page.versions == list(store.history(key))[::-1]
        assert page.compacted


def test_times_of_urls(source, clock, made):
    clock.set(1_900_000_000_000)
    assert source.when("") is source.when("now") is None
    assert source.when(str(made[0])) == made[0]
    assert source.when("rev:4") == "rev:4"
    assert source.timestamp(source.when("-1m")) == pack(clock.now_ms() - 60_000, 2**18 - 1)
    date = "2026-01-31 14:05"
    assert source.when(date) == source.when("2026-01-31T14:05:00Z")
    for text in ("yesterday?", "rev:x", "2026-13-01", "-1y"):
        with pytest.raises(InvalidTimeError):
            source.when(text)


def test_a_query_within_a_query_is_read_once():
    assert State.of("/", b"_=" * 5_000 + b"x").fields == {}
    kept = State.of("/keys", b"_=prefix%3Da%26_%3Dat%253Drev%253A4&name=n")
    assert (dict(kept.fields), kept.moved) == ({"prefix": "a", "name": "n"}, True)
    with pytest.raises(InvalidOptionError):
        State.of("/", b"_=" + b"a%3D1%26" * 50)


def test_a_restored_engine_is_not_a_bug_of_the_page():
    assert status_of(StoreRestoredError("the engine was restored")) == 503


def test_older_versions_were_compacted_only_if_there_were_some(store, clock):
    with store:
        store.save("old", b"1")
        store.save("old", b"2")
        store.save("once", b"1")
        clock.advance(600_000)
        at = store.save("new", b"1")
        store.save("old", b"3")
        store.compact(at)
        source = Source(store)
        found = {key: versions_back(source, key, None, budget=plenty()) for key in store.at()}
        assert found["new"].created
        assert found["once"].created
        assert [each.value for each in found["once"].versions] == [b"1"]
        assert not found["old"].created or len(found["old"].versions) == 3
        assert all(each.compacted for each in found.values())
        with Served(store) as served:
            assert "created the key" in served.page("/key?key=once").text
            assert "Older versions were compacted" not in served.page("/key?key=new").text
