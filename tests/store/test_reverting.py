"""Revert: one commit that puts back what some commits changed, and nothing else."""

import pickle

import pytest

from snapkv import CompactedError, KeyNotFoundError, RevertConflictError, Reverted, format_time
from snapkv.errors import (
    CommitTooLargeError,
    ConflictError,
    FutureRevisionError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
)

from .wrapping import Intruding, wrap_engines


@pytest.fixture
def wrong(store, clock):
    """A commit that changes, adds, empties and removes a key, and what was committed around it."""
    store.multi_save({"a/1": b"1", "a/2": b"1", "a/3": b"", "b": b"1"})
    clock.advance(1_000)
    commit = store.commit(
        puts={"a/1": b"", "a/new": b"2"}, deletes=["a/2", "a/3"], note="deploy 2", writer="ci"
    )
    clock.advance(1_000)
    store.multi_save({"b": b"2", "c": b"3"}, writer="bob")
    clock.advance(1_000)
    return commit


def text_of(store):
    return dict(store.at().items())


BEFORE = {"a/1": b"1", "a/2": b"1", "a/3": b"", "b": b"2", "c": b"3"}


def test_it_puts_back_what_the_commit_changed_and_nothing_else(store, wrong):
    done = store.revert(wrong.ts)
    assert text_of(store) == BEFORE
    assert [(each.key, each.before, each.after) for each in done.changes] == [
        ("a/1", b"", b"1"),
        ("a/2", None, b"1"),
        ("a/3", None, b""),
        ("a/new", b"2", None),
    ]
    assert done.conflicts == {}
    assert done.commit.note == f"revert {format_time(wrong.ts)}: deploy 2"
    assert list(store.commits())[-1] == done.commit


def test_spaces_and_leased_keys_stay_as_they_are(store, wrong, clock):
    store.live.put("a/1", b"live", ttl=60)
    store.space("s").commit(puts={b"k": b"1"})
    only_a_space = store.resolved()
    clock.advance(1_000)
    assert store.revert(only_a_space) == Reverted(None, (), {})
    store.revert(wrong.ts)
    assert store.space("s").load(b"k") == b"1"
    assert store.live.get("a/1") == b"live"


def test_a_revert_can_be_reverted(store, wrong):
    state = text_of(store)
    first = store.revert(wrong.ts)
    again = store.revert(first.commit.ts)
    assert text_of(store) == state
    store.revert(again.commit.ts)
    assert text_of(store) == BEFORE


def test_a_commit_that_is_reverted_already_changes_nothing(store, wrong, place):
    store.revert(wrong.ts)
    before = place.revision()
    assert store.revert(wrong.ts) == Reverted(None, (), {})
    assert place.revision() == before


@pytest.mark.parametrize(
    ("chosen", "put_back"),
    [
        ({"keys": ["a/1"]}, {"a/1"}),
        ({"prefixes": ["a/n", "a/2"]}, {"a/new", "a/2"}),
        ({"keys": ["a/3"], "prefixes": ["a/n"]}, {"a/3", "a/new"}),
        ({"prefixes": ["a/", "a/1"]}, {"a/1", "a/2", "a/3", "a/new"}),
    ],
)
def test_only_chosen_keys(store, wrong, chosen, put_back):
    done = store.revert(wrong.ts, **chosen)
    assert {each.key for each in done.changes} == put_back
    assert " of " in done.commit.note


@pytest.mark.parametrize("chosen", [{"keys": ["b"]}, {"prefixes": ["a/", "shcema/"]}])
def test_a_key_that_the_commit_did_not_change_is_an_error(store, wrong, place, chosen):
    before = place.revision()
    with pytest.raises(KeyNotFoundError, match=r"no key .* in what the commits changed"):
        store.revert(wrong.ts, **chosen)
    assert place.revision() == before


# --- conflicts ---


@pytest.fixture
def contested(store, wrong, clock):
    """The commit, of which another one changed two keys later."""
    store.commit(puts={"a/1": b"hotfix"}, deletes=["a/new"], writer="eve", note="urgent")
    clock.advance(1_000)
    return wrong


def test_a_key_that_changed_again_is_a_conflict(store, contested, place):
    later, before = list(store.commits())[-1], place.revision()
    with pytest.raises(RevertConflictError) as caught:
        store.revert(contested.ts)
    assert caught.value.conflicts == {"a/1": later}, "a/new is absent, as before the commit"
    assert str(caught.value) == (
        "what the commits changed was changed again later: 'a/1' at "
        f"{format_time(later.ts)} ({later.ts}) by eve ('urgent'): theirs=True leaves such keys as "
        "they are, force=True puts them back, too"
    )
    assert pickle.loads(pickle.dumps(caught.value)).conflicts == {"a/1": later}
    assert place.revision() == before


def test_theirs_leaves_it_alone_and_force_puts_it_back(store, contested):
    later = list(store.commits())[-1]
    done = store.revert(contested.ts, theirs=True)
    assert done.conflicts == {"a/1": later}
    assert text_of(store) == BEFORE | {"a/1": b"hotfix"}
    done = store.revert(contested.ts, force=True)
    assert [each.key for each in done.changes] == ["a/1"]
    assert text_of(store) == BEFORE


