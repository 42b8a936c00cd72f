"""Tokens: the same cut in another fleet, or an error; never another state."""

import json
import random
import shutil

import pytest
from store.wrapping import backup

import snapkv
from snapkv import MembersBehindError
from snapkv.engine import memory
from snapkv.engine.memory import MemoryEngine
from snapkv.errors import (
    InvalidOptionError,
    InvalidTypeError,
    SnapKVError,
    StoreRecreatedError,
    StoreRestoredError,
)

from .histories import PREFIX, Writing
from .sites import eventually


def contents(moment):
    """What a moment shows, but for how far its members have come since."""
    seen = {name: (s.state, s.timestamp, s.revision) for name, s in moment.members.items()}
    return moment.timestamp, moment.final, seen, dict(moment.items())


# --- the same cut ---


@pytest.mark.parametrize("seed", range(3))
def test_the_same_cut_in_another_fleet(sites, seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    sites.add("m1", "m2")
    sites.add("disk", kind="lmdb")
    described = sites.described() | {"seen": sites.described_as("m2", prefix=PREFIX)}
    writing, fleet, tokens = Writing(sites, rng), sites.fleet(described), []
    sites.tick()
    for _ in range(15):
        writing.steps(3)
        for behind, when in (("error", None), ("stale", sites.now), ("leave out", sites.now)):
            moment = fleet.at(when, behind=behind)
            tokens.append((moment.token, contents(moment)))
    assert len({token for token, _ in tokens}) > 20
    for other in (fleet, sites.fleet(described)):
        for token, before in rng.sample(tokens, 20):
            again = other.at(token=token)
            timestamp, final, seen, items = contents(again)
            assert (timestamp, final, items) == (before[0], before[1], before[3])
            for name, (state, *place) in before[2].items():
                left_out = state == "behind" and not place[1]
                assert seen[name] == ("missing" if left_out else state, *place)
            if not any(s == ("behind", 0, 0) for s in before[2].values()):
                assert again.token == token
                assert contents(other.at(token=again.token)) == contents(again)


def test_the_cut_of_archives(sites):
    sites.add("a", "b")
    for name in "ab":
        sites.later()
        sites[name].save("k", b"1")
        sites.archive(name)
    members = {name: f"archive:{sites.folder}/archives/{name}" for name in "ab"}
    moment = sites.fleet(members).at("+1h", behind="stale")
    again = sites.fleet(members).at(token=moment.token)
    assert contents(again) == contents(moment)
    live = sites.fleet().at(token=moment.token)
    assert dict(live) == dict(moment), "a store has the commits of its archive"


def test_tokens_of_some_members(sites):
    sites.add("a", "b", "c")
    ts = min(sites.tick().values())
    fleet = sites.fleet()
    token = fleet.at(ts, members="a,c").token
    assert list(fleet.at(token=token).members) == ["a", "c"]
    assert json.loads(token)["timestamp"] == ts
    assert list(json.loads(token)["members"]) == ["a", "c"]
    assert list(sites.fleet(sites.described("a", "c")).at(token=token).members) == ["a", "c"]
    with pytest.raises(InvalidOptionError, match="'c', which is not a member of this fleet"):
        sites.fleet(sites.described("a", "b")).at(token=token)


def test_a_member_that_was_not_written_to_since_it_joined(sites):
    """Its newest commit is older than its membership; the cut shows it all the same."""
    sites.add("a", "b")
    sites["b"].save("k", b"1")
    joined = sites.later()
    sites.later()
    stamps = sites.tick()
    members = sites.described() | {"b": sites.described_as("b", joined=joined)}
    fleet = sites.fleet(members)
    moment = fleet.at(stamps["b"] - 1)
    assert moment.members["b"].timestamp < joined
    for behind in ("error", "stale", "leave out"):
        again = sites.fleet(members).at(token=moment.token, behind=behind)
        assert contents(again) == contents(moment)
        assert again["b", "k"] == b"1"
    sites["b"].save("k", b"2")
    kept = sites.described() | {"b": f"archive:{sites.archive('b')}"}
    kept["b"] = {"url": kept["b"], "joined": joined}
    assert sites.fleet(kept).at(token=moment.token)["b", "k"] == b"1"


def test_absent_members_stay_absent(sites):
    sites.add("a", "b")
    ts = sites["a"].save("k", b"1")
    left = sites["b"].save("k", b"2") + 5
    members = sites.described() | {"b": sites.described_as("b", left=left)}
    sites.later()
    late = sites.tick("a")["a"]
    moment = sites.fleet(members).at(late)
    assert moment.members["b"].state == "absent"
    again = sites.fleet().at(token=moment.token)
    assert contents(again) == contents(moment)
    assert sites.fleet(members).at(ts)["b", "k"] == b"2"


def test_missing_members_stay_missing(sites, servers):
    sites.add("a", "b", "empty")
    sites["b"].save("k", b"2")
    sites.later()
    ts = sites["a"].save("k", b"1")
    servers.set(sites.urls["b"], "away")
    moment = sites.fleet().at(ts, behind="stale")
    states = {name: seen.state for name, seen in moment.members.items()}
    assert states == {"a": "live", "b": "missing", "empty": "missing"}
    servers.set(sites.urls["b"], "here")
    sites.tick()
    for behind in ("error", "stale"):
        again = sites.fleet().at(token=moment.token, behind=behind)
        assert contents(again) == contents(moment)
        assert not again.final
        assert "missing when the token was made" in again.members["b"].error


def test_a_member_of_a_token_that_is_away(sites, servers):
    sites.add("a", "b")
    ts = min(store.save("k", b"1") for store in sites.stores.values())
    token = sites.fleet().at(ts).token
    servers.set(sites.urls["b"], "away")
    fleet = sites.fleet()
    with pytest.raises(MembersBehindError) as e:
        fleet.at(token=token)
    assert list(e.value.members) == ["b"]
    for behind in ("stale", "leave out"):
        moment = fleet.at(token=token, behind=behind)
        assert moment.members["b"].state == "missing"
        assert not moment.final
    servers.set(sites.urls["b"], "here")
    eventually(lambda: fleet.at(token=token, behind="stale").final)


def test_a_cut_that_was_compacted_is_an_error(sites):
    (a,) = sites.add("a")
    ts = a.save("k", b"1")
    sites.later(1_000_000)
    newest = a.save("k", b"2")
    token = sites.fleet().at(ts).token
    folder = sites.archive("a")
    sites.later(1_000_000)
    a.compact(newest, past_recordings=True)
    with pytest.raises(MembersBehindError, match="compacted"):
        sites.fleet().at(token=token)
    kept = sites.fleet({"a": sites.described_as("a", archive=folder)}).at(token=token)
    assert kept["a", "k"] == b"1"
    assert kept.final


# --- restored stores ---


def set_back(sites, name, revision, *, same_cluster=True):
    """Set a member's engine back to a revision, with all that its store had then."""
    url = sites.urls[name]
    sites.stores.pop(name).close()
    found = memory._shared[url]
    memory._shared[url] = backup(found, revision, same_cluster=same_cluster)
    sites.stores[name] = sites.open(name)


@pytest.mark.parametrize("same_cluster", [True, False])
@pytest.mark.parametrize("again", [0, 1, 2, 5])
@pytest.mark.parametrize("to", [0, 1, 3, 4])
def test_after_a_restore_it_is_the_same_cut_or_an_error(sites, to, again, same_cluster):
    sites.add("a", "b")
    revisions, moments = [sites["a"].reader.timeline.head().revision], []
    fleet = sites.fleet()
    for n in range(6):
        sites.later()
        ts = sites["a"].save("k", b"%d" % n)
        sites["b"].save("k", b"%d" % n)
        sites.tick("b")
        revisions.append(sites["a"].at(ts).revision)
        moments.append(fleet.at(ts))
    before = [(moment.token, contents(moment)) for moment in moments]
    set_back(sites, "a", revisions[to], same_cluster=same_cluster)
    sites.clock.set(sites.clock.now_ms() - 5_500)
    for n in range(again):
        sites.later()
        sites["a"].save("k", b"again %d" % n)
    sites.clock.advance(60_000)
    sites.tick()
    other = sites.fleet()
    for n, (token, content) in enumerate(before):
        for behind in ("error", "stale", "leave out"):
            if n < to:
                assert contents(other.at(token=token, behind=behind)) == content
                continue
            with pytest.raises(StoreRestoredError, match="revision") as e:
                other.at(token=token, behind=behind)
            assert e.value.member == "a"


def test_a_copied_folder_that_was_put_back(sites):
    sites.add("a", kind="lmdb")
    sites.add("b")
    sites["a"].save("k", b"1")
    path = sites.urls["a"].removeprefix("lmdb:")
    sites.stores.pop("a").close()
    shutil.copytree(path, f"{path}-copy")
    store = sites.open("a")
    sites.later()
    ts = store.save("k", b"2")
    sites["b"].save("k", b"2")
    fleet = sites.fleet()
    token = fleet.at(ts, behind="stale").token
    fleet.close()
    store.close()
    shutil.rmtree(path)
    shutil.copytree(f"{path}-copy", path)
    sites.later()
    sites.open("a").save("k", b"3")
    with pytest.raises(StoreRestoredError) as e:
        sites.fleet().at(token=token)
    assert e.value.member == "a"


@pytest.mark.parametrize("commits", [0, 1, 5])
def test_a_store_that_was_created_again(sites, commits):
    sites.add("a", "b")
    ts = min(store.save("k", b"1") for store in sites.stores.values())
    token = sites.fleet().at(ts).token
    memory._shared[sites.urls["a"]] = MemoryEngine(sites.urls["a"])
    store = sites.open("a")
    for _ in range(commits):
        store.save("k", b"1")
    for behind in ("error", "stale", "leave out"):
        with pytest.raises(StoreRecreatedError) as e:
            sites.fleet().at(token=token, behind=behind)
        assert e.value.member == "a"


def test_a_restore_under_an_open_fleet(sites, servers):
    sites.add("a", "b")
    fleet = sites.fleet()
    first = sites["a"].save("k", b"1")
    sites["b"].save("k", b"1")
    sites.later()
    moment = fleet.at(first)
    second = sites["a"].save("k", b"2")
    late = fleet.at(second, behind="stale")
    (engine,) = servers.of[sites.urls["a"]]
    revision = sites["a"].at(first).revision
    engine.inner = sites.keep(backup(engine.inner, revision, same_cluster=True))
    for token in (moment.token, late.token):
        with pytest.raises(StoreRestoredError) as e:
            dict(fleet.at(token=token).items())
        assert e.value.member == "a"
    for each in (moment, late):
        with pytest.raises(StoreRestoredError):
            each["a", "k"]
    other = sites.fleet({"a": snapkv.store.open.open_on(engine.inner), "b": sites.urls["b"]})
    assert other.at(token=moment.token)["a", "k"] == b"1"
    with pytest.raises(StoreRestoredError):
        other.at(token=late.token)


# --- what is no token ---


@pytest.mark.parametrize(
    "token",
    [
        *("", "x", "{}", "[]", "null", "5", '"x"', "{", "[" * 100_000, "\ud800"),
        '{"format": 2, "timestamp": 1, "members": {}}',
        '{"format": 1, "timestamp": 1}',
        '{"format": 1, "timestamp": 1, "members": {}}',
        '{"format": 1, "timestamp": 1, "members": []}',
        *(
            f'{{"format": 1, "timestamp": {number}, "members": {{"a": ["", "seen", 1, 1, 1]}}}}'
            for number in ("-1", "true", "1.5", '"1"', "9" * 5_000, 1 << 64)
        ),
        *(
            f'{{"format": 1, "timestamp": 1, "members": {{"a": {place}}}}}'
            for place in (
                *("null", '"seen"', "[]", '["", "seen", 1, 1]', '["", "seen", 1, 1, 1, 1]'),
                *('["x", "seen", 1, 1, 1]', '[5, "seen", 1, 1, 1]', '["", "seen", 1, 1, NaN]'),
                *('["", "seen", 1, 1, -1]', f'["", "seen", 1, 1, {1 << 64}]', "{}"),
            )
        ),
    ],
    ids=lambda each: each[-30:],
)
def test_texts_that_are_no_tokens(sites, token):
    sites.add("a")
    sites.tick()
    fleet = sites.fleet()
    for call in (lambda: fleet.at(token=token), lambda: fleet.watch(resume=token)):
        with pytest.raises(InvalidOptionError, match="is not the token of a fleet's moment"):
            call()


@pytest.mark.parametrize("token", [5, True, b"{}", {}, []])
def test_what_is_no_text(sites, token):
    sites.add("a")
    for call in (lambda: sites.fleet().at(token=token), lambda: sites.fleet().watch(resume=token)):
        with pytest.raises(InvalidTypeError, match="token"):
            call()


def test_damaged_tokens(sites):
    """Whatever is in a token, the answer is a typed error or a moment of these members."""
    seed = 11
    print(f"seed {seed}")
    rng = random.Random(seed)
    sites.add("a", "b")
    for store in sites.stores.values():
        store.save("k", b"1")
    fleet = sites.fleet()
    token = fleet.at(sites.now, behind="stale").token
    errors = set()
    for _ in range(2_000):
        damaged = list(token)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.choice([0, 1, 1, 5])] = rng.choice(
                ["", "0", "9", '"', ",", "[", "{", "null", "é", "-", "a"]
            )
        try:
            moment = fleet.at(token="".join(damaged), behind=rng.choice(["error", "stale"]))
        except SnapKVError as e:
            errors.add(type(e).__name__)
            continue
        assert set(moment.members) <= {"a", "b"}
        dict(moment.items())
    assert "InvalidOptionError" in errors
    assert "StoreRestoredError" in errors
