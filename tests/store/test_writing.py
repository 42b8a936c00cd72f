"""Writing: what a commit writes, when it writes nothing, and what its guards see."""

import threading

import pytest

import snapkv
from snapkv import Absent, AtRevision, ConflictError, HeadAt, KeyNotFoundError, Ops, SpaceOps, pack
from snapkv.errors import (
    CommitTooLargeError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    NotSupportedError,
)

from .engines import START_MS, assert_sound
from .wrapping import LosingOnce, wrap_engines


def contents(store, prefix=""):
    return dict(store.at().items(prefix))


# --- the five methods of the original ---


def test_save_returns_the_timestamp_of_its_commit(store, clock):
    first = store.save("a", b"1")
    second = store.save("a", b"2")
    assert (first, second) == (pack(START_MS), pack(START_MS, 1))
    clock.advance(5)
    assert store.save("a", b"") == pack(START_MS + 5)
    assert [store.load("a", ts) for ts in (first, second)] == [b"1", b"2"]
    assert store.load("a") == b""


def test_times_rise_when_the_clock_goes_back(store, clock):
    stamps = [store.save("a", b"1")]
    clock.advance(-3_600_000)
    stamps += [store.save("a", b"2"), store.save("a", b"3")]
    clock.advance(7_200_000)
    stamps += [store.save("a", b"4")]
    assert stamps == sorted(set(stamps))
    assert [store.load("a", ts) for ts in stamps] == [b"1", b"2", b"3", b"4"]


def test_load_tells_what_is_missing_and_when(store):
    ts = store.save("a", b"1")
    with pytest.raises(KeyNotFoundError) as caught:
        store.load("b")
    assert (caught.value.key, caught.value.timestamp) == ("b", None)
    with pytest.raises(KeyError) as caught:
        store.load("a", ts - 1)
    assert (caught.value.key, caught.value.timestamp) == ("a", ts - 1)


def test_load_with_prefix_is_exact_to_the_byte(store):
    ts = store.multi_save({k: k.encode() for k in ("b", "a/2", "a/1", "ab", "a", "a0", "\u00e9")})
    assert store.load_with_prefix("a/") == (["a/1", "a/2"], [b"a/1", b"a/2"])
    assert store.load_with_prefix("a")[0] == ["a", "a/1", "a/2", "a0", "ab"]
    assert store.load_with_prefix("")[0] == ["a", "a/1", "a/2", "a0", "ab", "b", "\u00e9"]
    assert store.load_with_prefix("a/1") == (["a/1"], [b"a/1"])
    assert store.load_with_prefix("zz") == ([], [])
    store.multi_save_and_remove_with_prefix({"a/1": b"new"}, ["a"])
    assert store.load_with_prefix("a") == (["a/1"], [b"new"])
    assert store.load_with_prefix("a/", ts) == (["a/1", "a/2"], [b"a/1", b"a/2"])


def test_multi_save_is_one_commit(store, place):
    before = place.revision()
    ts = store.multi_save({f"k{n}": b"%d" % n for n in range(300)})
    assert place.revision() == before + 1
    assert {entry.revision for _, entry in store.at().entries()} == {before + 1}
    assert len(store.at(ts)) == 300
    assert len(store.at(ts - 1)) == 0


def test_additions_see_the_timestamp_they_are_written_at(store):
    seen = []

    def created(ts):
        seen.append(ts)
        return "created", b"%d" % ts

    ts = store.multi_save({"a": b"1"}, [created, lambda ts: ("also", b"x")])
    assert seen[-1] == ts
    assert contents(store) == {"a": b"1", "also": b"x", "created": b"%d" % ts}
    ts = store.multi_save_and_remove_with_prefix({"a": b"2"}, ["c"], additions=[created])
    assert contents(store) == {"a": b"2", "also": b"x", "created": b"%d" % ts}