def test_a_dry_run_writes_nothing_and_raises_nothing(store, contested, place):
    before = place.revision()
    plain = store.revert(contested.ts, dry_run=True)
    theirs = store.revert(contested.ts, theirs=True, dry_run=True)
    force = store.revert(contested.ts, force=True, dry_run=True)
    assert place.revision() == before
    assert plain == theirs
    assert [each.key for each in theirs.changes] == ["a/2", "a/3"]
    assert [each.key for each in force.changes] == ["a/1", "a/2", "a/3"]
    assert plain.commit is force.commit is None
    assert list(plain.conflicts) == list(force.conflicts) == ["a/1"]


def test_keys_that_are_not_chosen_are_no_conflicts(store, contested):
    store.revert(contested.ts, keys=["a/2"])
    assert store.load("a/2") == b"1"
    assert store.load("a/1") == b"hotfix"


def test_a_later_commit_that_saved_the_same_value_changed_nothing(store, wrong):
    store.save("a/1", b"")
    store.revert(wrong.ts)
    assert text_of(store) == BEFORE


# --- several commits ---


def test_commits_that_are_given_together_are_no_conflicts(store, clock):
    times = [store.save("k", b"0")]
    for value in (b"1", b"2", b"3"):
        clock.advance(1_000)
        times.append(store.save("k", value))
    with pytest.raises(RevertConflictError):
        store.revert(times[1], times[2])
    done = store.revert(times[3], times[2], times[2])
    assert store.load("k") == b"1"
    assert done.commit.note == f"revert {format_time(times[3])}, {format_time(times[2])}"
    store.revert(done.commit.ts, *times)
    assert text_of(store) == {}


def test_around_a_commit_that_stays(store, clock):
    """Newest first: after the newest one is reverted, the older one is a conflict."""
    times = []
    for value in (b"0", b"1", b"stays", b"3"):
        times.append(store.save("k", value))
        clock.advance(1_000)
    with pytest.raises(RevertConflictError) as caught:
        store.revert(times[1], times[3])
    assert [each.ts for each in caught.value.conflicts.values()] == [times[2]]
    store.revert(times[1], times[3], theirs=True)
    assert store.load("k") == b"stays"
    store.revert(times[1], times[3], force=True)
    assert store.load("k") == b"0"


# --- which commit ---


def test_each_way_to_name_a_commit(store, wrong):
    done = [
        store.revert(when, dry_run=True).changes
        for when in (wrong.ts, str(wrong.ts), f"rev:{wrong.revision}", format_time(wrong.ts))
    ]
    assert len(done[0]) == 4
    assert done == done[:1] * 4


def test_a_tick_in_its_millisecond_does_not_hide_it(store, clock):
    commit = store.commit(puts={"a": b"1"})
    assert store.tick().ts > commit.ts
    store.revert(format_time(commit.ts))
    assert text_of(store) == {}


@pytest.mark.parametrize("when", ["-1h", "-1s", 0, "1970-01-01T00:00:00Z", "rev:1"])
def test_a_time_without_a_commit(store, wrong, clock, when):
    clock.advance(500)
    with pytest.raises(InvalidTimeError, match="no commit has the time"):
        store.revert(when)
    tick = store.tick()
    for name in (tick.ts, f"rev:{tick.revision}"):
        with pytest.raises(InvalidTimeError, match="no commit has the time"):
            store.revert(name)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((), {}, InvalidOptionError),
        ((None,), {}, InvalidTypeError),
        (("soon",), {}, InvalidTimeError),
        (("rev:999999999",), {}, FutureRevisionError),
        (("rev:3",), {"theirs": True, "force": True}, InvalidOptionError),
        (("rev:3",), {"keys": "a"}, InvalidTypeError),
        (("rev:3",), {"keys": [b"a"]}, InvalidTypeError),
        (("rev:3",), {"prefixes": "a/"}, InvalidTypeError),
        (("rev:3",), {"prefixes": [None]}, InvalidTypeError),
    ],
)
def test_what_cannot_be_reverted(store, wrong, place, arguments, options, error):
    before = place.revision()
    with pytest.raises(error):
        store.revert(*arguments, **options)
    assert place.revision() == before


def test_a_compacted_commit(store, wrong, clock):
    clock.advance(200_000)
    after = store.save("z", b"1")
    clock.advance(200_000)
    store.compact(after)
    for when in (wrong.ts, after):  # what the oldest commit changed is gone, too
        with pytest.raises(CompactedError):
            store.revert(when)
    assert text_of(store)["a/1"] == b""


# --- limits, and other writers ---


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_it_is_one_commit_or_none(store, clock):
    for n in range(9):
        store.save(f"k{n}", b"x" * 300_000)
        clock.advance(1_000)
    removals = [
        store.commit(deletes=[f"k{n}" for n in part]).ts for part in (range(5), range(5, 9))
    ]
    with pytest.raises(CommitTooLargeError):
        store.revert(*removals)
    assert text_of(store) == {}
    store.revert(removals[1], prefixes=["k5"])
    assert list(text_of(store)) == ["k5"]


