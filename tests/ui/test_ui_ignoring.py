"""Pages leave out commits and versions in which only ignored paths differ, and remember them."""

import random
from collections.abc import Iterator

import pytest

from snapkv.rendering import Redaction
from snapkv.rendering.ignored_paths import IgnoredPaths
from snapkv.ui import Source
from snapkv.ui.commit_list import look_at, steps_back, steps_on
from snapkv.ui.quiet_commits import QuietCommits

from .histories import none, plenty
from .served import Served

LEASE = '{"apiVersion":"v1","kind":"Lease","metadata":{"generation":%d},"holder":"%s"}'


@pytest.fixture(params=[1, 2])
def rng(request) -> random.Random:
    return random.Random(request.param)


@pytest.fixture
def loud(store, clock, rng) -> list[int]:
    """Fill a store with heartbeats, ticks and some changes; return the times of the changes."""
    found, holder = [store.save("lease", (LEASE % (0, "a")).encode())], "a"
    for number in range(1, 200):
        clock.advance(rng.choice([0, 5, 400]))
        if (kind := rng.random()) < 0.1:
            store.tick()
        elif kind < 0.2:
            holder = rng.choice("abc".replace(holder, ""))
            found.append(store.save("lease", (LEASE % (number, holder)).encode()))
        elif kind < 0.25:
            found.append(store.save("other", b"%d" % number))
        else:
            store.save("lease", (LEASE % (number, holder)).encode())
    return found


def pages(source: Source, rng: random.Random, quiet: QuietCommits, until=None) -> Iterator[int]:
    """Yield the times of all pages of a list, some of which have no time to be whole."""
    while True:
        found = steps_back(
            source,
            until,
            limit=rng.choice([1, 3, 100]),
            budget=rng.choice([none, plenty])(),
            ignores=IgnoredPaths(["auto"]),
            quiet=quiet,
        )
        yield from (step.timestamp for step in found.steps)
        if found.following is None:
            return
        until = f"rev:{found.following}"


def test_a_list_has_all_commits_but_ignored_ones_whatever_was_read_before(store, loud, rng):
    source = Source(store)
    quiet, reader = QuietCommits(source.reader), source.reader
    commits = [each.ts for each in store.commits()]
    for _ in range(30):
        if rng.random() < 0.5:
            low, high = sorted(rng.sample(commits, 2))
            marks = reader.timeline.at(low).mark, reader.timeline.at(high).mark
            budget = rng.choice([none, plenty])()
            look_at(source, *marks, quiet, IgnoredPaths(["auto"]), budget)
        until = rng.choice([None, *commits])
        wanted = [ts for ts in loud if until is None or ts <= until]
        assert list(pages(source, rng, quiet, until)) == wanted[::-1]
    whole = steps_back(
        source, None, limit=1_000, budget=plenty(), ignores=IgnoredPaths(["auto"]), quiet=quiet
    )
    assert [step.timestamp for step in whole.steps] == loud[::-1]
    ignored = set(commits) - set(loud)
    ticks = {
        step.timestamp
        for step in steps_back(
            source, None, limit=1_000, budget=plenty(), wanted=lambda step: step.tick
        ).steps
    }
    assert quiet.ignored == sorted(ignored - ticks)


def test_what_was_read_is_not_read_again(store, loud, rng, monkeypatch):
    source = Source(store)
    quiet = QuietCommits(source.reader)
    assert list(pages(source, rng, quiet)) == loud[::-1]
    seen = []
    monkeypatch.setattr("snapkv.ui.commit_list.noted", lambda *found: seen.append(found[3]))
    assert list(pages(source, rng, quiet)) == loud[::-1]
    assert sum(map(len, seen)) == len(loud)


def test_steps_on_pass_ignored_commits(store, loud):
    source = Source(store)
    found = steps_on(source, loud[3], limit=2, budget=plenty(), ignores=IgnoredPaths(["auto"]))
    assert [step.timestamp for step in found.steps] == loud[4:6]


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_the_page_counts_and_shows_what_is_asked_for(store, loud):
    with Served(store) as served:
        shown = served.json("/commits.json?limit=1000")
        assert [each["timestamp"] for each in shown["steps"]] == [str(ts) for ts in loud[::-1]]
        page = served.page("/")
        assert "Show heartbeats" in page.text
        assert "more with only ignored paths" in page.text
        bar = served.json("/bar.json")
        ticks = sum(1 for _ in store.commits()) - bar["ignored"] - len(loud)
        assert sum(each["count"] for each in bar["buckets"]) == len(loud) + ticks
        everything = served.json("/commits.json?limit=1000&ignore=none")
        assert len(everything["steps"]) == len(loud) + bar["ignored"]
        assert "Hide heartbeats" in served.page("/?ignore=none").text


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_key_has_the_versions_in_which_more_differs(store, loud):
    wanted, before = 0, ""
    for each in store.history("lease"):
        holder = each.value.rpartition(b":")[2]
        wanted, before = wanted + (holder != before), holder
    with Served(store) as served:
        found = served.json("/key.json?key=lease&limit=1000")
        assert len(found["versions"]) == wanted
        assert found["ignored"] == sum(1 for _ in store.history("lease")) - wanted
        assert "versions with only ignored paths left out" in served.page("/key?key=lease").text
        blame = served.page("/key?key=lease&tab=blame").text
        assert "holder" in blame
        assert "generation" not in blame
        everything = served.json("/key.json?key=lease&limit=1000&ignore=none")
        assert len(everything["versions"]) == wanted + found["ignored"]


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_redacted_values_are_not_looked_at(store, loud):
    with Served(store, redaction=Redaction(["lease"])) as served:
        shown = served.json("/commits.json?limit=1000")
        assert len(shown["steps"]) > len(loud)