def test_an_addition_that_raises_writes_nothing(store, place):
    store.save("a", b"1")
    before = place.revision()

    def fails(ts):
        raise OSError(f"at {ts > 0}")

    with pytest.raises(OSError, match="at True"):
        store.multi_save({"b": b"2"}, [lambda ts: ("c", b"3"), fails])
    with pytest.raises(OSError, match="at True"):
        store.multi_save_and_remove_with_prefix({"b": b"2"}, ["a"], [fails])
    assert place.revision() == before
    assert contents(store) == {"a": b"1"}


@pytest.mark.parametrize("added", [None, "ab", ["a", b"1"], ("a",), ("a", "text"), ("", b"1")])
def test_an_addition_that_returns_no_pair_writes_nothing(store, place, added):
    before = place.revision()
    with pytest.raises((InvalidTypeError, snapkv.SnapKVError)):
        store.multi_save({"b": b"2"}, [lambda ts: added])
    assert place.revision() == before


def test_an_addition_of_a_key_that_is_saved_too(store, place):
    before = place.revision()
    with pytest.raises(InvalidKeyError) as caught:
        store.multi_save({"a": b"1"}, [lambda ts: ("a", b"2")])
    assert caught.value.key == "a"
    assert place.revision() == before


def test_remove_a_prefix_and_save_into_it(store):
    ts = store.multi_save({"a/old": b"1", "a/keep": b"1", "ab": b"1", "a": b"1", "a0": b"1"})
    store.multi_save_and_remove_with_prefix({"a/new": b"2", "a/keep": b"2"}, ["a/"])
    assert contents(store) == {"a": b"1", "a/keep": b"2", "a/new": b"2", "a0": b"1", "ab": b"1"}
    assert store.at().entry("a/keep").version == 2, "what is saved is never removed in between"
    assert set(store.at(ts)) == {"a/old", "a/keep", "ab", "a", "a0"}


@pytest.mark.parametrize(
    ("removals", "left"),
    [
        (["a/"], {"a", "ab", "b/1"}),
        (["a"], {"b/1"}),
        (["a/", "b/"], {"a", "ab"}),
        (["a/1"], {"a", "a/2", "ab", "b/1"}),
        (["a/", "a/1", "a"], {"b/1"}),
        (["c"], {"a", "a/1", "a/2", "ab", "b/1"}),
        ([], {"a", "a/1", "a/2", "ab", "b/1"}),
        ([""], set()),
    ],
)
def test_prefixes_are_exact(store, removals, left):
    store.multi_save(dict.fromkeys(("a", "a/1", "a/2", "ab", "b/1"), b""))
    store.multi_save_and_remove_with_prefix({}, removals)
    assert set(contents(store)) == left
    store.multi_save_and_remove_with_prefix({"a/3": b""}, removals)
    assert set(contents(store)) == left | {"a/3"}


def test_removing_the_prefix_of_everything_leaves_spaces_and_the_store_alone(store):
    store.space("s").commit(puts={b"k": b"1"})
    store.save("a", b"1")
    store.multi_save_and_remove_with_prefix({}, [""])
    assert contents(store) == {}
    assert store.space("s").load(b"k") == b"1"


def test_remove_what_is_there_and_what_is_not(store):
    store.save("a", b"1")
    ts = store.remove("a")
    assert "a" not in store.at()
    assert store.at(ts - 1)["a"] == b"1"
    assert store.remove("a") > ts
    assert [v.value for v in store.history("a")] == [b"1", None]


# --- commit in its forms ---


def test_commit_tells_all_about_itself(store, clock):
    commit = store.commit(puts={"a": b"1"}, note="first")
    assert commit == snapkv.Commit(pack(START_MS), 0, store.at().revision, "ann@test", "first")
    assert store.commit(puts={"a": b"2"}).note is None


def test_keywords_together(store):
    store.multi_save({"old": b"1", "p/1": b"1", "p/2": b"1"})
    commit = store.commit(
        puts={"a": b"1"},
        deletes=["old"],
        delete_prefixes=["p/"],
        guards=[Absent("a"), AtRevision("old", store.at().revision)],
        additions=[lambda ts: ("at", b"%d" % ts)],
        note="all",
    )
    assert contents(store) == {"a": b"1", "at": b"%d" % commit.ts}


