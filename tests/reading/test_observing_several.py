"""Several observed prefixes and exceptions: reads show what a plain model has of these keys."""

import random

import pytest
from store.engines import write_raw
from store.observed import Cluster, Foreign, drained, listed

from snapkv.engine.contract import Put, Range
from snapkv.engine.selected_ranges import selected
from snapkv.errors import InvalidKeyError, InvalidOptionError, InvalidTypeError
from snapkv.fleet.member import member_of
from snapkv.layout import Selection
from snapkv.reading.log import log
from snapkv.store.open import observe

pytestmark = pytest.mark.slow

NAMES = ("/a", "/a/", "/a/e/1", "/a/e/2", "/a/f", "/a/n/1", "/a/n/x/1", "/b/1", "/c", "/c/1", "z")
SELECTIONS = [
    (["/a/", "/c"], []),
    (["/a/"], ["/a/e/"]),
    (["/a/n/x/", "/a/e/1", "/a/f"], []),
    (["/a/", "/a/n/", "/a/", "z"], ["/a/n/x", "/a/e/", "/a/e/1"]),
    ([""], ["/a/n/", "default/"]),
    (["z", "/c/", "/a/"], ["/a/e/2", "/c/1"]),
]


@pytest.fixture
def whole(place, clock):
    """A cluster of keys below several prefixes, written by chance, with ticks in between."""
    cluster, rng = Cluster(place, clock, prefix=""), random.Random(11)
    for n in range(60):
        some = rng.sample(NAMES, rng.choice([1, 1, 2, 5]))
        cluster.write_keys({key: None if rng.random() < 0.3 else b"%d" % n for key in some})
        if n % 4 == 3:
            cluster.tick()
    cluster.tick()
    cluster.write_keys({"/a/late": b"1"})
    return cluster


def has(prefixes, exclude, key):
    return key.startswith(tuple(prefixes)) and not key.startswith(tuple(exclude))


def part_of(model, prefixes, exclude):
    """The model of the selected keys alone."""
    part = Foreign()
    part.marks = model.marks
    for revision, changes in model.writes:
        own = {key: value for key, value in changes.items() if has(prefixes, exclude, key)}
        if own:
            part.writes.append((revision, own))
    return part


@pytest.mark.parametrize(("prefixes", "exclude"), SELECTIONS)
def test_reads_are_of_the_selected_keys_alone(whole, prefixes, exclude):
    observed = whole.observe(prefixes, exclude=exclude)
    model = part_of(whole.model, prefixes, exclude)
    states = []
    for mark in model.marks:
        snapshot, state = observed.at(mark.ts), model.state(mark.revision)
        assert list(snapshot.items()) == sorted(state.items())
        assert list(snapshot.keys()) == snapshot.to_arrow()["key"].to_pylist() == sorted(state)
        assert snapshot.count() == len(state)
        states.append((mark.ts, state))
    (first, before), (last, after) = states[0], states[-1]
    assert {d.key: (d.before, d.after) for d in observed.diff(first, last)} == {
        key: (before.get(key), after.get(key))
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    }
    for key in NAMES:
        if has(prefixes, exclude, key):
            found = [(v.ts, v.revision, v.value, v.writer) for v in observed.history(key)]
            assert found == model.history(key)
            assert observed.get(key) == after.get(key)
    with observed.watch(since=0) as watch:
        assert drained(watch, last) == model.since(0)
    table = observed.changes_to_arrow()
    columns = (table[name].to_pylist() for name in ("_commit_version", "key"))
    assert list(zip(*columns, strict=True)) == [
        (revision, key) for _, changes in model.since(0) for revision, key, *_ in changes
    ]
    seen = [revision for revision, _ in model.writes if revision <= model.marks[-1].revision]
    assert [each.commit.revision for each in log(observed)] == seen[::-1]


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize(("prefixes", "exclude"), SELECTIONS)
def test_pages_have_as_many_keys_as_wanted(whole, prefixes, exclude):
    snapshot = whole.observe(prefixes, exclude=exclude).at()
    keys = list(snapshot.keys())
    for limit in (1, 2, 3, 100):
        pages, after = [], None
        while page := list(snapshot.keys(after=after, limit=limit)):
            assert len(page) == min(limit, len(keys) - len(pages))
            pages += page
            after = page[-1]
        assert pages == keys


def test_bytes_are_observed_as_bytes(whole):
    state = part_of(whole.model, ["/a/", "/c"], ["/a/e/"]).state(whole.model.marks[-1].revision)
    observed = whole.observe([b"/a/", b"/c"], exclude=b"/a/e/")
    assert dict(observed.at().items()) == {key.encode(): value for key, value in state.items()}


