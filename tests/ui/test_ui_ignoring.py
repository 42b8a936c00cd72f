"""Pages leave out commits and versions in which only ignored paths differ, and remember them."""

import random
import threading
from collections.abc import Iterator

import pytest
from etcd_server import eventually
from store.engines import write_raw

import snapkv
from snapkv.engine.contract import Put
from snapkv.rendering import Redaction
from snapkv.rendering.ignored_paths import IgnoredPaths
from snapkv.ui import Rendering, Source
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
        assert sum(each["count"] for each in bar["buckets"]) == len(loud)
        everything = served.json("/commits.json?limit=1000&ignore=none&look=longer")
        assert len(everything["steps"]) == len(loud) + bar["ignored"]
        for query in ("ignore=none", "ticks=1", "ignore=none&ticks=1"):
            listed = len(served.json(f"/commits.json?limit=1000&look=longer&{query}")["steps"])
            buckets = served.json(f"/bar.json?{query}")["buckets"]
            assert sum(each["count"] for each in buckets) == listed, query
        assert "Hide heartbeats" in served.page("/?ignore=none").text


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_the_bar_of_a_site_that_ignores_nothing_counts_no_tick(store, loud):
    with Served(store, rendering=Rendering(ignore=())) as served:
        for query in ("", "&ticks=1"):
            listed = len(served.json(f"/commits.json?limit=1000&look=longer{query}")["steps"])
            found = served.json(f"/bar.json?look=longer{query}")
            assert sum(each["count"] for each in found["buckets"]) == listed, query
            assert found["ignored"] == 0
        assert listed == len(list(store.commits()))


def test_known_ticks_are_counted_between_any_marks(store, loud, rng):
    source, quiet = Source(store), QuietCommits(store.reader)
    steps = {
        each.timestamp: each
        for each in steps_back(
            source, None, limit=1_000, budget=plenty(), wanted=lambda step: True
        ).steps
    }
    marks = [store.reader.timeline.at(each.ts).mark for each in store.commits()]
    for _ in range(20):
        low, high = sorted(rng.sample(marks, 2))
        look_at(source, low, high, quiet, IgnoredPaths(["auto"]), plenty())
        inside = (steps[each.timestamp].tick for each in marks if low < each <= high)
        assert quiet.ticks(low, high) == sum(inside)
        assert quiet.ticks(high, low) == 0
    fresh = QuietCommits(store.reader)
    assert fresh.ticks(marks[0], marks[-1]) == 0


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_the_bar_of_an_idle_record_counts_no_tick(store, place, tmp_path):
    write_raw(store.reader.engine, Put(b"/registry/minions/n1", b"1"))
    into, stop = f"lmdb:{tmp_path / 'record'}", threading.Event()
    recorder = snapkv.record(
        place.url, into=into, observe="/registry/", every="100ms", options=place.kind.options
    )
    thread = threading.Thread(target=recorder.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: recorder.status.commits > 15, "ticks of the recorder")
    finally:
        stop.set()
        thread.join(10)
    with snapkv.open(into) as record, Served(record) as served:
        for span in ("all", "1h", "1m"):
            found = served.json(f"/bar.json?span={span}")
            shown = len(served.json(f"/commits.json?span={span}")["steps"])
            assert sum(each["count"] for each in found["buckets"]) == shown, span


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
        everything = served.json("/key.json?key=lease&limit=1000&ignore=none&look=longer")
        assert len(everything["versions"]) == wanted + found["ignored"]


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_redacted_values_are_not_looked_at(store, loud):
    with Served(store, redaction=Redaction(["lease"])) as served:
        shown = served.json("/commits.json?limit=1000")
        assert len(shown["steps"]) > len(loud)