def test_iterators_are_as_good_as_lists(store):
    store.multi_save({"d": b"1", "p/1": b"1"})
    store.commit(
        puts={"a": b"1"},
        deletes=iter(["d"]),
        delete_prefixes=(p for p in ["p/"]),
        guards=iter([Absent("a")]),
    )
    assert contents(store) == {"a": b"1"}


def test_pairs_from_an_iterator_are_all_saved(store):
    store.commit(puts=zip(["a", "b"], [b"1", b"2"], strict=True))
    assert contents(store) == {"a": b"1", "b": b"2"}


def test_an_iterator_survives_being_built_twice(monkeypatch, place, clock):
    engines = wrap_engines(monkeypatch, LosingOnce)
    store = place.open(clock=clock)
    store.save("d", b"1")
    engines[0].lose = True
    store.commit(
        puts=zip(["a", "b"], [b"1", b"2"], strict=True),
        deletes=iter(["d"]),
        additions=(lambda ts, key=key: (key, b"3") for key in "ce"),
    )
    assert contents(store) == {"a": b"1", "b": b"2", "c": b"3", "e": b"3"}
    assert_sound(store)


def test_saving_and_deleting_one_key_saves_it(store):
    store.save("a", b"1")
    store.commit(puts={"a": b"2"}, deletes=["a"])
    assert contents(store) == {"a": b"2"}


def test_a_function_gets_the_very_stamp(store):
    stamps = []

    def build(stamp):
        stamps.append(stamp)
        return Ops(puts={"a": f"{stamp.ts}.{stamp.batch}".encode()}, note="built")

    commit = store.commit(build)
    assert stamps[-1] == (commit.ts, commit.batch)
    assert store.load("a") == f"{commit.ts}.0".encode()
    assert commit.note == "built"