def test_a_prefix_selects_among_them(whole):
    observed = whole.observe(["/a/", "/c"], exclude=["/a/n/x/", "/a/e/"])
    state = part_of(whole.model, ["/a/"], ["/a/n/x/", "/a/e/"]).state(whole.newest() and 1 << 62)
    for prefix in ("/a/", "/a/n/", "/a"):
        found = dict(observed.at().items(prefix))
        wanted = {key: value for key, value in state.items() if key.startswith(prefix)}
        assert found == {key: value for key, value in wanted.items() if key != "/a/late"}
    assert observed.keyspace.default_prefix == "/"


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_keys_outside_are_rejected_as_those_of_another_prefix(whole):
    observed = whole.observe(["/a/", "/c"], exclude=["/a/e/"])
    for key in ("/a/e/1", "/b/1", "z"):
        for read in (observed.load, lambda key: list(observed.history(key))):
            with pytest.raises(InvalidKeyError, match=r"'/a/' and '/c' except '/a/e/'"):
                read(key)
    for prefix in ("/a/e/1", "/b", "z", ""):
        with pytest.raises(InvalidKeyError, match="is outside of the observed keys"):
            list(observed.at().items(prefix))
        with pytest.raises(InvalidKeyError, match="is outside of the observed keys"):
            observed.watch(prefix)


def test_a_watch_follows_them_together(cluster):
    observed = cluster.observe(["/r/a/", "/r/c/"], exclude="/r/a/x/")
    with observed.watch() as watch:
        cluster.write_keys({"/r/a/1": b"1", "/r/a/x/1": b"hidden", "/r/b/1": b"hidden"})
        cluster.write_keys({"/r/a/x/1": None, "/r/b/1": b"hidden"})
        last = cluster.write_keys({"/r/c/1": b"2"})
        tick = cluster.tick()
        ts, changes = listed(watch.next(20))
        assert ts == tick.ts
        assert [(key, value) for _, key, value, _ in changes] == [
            ("/r/a/1", b"1"),
            ("/r/c/1", b"2"),
        ]
        assert changes[-1][0] == last
        cluster.write_keys({"/r/a/x/1": b"hidden"})
        hidden = cluster.tick()
        cluster.write_keys({"/r/a/1": b"3"})
        assert watch.next(0.01) is None
        assert watch.timestamp <= hidden.ts
        shown = cluster.tick()
        assert listed(watch.next(20))[0] == shown.ts


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_one_prefix_is_read_by_the_engine_itself(cluster):
    for prefix in ("/r/", ["/r/"], ["/r/", "/r/a/", "/r/"]):
        observed = cluster.observe(prefix, exclude=[])
        assert type(observed.reader.engine) is type(cluster.engine)
        assert observed.keyspace.default_prefix == "/r/"


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_what_it_observes_is_shown(cluster):
    cluster.tick()
    observed = cluster.observe(["/r/a/", "/r/b/"], exclude="/r/a/x")
    info = observed.info()
    assert (info["prefixes"], info["except"]) == (["/r/a/", "/r/b/"], ["/r/a/x"])
    assert "prefix" not in info
    assert "'/r/a/' and '/r/b/' except '/r/a/x'" in repr(observed)
    assert cluster.observe().info()["prefix"] == "/r/"


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("prefix", "exclude", "error", "says"),
    [
        ("/r/", "/s/", InvalidOptionError, "'/s/' is outside of the observed keys, '/r/'"),
        ("/r/", "/r", InvalidOptionError, "'/r' leaves no keys of an observed prefix"),
        (["/r/", "/s/"], ["/s/"], InvalidOptionError, "'/s/' leaves no keys"),
        (["/r/", "/r/e/x/"], ["/r/e/"], InvalidOptionError, "'/r/e/' leaves no keys"),
        ("", "", InvalidOptionError, "'' leaves no keys"),
        ([], (), InvalidOptionError, "prefix is an empty list"),
        (None, (), InvalidTypeError, "a prefix as str or bytes, or a list of them"),
        (["/r/", 5], (), InvalidTypeError, "prefix must be a str, not int"),
        (["/r/", b"/s/"], (), InvalidTypeError, "prefix must be a str, not bytes"),
        ("/r/", b"/r/e/", InvalidTypeError, "exclude must be a str, not bytes"),
        ("/r/", 5, InvalidTypeError, "exclude must be"),
    ],
)
def test_selections_that_make_no_sense(cluster, prefix, exclude, error, says):
    with pytest.raises(error, match=says):
        observe(cluster.place.url, prefix=prefix, exclude=exclude)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_fleet_has_one_prefix_for_each_member(cluster):
    observed = cluster.observe(["/r/a/", "/r/b/"])
    with pytest.raises(InvalidOptionError, match="make one member of each prefix"):
        member_of("eu", observed, 0)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 0])
def test_limited_ranges_say_whether_there_is_more(cluster, limit):
    keys = (b"/a1", b"/a2", b"/b1", b"/c1", b"/c2")
    write_raw(cluster.engine, *(Put(key, b"") for key in keys))
    engine = selected(cluster.engine, Selection((b"/a", b"/c")))
    (found,) = engine.read([Range(b"/", b"0", limit=limit)]).results
    kept = limit or 4
    assert [kv.key for kv in found.kvs] == [b"/a1", b"/a2", b"/c1", b"/c2"][:kept]
    assert (found.count, found.more) == (4, kept < 4)
