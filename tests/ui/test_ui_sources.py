"""The pages of other sources: an observed prefix on each engine, an archive, a joined store."""

import csv
import itertools
import json
from base64 import b64decode

import pytest
from archive.histories import recorder
from store.engines import write_raw
from store.observed import PREFIX

import snapkv
from snapkv.engine.contract import Put
from snapkv.store.location import Location
from snapkv.store.open import observe
from snapkv.times import physical_ms
from snapkv.ui.commit_list import commit_at, steps_back, steps_on
from snapkv.ui.key_differences import differences
from snapkv.ui.key_listings import level
from snapkv.ui.key_versions import versions_back
from snapkv.ui.page_source import Source
from snapkv.ui.time_bar import bar, span_of

from .histories import KEYS, plenty, write
from .served import Served, crawled

pytestmark = pytest.mark.slow

ROUNDS = 12


@pytest.fixture
def watched(cluster):
    """A cluster with writes of other programs and ticks, some of them without a write."""
    for number in range(ROUNDS):
        cluster.noise()
        cluster.write(**{f"pods/p{number % 3}": b"v%d" % number})
        if number % 4 == 1:
            cluster.write(**{"pods/p0": None, "nodes/n": b"%d" % number})
        if number % 2:
            cluster.tick(60_000)
        if number % 5 == 0:
            cluster.tick(1_000)
    cluster.write(**{"pods/late": b"not ticked yet"})
    return cluster


@pytest.fixture
def source(watched):
    return Source(watched.observe())


def seen(cluster):
    """Return the writes that a tick stamps."""
    last = cluster.model.marks[-1].revision
    return [each for each in cluster.model.writes if each[0] <= last]


@pytest.mark.long_on("etcd")
def test_each_write_of_another_program_is_a_step(source, watched):
    wanted = [revision for revision, _ in seen(watched)]
    found = steps_back(source, None, limit=1_000, budget=plenty())
    assert [each.revision for each in found.steps] == wanted[::-1]
    assert all(each.foreign and each.writer is None for each in found.steps)
    pages, at = [], None
    while True:
        page = steps_back(source, at, limit=3, budget=plenty())
        pages += page.steps
        if page.following is None:
            break
        at = f"rev:{page.following}"
    assert pages == found.steps
    for before, after in itertools.pairwise(wanted):
        (step,) = steps_on(source, f"rev:{before}", budget=plenty()).steps
        assert step.revision == after
    of_prefix = [n for n, changes in seen(watched) if any("nodes" in key for key in changes)]
    found = steps_back(source, None, prefix=f"{PREFIX}nodes/", limit=1_000, budget=plenty())
    assert [each.revision for each in found.steps] == of_prefix[::-1]


def test_a_write_of_another_program_has_what_it_changed(source, watched):
    for revision, changes in seen(watched):
        page = commit_at(source, f"rev:{revision}", limit=100)
        assert page.step.revision == revision
        before = watched.model.state(revision - 1)
        assert {row.key: (row.before, row.after) for row in page.rows} == {
            key: (before.get(key), value)
            for key, value in changes.items()
            if value is not None or key in before
        }


def test_a_moment_shows_its_tick_with_all_that_it_stamps(source, watched):
    marks = watched.model.marks
    for low, mark in itertools.pairwise(marks):
        moments = (mark.ts, mark.ts + 1, *([None] if mark is marks[-1] else []))
        states = watched.model.state(low.revision), watched.model.state(mark.revision)
        written = {
            key
            for revision, changes in watched.model.writes
            if low.revision < revision <= mark.revision
            for key in changes
        }
        for moment in moments:
            page = commit_at(source, moment, limit=100)
            assert (page.step.revision, page.since) == (mark.revision, low.revision)
            assert {each.key: (each.before, each.after) for each in page.rows} == {
                key: (states[0].get(key), states[1].get(key))
                for key in written
                if key in states[0] or key in states[1]
            }
            assert page.step.total == len(page.rows)
    first = commit_at(source, marks[0].ts, limit=100)
    assert {each.key: each.after for each in first.rows} == watched.model.state(marks[0].revision)


def test_the_page_of_the_newest_tick_opens_without_a_moment(watched):
    tick = watched.tick()
    with Served(watched.observe()) as served:
        page = served.page("/commit")
        assert "with the writes that it stamps" in page.text
        assert f"{PREFIX}pods/late" in page.text
        assert f"/commit?at={tick.ts}" in page.links
        assert f"{PREFIX}pods/late" in served.page(f"/commit?at={tick.ts}").text


def test_the_versions_of_an_observed_key(source, watched):
    for name in ("pods/p0", "pods/p1", "nodes/n", "pods/late", "none"):
        key = PREFIX + name
        wanted = [(ts, revision, value) for ts, revision, value, _ in watched.model.history(key)]
        for limit in (1, 3, 100):
            pages, at = [], None
            while True:
                page = versions_back(source, key, at, limit=limit, budget=plenty())
                pages += page.versions
                if page.following is None:
                    break
                at = f"rev:{page.following}"
            assert [(each.ts, each.revision, each.value) for each in pages] == wanted[::-1]