def test_a_function_that_raises_writes_nothing(store, place):
    before = place.revision()
    with pytest.raises(ZeroDivisionError):
        store.commit(lambda stamp: 1 // 0)
    with pytest.raises(InvalidTypeError):
        store.commit(lambda stamp: {"a": b"1"})
    assert place.revision() == before
    store.save("a", b"1")


def test_a_function_must_not_commit(store):
    def build(stamp):
        store.save("b", b"1")
        return Ops(puts={"a": b"1"})

    with pytest.raises(NotSupportedError):
        store.commit(build)
    assert contents(store) == {}


def test_a_function_or_keywords_not_both(store, place):
    before = place.revision()
    for also in ({"puts": {"a": b""}}, {"deletes": ["a"]}, {"note": ""}, {"guards": [Absent("a")]}):
        with pytest.raises(InvalidOptionError):
            store.commit(lambda stamp: Ops(), **also)
        if "note" not in also:  # SpaceOps has none, so there it goes with a function
            with pytest.raises(InvalidOptionError):
                store.space("s").commit(lambda stamp: SpaceOps(), **also)
    assert place.revision() == before


def test_an_empty_commit_is_a_tick(store, place):
    before = place.revision()
    commit = store.commit()
    assert commit.revision == place.revision() == before + 1
    assert store.resolved() == commit.ts


# --- guards ---


def test_absent(store):
    store.commit(puts={"lock": b"ann"}, guards=[Absent("lock")])
    with pytest.raises(ConflictError) as caught:
        store.commit(puts={"lock": b"bob"}, guards=[Absent("lock")])
    assert caught.value.failed == ((Absent("lock"), store.at().entry("lock").revision),)
    assert store.load("lock") == b"ann"
    store.remove("lock")
    store.commit(puts={"lock": b"bob"}, guards=[Absent("lock")])
    assert store.load("lock") == b"bob"


def test_at_revision(store):
    store.save("a", b"1")
    seen = store.at().entry("a").revision
    store.save("other", b"1")
    store.commit(puts={"a": b"2"}, guards=[AtRevision("a", seen)])
    now = store.at().entry("a").revision
    with pytest.raises(ConflictError) as caught:
        store.commit(puts={"a": b"3"}, guards=[AtRevision("a", seen)])
    assert caught.value.failed == ((AtRevision("a", seen), now),)
    with pytest.raises(ConflictError) as caught:
        store.commit(puts={"a": b"3"}, guards=[AtRevision("none", seen)])
    assert caught.value.failed == ((AtRevision("none", seen), 0),)
    assert store.load("a") == b"2"


def test_head_at(store):
    head = store.at().revision
    commit = store.commit(puts={"a": b"1"}, guards=[HeadAt(head)])
    with pytest.raises(ConflictError) as caught:
        store.commit(puts={"a": b"2"}, guards=[HeadAt(head)])
    assert caught.value.failed == ((HeadAt(head), commit.revision),)


def test_head_at_a_revision_yet_to_come_does_not_hold(store):
    for ahead in (1, 2):
        head = store.at().revision
        with pytest.raises(ConflictError) as caught:
            store.commit(puts={"a": b"1"}, guards=[HeadAt(head + ahead)])
        assert caught.value.failed == ((HeadAt(head + ahead), head),)
        assert "a" not in store.at()


def test_every_guard_that_failed_is_named_and_no_other(store):
    store.save("a", b"1")
    revision = store.at().revision
    with pytest.raises(ConflictError) as caught:
        store.commit(
            puts={"x": b"1"},
            guards=[Absent("a"), Absent("x"), AtRevision("a", revision), AtRevision("x", 5)],
        )
    assert caught.value.failed == ((Absent("a"), revision), (AtRevision("x", 5), 0))
    assert "x" not in store.at()


def test_guards_look_at_what_was_there_before_the_commit(store):
    store.save("a", b"1")
    revision = store.at().revision
    store.commit(deletes=["a"], puts={"b": b""}, guards=[AtRevision("a", revision), Absent("b")])
    assert contents(store) == {"b": b""}


def test_of_many_threads_one_gets_the_lock(store):
    outcomes, gate = [], threading.Barrier(8)

    def take(name):
        gate.wait(10)
        try:
            outcomes.append(store.commit(puts={"lock": name}, guards=[Absent("lock")]))
        except ConflictError as e:
            outcomes.append(e)

    threads = [threading.Thread(target=take, args=(b"%d" % n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    commits = [o for o in outcomes if isinstance(o, snapkv.Commit)]
    assert len(outcomes) == 8
    assert len(commits) == 1
    assert len(list(store.history("lock"))) == 1


# --- several threads, several stores ---


def test_commits_of_many_threads_are_all_there_each_by_its_own_identity(store, place, clock):
    other = place.open(clock=clock, writer="bob@test")
    commits, gate = [], threading.Barrier(8)

    def write(to, name):
        gate.wait(10)
        for n in range(25):
            commit = to.commit(
                lambda stamp, n=n: Ops(puts={f"{name}/{n}": f"{stamp.ts}.{stamp.batch}".encode()})
            )
            commits.append((f"{name}/{n}", commit))

    threads = [
        threading.Thread(target=write, args=((store, other)[n % 2], str(n))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(commits) == 200
    assert len({(c.ts, c.batch) for _, c in commits}) == 200
    revision_of = {}
    for key, commit in commits:
        assert store.load(key) == f"{commit.ts}.{commit.batch}".encode()
        assert store.at(commit.ts)[key]
        assert key not in store.at(commit.ts - 1)
        assert revision_of.setdefault(commit.ts, commit.revision) == commit.revision
    log = list(store.commits())
    assert {(c.ts, c.revision) for c in log} == set(revision_of.items())


# --- notes and writers ---


def test_notes_and_writers_are_in_log_and_history(store, place, clock):
    other = place.open(clock=clock, writer="bob@test")
    a = store.commit(puts={"k": b"1"}, note="why \u00e9")
    b = other.commit(puts={"k": b"2"})
    c = other.commit(deletes=["k"], note="")
    assert list(store.commits()) == [a, b, c]
    assert [(c.writer, c.note) for c in (a, b, c)] == [
        ("ann@test", "why \u00e9"),
        ("bob@test", None),
        ("bob@test", ""),
    ]
    assert list(store.history("k")) == [
        snapkv.Version(a.ts, a.revision, b"1", "ann@test", "why \u00e9"),
        snapkv.Version(b.ts, b.revision, b"2", "bob@test", None),
        snapkv.Version(c.ts, c.revision, None, "bob@test", ""),
    ]


def test_the_longest_note_and_one_byte_more(store, place):
    store.commit(note="x" * 4_096)
    before = place.revision()
    with pytest.raises(CommitTooLargeError) as caught:
        store.commit(note="\u00e9" * 2_049)
    assert (caught.value.size, caught.value.limit) == (4_098, 4_096)
    assert place.revision() == before
    assert [c.note for c in store.commits()] == ["x" * 4_096]


# --- spaces ---


def test_one_commit_over_data_and_two_spaces(store, place):
    before = place.revision()
    commit = store.commit(
        lambda stamp: Ops(
            puts={"a": b"data"},
            spaces={
                "one": SpaceOps(puts={b"a": b"one", b"\0\xff/": b"bytes"}),
                "two/three": SpaceOps(puts={b"a": b"two"}),
            },
        )
    )
    assert commit.revision == place.revision() == before + 1
    one, two = store.space("one"), store.space("two/three")
    assert dict(one.at(commit.ts).items()) == {b"\0\xff/": b"bytes", b"a": b"one"}
    assert dict(two.at(commit.ts).items()) == {b"a": b"two"}
    assert dict(store.at(commit.ts).items()) == {"a": b"data"}
    assert len(one.at(commit.ts - 1)) == len(two.at(commit.ts - 1)) == 0


def test_a_guard_in_one_space_holds_back_all(store):
    store.space("one").commit(puts={b"k": b"1"})
    with pytest.raises(ConflictError):
        store.commit(
            lambda stamp: Ops(
                puts={"a": b"1"},
                spaces={
                    "one": SpaceOps(guards=[Absent(b"k")]),
                    "two": SpaceOps(puts={b"k": b"1"}),
                },
            )
        )
    assert contents(store) == {}
    assert len(store.space("two").at()) == 0
    # a guard looks into its own space only
    store.commit(lambda stamp: Ops(guards=[Absent("k")], spaces={"two": SpaceOps()}))


def test_spaces_of_similar_names_do_not_overlap(store):
    names = ["a", "a/b", "a%2Fb", "ab", "%", "/", "data", "\u00e9"]
    for name in names:
        store.space(name).commit(puts={b"k": name.encode(), b"b/k": b""})
    store.space("a").commit(delete_prefixes=[b""])
    for name in names[1:]:
        assert dict(store.space(name).at().items()) == {b"b/k": b"", b"k": name.encode()}
    assert len(store.space("a").at()) == 0
    assert contents(store) == {}


def test_a_space_reads_as_the_store_does(store):
    space = store.space("s")
    first = space.commit(puts={b"a/1": b"1", b"ab": b"1"}, note="put")
    second = space.commit(deletes=[b"ab"], guards=[AtRevision(b"ab", first.revision)])
    third = space.commit(lambda stamp: SpaceOps(puts={b"a/1": b"%d" % stamp.ts}), note="built")
    assert space.load(b"ab", first.ts) == b"1"
    assert space.load_with_prefix(b"a/", second.ts) == ([b"a/1"], [b"1"])
    assert [v.value for v in space.history(b"ab")] == [b"1", None]
    assert list(space.diff(first.ts, second.ts)) == [snapkv.Difference(b"ab", b"1", None)]
    assert space.load(b"a/1") == b"%d" % third.ts
    seen = list(space.watch(since=0, timeout=0))
    assert [(c.commit.note, [x.key for x in c]) for c in seen] == [
        ("put", [b"a/1", b"ab"]),
        (None, [b"ab"]),
        ("built", [b"a/1"]),
    ]
    assert list(store.watch(since=0, timeout=0)) == []
