"""Whatever is given for whatever argument: an answer, or an error of ours."""

import contextlib
import io
import itertools
from collections.abc import Iterator

import pytest

import snapkv
from snapkv import Absent, AtRevision, HeadAt, Held, Ops, SnapKVError, SpaceOps
from snapkv.errors import InvalidTypeError

BAD = [
    None, True, 5, -1, 1 << 70, -0.5, float("nan"), float("inf"),
    "", "\0", "\ud800", "x" * 5_000, b"", b"\0", b"\xff",
    [], {}, (), object(), object, ["a"], [b"a"], [5], [None], [[]], [("a",)], ["ab"],
    {"a": 1}, {5: b""}, {"a": b"1"}, {b"k": b"1"}, lambda *_: None,
]  # fmt: skip

CALLS = {
    "save key": lambda s, x: s.save(x, b""),
    "save value": lambda s, x: s.save("k", x),
    "remove": lambda s, x: s.remove(x),
    "multi_save": lambda s, x: s.multi_save(x),
    "multi_save additions": lambda s, x: s.multi_save({}, x),
    "removals": lambda s, x: s.multi_save_and_remove_with_prefix({}, x),
    "commit": lambda s, x: s.commit(x) if not isinstance(x, type) else None,
    "puts": lambda s, x: s.commit(puts=x),
    "deletes": lambda s, x: s.commit(deletes=x),
    "prefixes": lambda s, x: s.commit(delete_prefixes=x),
    "guards": lambda s, x: s.commit(guards=x),
    "note": lambda s, x: s.commit(note=x),
    "writer": lambda s, x: s.save("k", b"", writer=x),
    "meta": lambda s, x: s.commit(meta=x),
    "meta name": lambda s, x: s.commit(meta={x: 1}) if hashable(x) else None,
    "meta value": lambda s, x: s.commit(meta={"a": x}),
    "meta beside a function": lambda s, x: s.commit(lambda _: Ops(), meta=x),
    "space meta": lambda s, x: s.space("s").commit(meta=x),
    "build returns": lambda s, x: s.commit(lambda _: x),
    "addition returns": lambda s, x: s.commit(additions=[lambda _: x]),
    "Ops spaces": lambda s, x: s.commit(lambda _: Ops(spaces=x)),
    "Ops puts": lambda s, x: s.commit(lambda _: Ops(puts=x)),
    "SpaceOps puts": lambda s, x: s.commit(lambda _: Ops(spaces={"s": SpaceOps(puts=x)})),
    "SpaceOps deletes": lambda s, x: s.commit(lambda _: Ops(spaces={"s": SpaceOps(deletes=x)})),
    "Absent": lambda s, x: s.commit(guards=[Absent(x)]),
    "AtRevision": lambda s, x: s.commit(guards=[AtRevision("a", x)]),
    "AtRevision key": lambda s, x: s.commit(guards=[AtRevision(x, 5)]),
    "HeadAt": lambda s, x: s.commit(guards=[HeadAt(x)]),
    "Held key": lambda s, x: s.commit(guards=[Held(x, 5)]),
    "Held": lambda s, x: s.commit(guards=[Held(b"k", x)]),
    "resolve nonce": lambda s, x: s.resolve(s.resolved(), x),
    "resolve batch": lambda s, x: s.resolve(s.resolved(), b"n", batch=x),
    "resolve guards": lambda s, x: s.resolve(s.resolved(), b"n", guards=x),
    "commits limit": lambda s, x: s.commits(limit=x),
    "space": lambda s, x: s.space(x),
    "with_codec": lambda s, x: s.with_codec(x),
    "live key": lambda s, x: s.live.put(x, b"", ttl=5),
    "live value": lambda s, x: s.live.put("k", x, ttl=5),
    "live ttl": lambda s, x: s.live.put("k", b"", x),
    "live session": lambda s, x: s.live.put("k", b"", session=x),
    "live get": lambda s, x: s.live.get(x),
    "live items": lambda s, x: s.live.items(x),
    "live watch": lambda s, x: s.live.watch(x, timeout=0.0),
    "live watch since": lambda s, x: s.live.watch(since=x, timeout=0.0),
    "election": lambda s, x: s.election(x),
    "election session": lambda s, x: s.election("e", session=x),
    "dump mode": lambda s, x: s.dump(io.BytesIO(), mode=x),
    "load_dump meta": lambda s, x: s.load_dump(io.BytesIO(), meta=x),
    "load_dump note": lambda s, x: s.load_dump(io.BytesIO(), note=x),
    "update key": lambda s, x: s.update(x, lambda _: b"1"),
    "update returns": lambda s, x: s.update("k", lambda _: x),
    "update tries": lambda s, x: s.update("k", lambda _: b"1", tries=x),
    "update guards": lambda s, x: s.update("k", lambda _: b"1", guards=x),
    "get": lambda s, x: s.get(x),
    "get at": lambda s, x: s.get("k", None, x),
    "load": lambda s, x: s.load(x),
    "entry": lambda s, x: s.entry(x),
    "entries_of": lambda s, x: s.entries_of(x),
    "load_with_prefix": lambda s, x: s.load_with_prefix(x),
    "at revision": lambda s, x: s.at(revision=x),
    "diff prefix": lambda s, x: s.diff(0, None, x),
    "changes_to_arrow": lambda s, x: s.changes_to_arrow(x),
    "history_to_arrow": lambda s, x: s.history_to_arrow(x),
    "history": lambda s, x: s.history(x),
    "history limit": lambda s, x: s.history("a", limit=x),
    "history newest_first": lambda s, x: s.history("a", newest_first=x),
    "history since": lambda s, x: s.history("a", since=x),
    "history until": lambda s, x: s.history("a", until=x, newest_first=True),
    "watch prefix": lambda s, x: s.watch(x, timeout=0.0),
    "space load": lambda s, x: s.space("s").load(x),
    "space entries_of": lambda s, x: s.space("s").entries_of(x),
    "space puts": lambda s, x: s.space("s").commit(puts=x),
    "space deletes": lambda s, x: s.space("s").commit(deletes=x),
    "space prefixes": lambda s, x: s.space("s").commit(delete_prefixes=x),
    "snapshot entry": lambda s, x: s.at().entry(x),
    "snapshot get": lambda s, x: s.at().get(x),
    "snapshot contains": lambda s, x: x in s.at(),
    "snapshot entries_of": lambda s, x: s.at().entries_of(x),
    "snapshot items_of": lambda s, x: s.at().items_of(x),
    "snapshot items_of one": lambda s, x: s.at().items_of([(x, "b")]),
    "snapshot entries": lambda s, x: s.at().entries(x),
    "snapshot items": lambda s, x: s.at().items(x),
    "snapshot items start": lambda s, x: s.at().items(start=x),
    "snapshot items after": lambda s, x: s.at().items(after=x),
    "snapshot items limit": lambda s, x: s.at().items(limit=x),
    "snapshot entries limit": lambda s, x: s.at().entries(limit=x),
    "snapshot keys": lambda s, x: s.at().keys(end=x),
    "snapshot values": lambda s, x: s.at().values(x),
    "snapshot count": lambda s, x: s.at().count(x),
    "snapshot to_arrow": lambda s, x: s.at().to_arrow(x),
    "snapshot diff": lambda s, x: s.at().diff(x),
}  # fmt: skip


def hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def consume(answer: object) -> None:
    with contextlib.ExitStack() as stack:
        if isinstance(answer, snapkv.Watch):
            stack.enter_context(answer)
        elif isinstance(answer, Iterator):
            list(itertools.islice(answer, 5))


def shown(value: object) -> str:
    return repr(value)[:30]


@pytest.mark.slow
@pytest.mark.long_on("etcd")
def test_an_answer_or_an_error_of_ours(store, subtests: pytest.Subtests):
    for name, call in CALLS.items():
        store.commit(delete_prefixes=[""])
        store.multi_save({"a": b"1", "b": b"2"})
        with subtests.test(call=name):
            for value in BAD:
                try:
                    consume(call(store, value))
                except SnapKVError:
                    continue
                except Exception as e:
                    raise AssertionError(f"{shown(value)}: {type(e).__name__} leaks") from e


@pytest.mark.parametrize("option", [
    "url", "name", "ring_slots", "retain", "writer", "commit_timeout", "max_clock_skew", "create",
    "past", "durability", "map_bytes", "request_bytes_max", "mode",
])  # fmt: skip
def test_options_of_open(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    for number, value in enumerate([*BAD, "lmdb:\ud800", "lmdb:a\0b", "lmdb:~/m", "etcd://\ud800"]):
        options = {"url": f"lmdb:{number}", option: value}
        try:
            snapkv.open(options.pop("url"), **options).close()
        except SnapKVError:
            continue
        except Exception as e:
            raise AssertionError(f"{option}={shown(value)}: {type(e).__name__} leaks") from e


ONE_FOR_MANY = {
    "entries_of": lambda s: s.entries_of("ab"),
    "entries_of bytes": lambda s: s.space("s").entries_of(b"ab"),
    "snapshot entries_of": lambda s: s.at().entries_of("ab"),
    "items_of": lambda s: s.at().items_of("ab"),
    "items_of of texts": lambda s: s.at().items_of(["ab"]),
    "deletes": lambda s: s.commit(deletes="ab"),
    "space deletes": lambda s: s.space("s").commit(deletes=b"ab"),
    "Ops deletes": lambda s: s.commit(lambda _: Ops(deletes="ab")),
    "delete_prefixes": lambda s: s.commit(delete_prefixes="ab"),
    "puts": lambda s: s.commit(puts=["ab"]),
    "guards": lambda s: s.resolve(s.resolved(), b"n", guards="ab"),
}


def test_one_text_is_not_taken_for_many(store, subtests: pytest.Subtests):
    store.multi_save({"a": b"1", "b": b"2"})
    for name, call in ONE_FOR_MANY.items():
        with subtests.test(call=name), pytest.raises(InvalidTypeError):
            call(store)
    assert dict(store.at().items()) == {"a": b"1", "b": b"2"}