def test_the_tree_and_the_differences_of_an_observed_prefix(source, watched):
    marks = watched.model.marks
    for low, high in ((0, len(marks) - 1), (1, 3), (2, 2)):
        states = [watched.model.state(marks[at].revision) for at in (low, high)]
        found = differences(source, marks[low].ts, marks[high].ts, budget=plenty())
        assert {row.key: (row.before, row.after) for row in found.rows} == {
            key: (states[0].get(key), states[1].get(key))
            for key in states[0].keys() | states[1].keys()
            if states[0].get(key) != states[1].get(key)
        }
        names = {key.removeprefix(PREFIX).partition("/")[0] + "/" for key in states[1]}
        nodes = level(source, marks[high].ts, budget=plenty()).nodes
        assert {each.name for each in nodes} == names
        below = level(source, marks[high].ts, f"{PREFIX}pods/", budget=plenty()).nodes
        pods = {key for key in states[1] if key.startswith(f"{PREFIX}pods/")}
        assert {each.path for each in below} == pods


def test_the_bar_of_an_observed_prefix_counts_writes_not_ticks(source, watched):
    marks = watched.model.marks
    found = bar(source, *span_of(source, "all", None))
    assert found.unit == "writes"
    between = range(marks[0].revision + 1, marks[-1].revision + 1)
    ticks = {mark.revision for mark in marks}
    # a write counts in the bucket of the tick that stamps it, whatever keys it writes
    assert found.total <= len(set(between) - ticks) + marks[0].revision
    assert found.total >= len(set(between) - ticks)


def test_every_page_of_an_observed_prefix_opens(watched):
    words = ("--store", "etcd://x", "--observe", PREFIX)
    with Served(watched.observe(), words=words, writable=True) as served:
        pages = list(crawled(served, "/", 120))
        assert len(pages) > 60
        page = served.page("/")
        assert "Writes" in page.text
        assert "/restore" not in " ".join(page.links)
        assert f"--observe {PREFIX}" in served.page("/keys").text
        assert served.http.get("/export?format=json").text.count("\n") == len(
            watched.model.state(watched.model.marks[-1].revision)
        )
        assert served.http.get("/export?format=dump").status_code == 400


def test_the_page_of_several_prefixes_shows_no_other_key(watched):
    prefixes, exclude = [f"{PREFIX}nodes/", f"{PREFIX}pods/"], (f"{PREFIX}pods/p2",)
    observed = watched.observe(prefixes, exclude=exclude)
    words = Location("etcd://x", prefix=tuple(prefixes), exclude=exclude).words
    state = watched.model.state(watched.model.marks[-1].revision)
    assert f"{PREFIX}pods/p2" in state
    with Served(observed, words=words) as served:
        assert len(list(crawled(served, "/", 120))) > 60
        page = served.page("/")
        assert "'/r/nodes/' and '/r/pods/' except '/r/pods/p2'" in page.text
        assert not any("p2" in link for link in page.links)
        listed = served.http.get("/export?format=json").text
        assert f"{PREFIX}pods/p1" in listed
        assert "p2" not in listed
        assert listed.count("\n") == len(state) - 1
        shown = served.page("/keys").text
        assert f"--observe {prefixes[0]} --observe {prefixes[1]} --except {exclude[0]}" in shown
        hidden = served.http.get(f"/key?key={PREFIX}pods/p2")
        assert hidden.status_code == 400
        assert "outside of the observed keys" in hidden.text


def test_nothing_is_ticked_yet(cluster):
    cluster.write(**{"pods/p": b"1"})
    with Served(cluster.observe()) as served:
        answer = served.http.get("/")
        assert answer.status_code == 404
        assert "tick" in answer.text
        assert served.http.get("/health").status_code in (200, 404)


def test_a_key_that_was_written_before_the_compaction_has_its_page(cluster):
    written = cluster.write(**{"pods/a": b"as it was"})
    cluster.tick()
    later = cluster.write(**{"pods/b": b"1"})
    cluster.compact(cluster.tick().revision)
    with Served(cluster.observe()) as served:
        (link,) = [
            each for each in served.page(f"/keys?prefix={PREFIX}pods/").links if "pods/a" in each
        ]
        page = served.page(link)
        assert "nothing to compare it with" in page.text
        assert "as it was" in page.text
        assert f"rev {written}" in page.text
        data = served.json(link.replace("/key?", "/key.json?"))
        assert (data["compared"], data["uncompared"], data["compacted"]) == (None, True, True)
        newest = cluster.write(**{"pods/a": b"as it is"})
        cluster.tick()
        page = served.page(link)  # the old version is left, and can be compared
        assert "as it was" in page.text
        assert "as it is" in page.text
        assert "nothing to compare" not in page.text
        chosen = f"{link}&a=rev:{written}&b=rev:{newest}"
        assert (
            served.json(chosen.replace("/key?", "/key.json?"))["compared"]["before"] == "as it was"
        )
        served.page(f"{link}&a=rev:{written - 1}&b=rev:{later}", status=410)


