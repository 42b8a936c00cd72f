"""Tables of random histories: the same as every other way of reading them, and as the model's."""

import random

import pytest
from store.engines import START_MS

import snapkv.timeline.timeline
from snapkv import pack, to_datetime

from .tabled import (
    FOREVER,
    SPACE,
    Writing,
    changes_of,
    commits_of,
    histories_of,
    moments,
    replayed,
    rows,
)
from .test_watching import drained

PREFIXES = ("", "a/", "b/1", "p/", "zz")


@pytest.fixture(params=[2], ids="seed {}".format)
def written(request, store, clock, monkeypatch):
    """A random history; what is further apart than some revisions is replayed, as it usually is."""
    monkeypatch.setattr(snapkv.timeline.timeline, "READS_MAX", 16)
    return Writing(store, clock, random.Random(request.param)).steps(50)


@pytest.fixture
def draw(written):
    return moments(written, random.Random(7))


def views(store):
    """The keys of a store and of a space, what the model calls them, and how prefixes are given."""
    return [(store, "", str), (store.space(SPACE), SPACE, str.encode)]


# --- a moment ---


def test_a_moment(store, written, draw):
    for asked, space, as_key in views(store):
        for n, ts in enumerate([None, *(draw() for _ in range(9))]):
            snap, prefix = asked.at(ts), as_key(PREFIXES[n % len(PREFIXES)])
            table = snap.to_arrow(prefix)
            assert rows(table) == [
                (key, entry.value, entry.created, entry.revision, entry.version)
                for key, entry in snap.entries(prefix)
            ]
            found = table["key"].to_pylist(), table["value"].to_pylist()
            assert found == asked.load_with_prefix(prefix, ts)
            state = written.state(ts, space)
            assert found[0] == [key for key in state if key.startswith(prefix)]
            assert len(snap.to_arrow()) == len(state)


# --- changes ---


def test_changes_between_any_two_moments(store, written, draw):
    for asked, space, as_key in views(store):
        for n in range(5):
            since, until = sorted((draw(), draw()))
            prefix = as_key(PREFIXES[n % len(PREFIXES)])
            found = rows(asked.changes_to_arrow(prefix, since, until))
            expected = changes_of(written, since, until, prefix, space)
            assert found == expected, (since, until, prefix)
            before, after = (dict(asked.at(ts).items(prefix)) for ts in (since, until))
            assert replayed(before, found) == after


def test_changes_with_what_was_there_before(store, written, draw):
    for asked, space, as_key in views(store):
        for since in (0, draw(), draw()):
            prefix = as_key("a/")
            found = rows(asked.changes_to_arrow(prefix, since, preimages=True))
            assert found == changes_of(written, since, FOREVER, prefix, space, preimages=True)
            state = dict(asked.at(since).items(prefix))
            for change in found:
                if change[2] in ("update_preimage", "delete"):
                    assert state[change[0]] == change[1], change
                state = replayed(state, [change])


def test_changes_are_what_a_watch_gives(store, written, draw):
    for asked, _, as_key in views(store):
        for since, prefix in ((0, as_key("")), (draw(), as_key("b/1"))):
            of_commits, watched = {}, {}
            for key, value, *_, time in rows(asked.changes_to_arrow(prefix, since)):
                of_commits.setdefault(time, []).append((key, value))
            with asked.watch(prefix, since, timeout=0) as watch:
                for ts, changes in drained(watch):  # several commits may share a millisecond
                    watched.setdefault(to_datetime(ts), []).extend(changes)
            assert of_commits == watched


def test_changes_without_bounds_are_all_of_them(store, written):
    for asked, space, as_key in views(store):
        everything = changes_of(written, 0, FOREVER, as_key(""), space)
        assert rows(asked.changes_to_arrow()) == everything
        assert rows(asked.changes_to_arrow(since=0)) == everything
        stamps = [row.ts for row in written.rows]
        for since, until in [(stamps[-1], None), (None, 0), ("+1h", "+2h"), (stamps[9], stamps[5])]:
            assert rows(asked.changes_to_arrow(since=since, until=until)) == []


# --- histories ---


def test_histories_between_any_two_moments(store, written, draw):
    for asked, space, as_key in views(store):
        for n in range(5):
            since, until = sorted((draw(), draw()))
            prefix = as_key(PREFIXES[n % len(PREFIXES)])
            found = rows(asked.history_to_arrow(prefix, since, until))
            expected = histories_of(written, since, until, prefix, space)
            assert found == expected, (since, until, prefix)
        early, late = written.rows[5].ts, written.rows[9].ts
        found = rows(asked.history_to_arrow(until=late))
        assert found == histories_of(written, 0, late, as_key(""), space)
        assert rows(asked.history_to_arrow(since=late, until=early)) == [], "nothing is in between"


def test_histories_tell_the_state_at_every_revision(store, written):
    for asked, _, _ in views(store):
        found = rows(asked.history_to_arrow())
        for r in range(written.rows[0].revision, written.rows[-1].revision + 1):
            stood = {k: v for k, v, since, to, *_ in found if since <= r and (to is None or r < to)}
            assert stood == dict(asked.at(revision=r).items()), r


def test_histories_are_those_of_each_key(store, written):
    for asked, space, _ in views(store):
        of_keys = {}
        for key, *row in rows(asked.history_to_arrow()):
            of_keys.setdefault(key, []).append(row)
        for key in {k for row in written.rows for where, k in row.changes if where == space}:
            versions = list(asked.history(key))
            assert of_keys.pop(key, []) == [
                [
                    v.value,
                    v.revision,
                    to and to.revision,
                    to_datetime(v.ts),
                    to and to_datetime(to.ts),
                ]
                for v, to in zip(versions, [*versions, None][1:], strict=True)
                if v.value is not None
            ]
        assert of_keys == {}


# --- the log ---


def test_the_log_between_any_two_moments(store, written, draw):
    for since, until in [(0, pack(START_MS) * 2), *(sorted((draw(), draw())) for _ in range(4))]:
        found = rows(store.commits_to_arrow(since, until))
        assert found == commits_of(written, since, until), (since, until)
    assert rows(store.commits_to_arrow()) == commits_of(written, 0, FOREVER)
    assert [row[:3] + row[4:5] + row[6:] for row in rows(store.commits_to_arrow())] == [
        (c.revision, to_datetime(c.ts), c.writer, c.note, c.meta and c.meta.to_json())
        for c in store.commits(newest_first=True)
    ]