@pytest.fixture
def intruded(monkeypatch, place, clock):
    """A store, and another one that is always faster; how often that wrote."""
    engines = wrap_engines(monkeypatch, Intruding)
    store, other = place.open(clock=clock), place.open(clock=clock)
    return store, other, engines[0]


@pytest.mark.parametrize("count", [3, 300])
def test_a_writer_of_other_keys_does_not_disturb(intruded, count):
    """300 keys are more than a server takes guards for: there, the newest commit is checked."""
    store, other, engine = intruded
    store.multi_save({f"k{n:03}": b"1" for n in range(count)})
    wrong = store.multi_save({f"k{n:03}": b"2" for n in range(count)})
    left = [3]

    def intrude():
        if left[0]:
            left[0] -= 1
            other.save("other", b"%d" % left[0])

    engine.intrude = intrude
    store.revert(wrong)
    assert set(store.at().values("k")) == {b"1"}
    assert store.load("other") is not None


@pytest.mark.parametrize("count", [3, 300])
def test_a_writer_of_its_keys_is_never_overwritten(intruded, count):
    store, other, engine = intruded
    store.multi_save({f"k{n:03}": b"1" for n in range(count)})
    wrong = store.multi_save({f"k{n:03}": b"2" for n in range(count)})
    written = []
    engine.intrude = lambda: written.append(other.save("k001", b"other%d" % len(written)))
    with pytest.raises(RevertConflictError) as caught:
        store.revert(wrong)
    engine.intrude = lambda: None
    assert [each.ts for each in caught.value.conflicts.values()] == written[-1:]
    theirs = store.load("k001")
    assert theirs.startswith(b"other")
    assert set(store.at().values("k")) == {b"2", theirs}
    left = [1]
    engine.intrude = lambda: left and other.save("k002", b"new%d" % left.pop())
    store.revert(wrong, theirs=True)
    assert (store.load("k001"), store.load("k002"), store.load("k000")) == (theirs, b"new1", b"1")


def test_a_key_that_is_as_before_is_guarded_too(intruded):
    """A later commit put it back already; one that changes it meanwhile makes it a conflict."""
    store, other, engine = intruded
    store.multi_save({"a": b"1", "b": b"1"})
    wrong = store.multi_save({"a": b"2", "b": b"2"})
    store.save("b", b"1")
    engine.intrude = lambda: other.save("b", b"3")
    with pytest.raises(RevertConflictError) as caught:
        store.revert(wrong)
    assert list(caught.value.conflicts) == ["b"]


def test_a_key_that_is_absent_again_is_not_made_in_silence(intruded):
    """The key is saved and removed while its removal is reverted: the later removal counts."""
    store, other, engine = intruded
    store.save("a", b"1")
    wrong = store.commit(deletes=["a"]).ts
    left = [1]

    def intrude():
        if left and left.pop():
            other.save("a", b"2")
            other.remove("a")

    engine.intrude = intrude
    with pytest.raises(RevertConflictError):
        store.revert(wrong)
    assert "a" not in store.at()


def test_a_revert_that_is_tried_again_opens_no_further_watch(intruded):
    """A server takes 100 ms to bring a new one up to date: then a busy writer is always faster."""
    store, other, engine = intruded
    opened, watch = [], engine.watch
    engine.watch = lambda *args, **rest: opened.append(args) or watch(*args, **rest)
    engine.intrude = lambda: left and other.save("other", b"%d" % left.pop())
    left, counts = list[int](), list[int]()
    for writes in (0, 0, 9):  # the first one opens what a store keeps
        store.save("a", b"1")
        wrong = store.commit(deletes=["a"]).ts
        opened.clear()
        left += range(writes)
        assert store.revert(wrong).commit is not None
        assert not left
        counts.append(len(opened))
    assert counts[1] == counts[2]


def test_writers_that_never_rest_are_an_error_that_says_what_to_do(intruded):
    store, other, engine = intruded
    store.save("a", b"1")
    wrong = store.commit(deletes=["a"]).ts
    engine.intrude = lambda: other.save("other", b"1")
    with pytest.raises(ConflictError, match="in each of 64 tries; try again later") as caught:
        store.revert(wrong)
    assert caught.value.tries == 64
    assert "a" not in store.at()


def test_a_millisecond_with_several_commits_names_none(store, clock):
    first, second = store.commit(puts={"a": b"1"}), store.commit(puts={"b": b"1"})
    clock.advance(1_000)
    store.save("c", b"1")
    with pytest.raises(InvalidTimeError, match=r"several commits .*: name one as rev:\d+, rev:\d+"):
        store.revert(format_time(first.ts))
    store.revert(f"rev:{first.revision}")
    assert text_of(store) == {"b": b"1", "c": b"1"}
    store.revert(second.ts)
    assert text_of(store) == {"c": b"1"}