def test_the_bar_says_compacted_only_if_a_tick_was(cluster):
    cluster.noise()
    for number in range(4):
        cluster.write(**{"pods/a": b"%d" % number})
        cluster.tick(60_000)
    marks = cluster.model.marks
    with Served(cluster.observe()) as served:
        assert "Compacted:" not in served.page("/").text
        assert served.json("/bar.json")["earliest_ms"] is None
        cluster.compact(marks[0].revision)  # what was before the first tick has no time
        assert served.json("/bar.json")["earliest_ms"] is None
        cluster.compact(marks[2].revision)
        assert served.json("/bar.json")["earliest_ms"] == physical_ms(marks[2].ts)
        assert "Compacted:" in served.page("/").text


def test_the_plain_data_has_what_the_page_shows(cluster):
    cluster.write(**{"pods/a": b'{"x": 1, "y": 1}'})
    cluster.tick()
    newest = cluster.write(**{"pods/a": b'{"x": 1, "y": 2}'})
    cluster.tick()
    with Served(cluster.observe()) as served:
        data = served.json(f"/key.json?key={PREFIX}pods/a&tab=blame")
        assert [each["revision"] for each in data["blame"] if "y" in each["place"]] == [newest]
        assert len(data["blame"]) == 2
        found = served.json("/bar.json")
        assert sum(each["count"] for each in found["buckets"]) == 2
        assert served.page("/bar").text.count("Z") >= 2


def test_keys_that_are_not_utf_8_stay_apart(cluster):
    names = [b"/r/pods/\xff", b"/r/pods/\xfe", "/r/pods/ü".encode(), b"/r/pods/a"]
    cluster.tick()
    write_raw(cluster.engine, *(Put(name, b"1") for name in names))
    cluster.tick()

    def read(shown):
        return b64decode(shown["base64"]) if isinstance(shown, dict) else shown.encode()

    with Served(cluster.observe()) as served:
        nodes = served.json(f"/keys.json?prefix={PREFIX}pods/")["nodes"]
        assert {read(each["path"]) for each in nodes} == set(names)
        found = served.json("/changes.json")
        assert {read(each["key"]) for each in found["rows"]} == set(names)
        lines = served.http.get("/export?format=json").text.splitlines()
        assert {read(json.loads(line)["key"]) for line in lines} == set(names)
        rows = csv.DictReader(served.http.get("/export?format=csv").text.splitlines())
        assert {
            b64decode(row["key"]) if row["key_encoding"] == "base64" else row["key"].encode()
            for row in rows
        } == set(names)
        children = served.json(f"/changes.json?prefix={PREFIX}pods/")["children"]
        assert len(children) == len(names)
        assert all(name.isprintable() for name in children)


# --- archives ---


@pytest.fixture
def archived(store, clock, place, tmp_path):
    """Return a store with a compacted half, its commits, and its archive's folder."""
    import random

    made = write(store, clock, random.Random(5), 40)
    recorded = recorder(store, tmp_path / "archive")
    recorded.catch_up()
    clock.advance(3_600_000)
    store.tick()
    store.compact(made[20], past_recordings=True)
    return made, f"{tmp_path / 'archive'}"


def answers(source, made):
    """Return what the views show of old commits, of old states and of each key."""
    return (
        [commit_at(source, ts, limit=100) for ts in made[2:40:4]],
        [level(source, ts, "a/", budget=plenty()) for ts in made[2:40:7]],
        differences(source, made[3], made[33], budget=plenty()),
        {
            key: versions_back(source, key, made[39], limit=100, budget=plenty()).versions
            for key in KEYS
        },
        [each.revision for each in steps_back(source, made[39], limit=100, budget=plenty()).steps],
    )


def test_an_archive_alone_and_joined_show_what_was_compacted(store, archived, clock, place):
    made, folder = archived
    with snapkv.open(f"archive:{folder}") as alone:
        wanted = answers(Source(alone), made)
        assert len(wanted[4]) > 20
        joined = place.open(clock=clock, archive=folder)
        source = Source(joined)
        assert answers(source, made) == wanted
        found = bar(source, *span_of(source, "all", None))
        assert found.archived_ms == physical_ms(made[20])
        assert found.total >= 40
        assert bar(Source(alone), *span_of(Source(alone), "all", None)).total == 40
        for keys in (joined, alone):
            with Served(keys, writable=False) as served:
                assert len(list(crawled(served, f"/changes?from={made[2]}&at={made[30]}", 60))) > 40
                page = served.page(f"/?at={made[30]}")
                assert "from the archive" in page.text


def test_an_observed_prefix_of_everything(cluster):
    cluster.write(**{"a": b"1"})
    cluster.tick()
    with observe(
        cluster.place.url, prefix="", clock=cluster.clock, **cluster.place.kind.options
    ) as everything:
        nodes = level(Source(everything), None, budget=plenty()).nodes
        assert {each.path for each in nodes} >= {"/", "default/"}
        (below,) = level(Source(everything), None, "/r/", budget=plenty()).nodes
        assert below.path == "/r/a"
