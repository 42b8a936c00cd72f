"""A moment as a file and back: all of it or an error, never a part."""

import io

import msgpack
import pytest
from store.engines import assert_sound

import snapkv
from snapkv import Ops, SnapKVError, SpaceOps
from snapkv.engine.contract import Put, Txn
from snapkv.errors import (
    CompactedError,
    CorruptStoreError,
    FormatError,
    NotAStoreError,
    StoreNotEmptyError,
)

pytestmark = pytest.mark.slow

SPACES = ("s", "a/b", "%")


def everything(store, when=None):
    found = {"": dict(store.at(when).items())}
    for name in SPACES:
        found[name] = dict(store.space(name).at(when).items())
    return found


def dumped(store, at=None):
    file = io.BytesIO()
    store.dump(file, at)
    return file.getvalue()


@pytest.fixture
def filled(store, clock):
    """A store with data and spaces; a past of it; and what it was then."""
    ts = store.commit(
        lambda stamp: Ops(
            puts={"a": b"1", "p/\u00e9": b"\0\xff", "gone": b""},
            spaces={
                "s": SpaceOps(puts={b"\0/%2F": b"s", b"k": b""}),
                "a/b": SpaceOps(puts={b"k": b"ab"}),
                "%": SpaceOps(puts={b"k": b"percent"}),
            },
        )
    ).ts
    before = everything(store)
    clock.advance(1_000)
    store.multi_save_and_remove_with_prefix({"a": b"2", "new": b"2"}, ["gone"])
    store.space("s").commit(delete_prefixes=[b""])
    return ts, before


@pytest.fixture
def target(place, clock):
    store = place.open(name="target", clock=clock, writer="bob@test")
    yield store
    assert_sound(store)


def test_there_and_back(store, filled, target):
    file = io.BytesIO()
    assert store.dump(file) == 3 + 0 + 1 + 1
    file.seek(0)
    commit = target.load_dump(file, note="from a file")
    assert everything(target) == everything(store)
    assert list(target.commits()) == [commit]
    assert (commit.writer, commit.note) == ("bob@test", "from a file")


def test_a_past_moment(store, filled, target, tmp_path):
    ts, before = filled
    assert store.dump(tmp_path / "dump", at=ts) == 7
    target.load_dump(str(tmp_path / "dump"))
    assert everything(target) == before == everything(store, ts)


def test_the_same_moment_gives_the_same_bytes(store, filled):
    ts, _ = filled
    first = dumped(store, ts)
    store.save("later", b"1")
    assert dumped(store, ts) == first


def test_an_empty_store(store, target):
    file = io.BytesIO(dumped(store))
    target.load_dump(file)
    assert everything(target) == everything(store)


def test_a_store_with_keys_is_not_overwritten_unless_told(store, filled, target, place):
    data = dumped(store)
    for fill in (
        lambda: target.save("mine", b"1"),
        lambda: target.space("mine").commit(puts={b"k": b"1"}),
    ):
        fill()
        before = place.revision()
        with pytest.raises(StoreNotEmptyError):
            target.load_dump(io.BytesIO(data))
        assert place.revision() == before
        commit = target.load_dump(io.BytesIO(data), replace=True)
        assert everything(target) == everything(store)
        assert len(target.space("mine").at()) == 0
        assert "mine" not in target.at()
        assert target.at(commit.ts - 1).get("mine") or target.space("mine").at(commit.ts - 1)
        target.restore(0, before_first=True)
        target.commit(
            lambda stamp: Ops(spaces={n: SpaceOps(delete_prefixes=[b""]) for n in SPACES})
        )


def test_a_store_that_was_emptied_can_be_loaded_into(store, filled, target):
    target.save("k", b"1")
    target.remove("k")
    target.load_dump(io.BytesIO(dumped(store)))
    assert everything(target) == everything(store)


def test_a_cut_file_at_every_position(store, filled, target, place):
    data, before = dumped(store), place.revision()
    for length in range(len(data)):
        with pytest.raises((NotAStoreError, CorruptStoreError)):
            target.load_dump(io.BytesIO(data[:length]))
    assert place.revision() == before
    assert everything(target)[""] == {}


@pytest.mark.parametrize(
    "more", [b"\0", b"x", b"\xc1", msgpack.packb({}), msgpack.packb([b"data/a", b""])]
)
def test_whatever_follows_the_end(store, filled, target, place, more):
    before = place.revision()
    with pytest.raises(CorruptStoreError):
        target.load_dump(io.BytesIO(dumped(store) + more))
    assert place.revision() == before


def test_every_single_bit_that_flips(store, filled, target, place):
    data, before = dumped(store), place.revision()
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises((NotAStoreError, CorruptStoreError, FormatError)):
                target.load_dump(io.BytesIO(bytes(damaged)))
    assert place.revision() == before


def test_pairs_that_were_lost_or_swapped(store, filled, target):
    items = list(msgpack.Unpacker(io.BytesIO(dumped(store))))
    pack = lambda items: b"".join(map(msgpack.packb, items))  # noqa: E731
    assert pack(items) == dumped(store)
    for damaged in (
        [items[0], *items[2:]],
        [items[0], items[2], items[1], *items[3:]],
        [*items[:2], *items[1:]],
        items[1:],
        items[:-1],
        [items[-1], *items],
    ):
        with pytest.raises((NotAStoreError, CorruptStoreError)):
            target.load_dump(io.BytesIO(pack(damaged)))


def test_a_newer_format(store, filled, target):
    items = list(msgpack.Unpacker(io.BytesIO(dumped(store))))
    items[0]["format"] = 2
    with pytest.raises(FormatError) as caught:
        target.load_dump(io.BytesIO(b"".join(map(msgpack.packb, items))))
    assert (caught.value.found, caught.value.supported) == (2, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"PK\x03\x04" + b"\0" * 64,
        b"{}",
        b"\x80",
        b"\xc1",
        b"\xff" * 32,
        b"\x93\x01\x02\x03",
        b"\x91" * 5_000,
        b"\xdd\x7f\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"hello, world\n",
    ],
    ids=lambda data: repr(data[:8]),
)
def test_files_that_are_no_dumps(target, data, place):
    before = place.revision()
    with pytest.raises((NotAStoreError, CorruptStoreError)) as caught:
        target.load_dump(io.BytesIO(data))
    assert isinstance(caught.value, SnapKVError)
    assert place.revision() == before


def test_files_that_are_not_there(target, tmp_path):
    with pytest.raises(FileNotFoundError):
        target.load_dump(tmp_path / "none")


def test_a_moment_that_is_gone_writes_no_file_that_could_be_taken_for_one(store, filled, clock):
    ts, _ = filled
    clock.advance(200_000)
    store.compact("-0s")
    file = io.BytesIO()
    with pytest.raises(CompactedError):
        store.dump(file, ts)
    with pytest.raises((NotAStoreError, CorruptStoreError)):
        store.load_dump(io.BytesIO(file.getvalue()), replace=True)


def test_more_than_a_page(store, target):
    store.multi_save({f"k{n:05}": b"%d" % n for n in range(12_000)})
    target.load_dump(io.BytesIO(dumped(store)))
    assert target.at() == dict(store.at().items())


@pytest.mark.parametrize("there", ["nothing", "the same", "others"])
def test_what_fits_one_commit_can_be_loaded_in_one(tmp_path, there):
    """Many short keys, which a removal of all that is between them would double."""
    bound = 200_000
    url, target_url = f"lmdb:{tmp_path}/a", f"lmdb:{tmp_path}/b"
    puts = {f"{n:05}": b"" for n in range(3_700)}
    with (
        snapkv.open(url, request_bytes_max=bound) as store,
        snapkv.open(target_url, request_bytes_max=bound) as target,
    ):
        store.commit(puts=puts)
        if there == "the same":
            target.commit(puts={**dict.fromkeys(list(puts)[::2], b"old"), "x": b"", "y": b""})
        elif there == "others":
            for at in range(0, 6_000, 2_000):
                target.commit(puts={f"x{n}": b"" for n in range(at, at + 2_000)})
            puts = {f"{n:05}": b"" for n in range(0, 3_700, 3)}
            store.commit(puts=puts, delete_prefixes=[""])
        file = io.BytesIO(dumped(store))
        target.load_dump(file, replace=there != "nothing")
        assert dict(target.at().items()) == puts
        assert_sound(target)


def test_keys_that_are_no_text_are_replaced_too():
    """Another program wrote one into the keys of the store."""
    with snapkv.open("memory:no text") as store, snapkv.open("memory:no text", name="t") as target:
        store.save("a", b"1")
        put = Put(b"t/data/\xff", b"1")
        target._core.engine.transact(lambda _: Txn(success=(put,)), b"-", timeout=10)
        target.tick()  # which stamps it
        target.load_dump(io.BytesIO(dumped(store)), replace=True)
        assert dict(target.at().items()) == {"a": b"1"}
