"""Whatever is given for whatever argument of a database: an answer, or an error of ours."""

import itertools
from collections.abc import Iterator

import pytest

import snapkv
from cdcmeta.changes import ChangesDB
from cdcmeta.changes.database import databases
from cdcmeta.errors import CDCMetaError, InvalidArgumentError
from cdcmeta.generations import CdcLog, GenerationLog, Generations, composite_key

BAD = [
    None, True, 5, -1, 1 << 70, -0.5, float("nan"), "", "\0", "\ud800", "x" * 5_000, "ab", b"",
    b"\xff", [], {}, (), object(), object, ["a"], [b"a"], [5], [None], [[]], {"a": 1},
    {"a": "ab"}, {"a": None}, {5: []}, {"_id": 5}, {"_id": "\ud800"}, lambda *_: None,
]  # fmt: skip

CALLS = {
    "store": lambda db, x: ChangesDB(x, "d"),
    "name": lambda db, x: ChangesDB(db.store, x),
    "databases": lambda db, x: databases(x),
    "create": lambda db, x: ChangesDB(db.store, "new").create(revs_limit=x),
    "relocate": lambda db, x: db.relocate(x) if x is not None else None,
    "set_revs_limit": lambda db, x: db.set_revs_limit(x),
    "put": lambda db, x: db.put(x),
    "put rev": lambda db, x: db.put({"_id": "a"}, rev=x),
    "put timeout": lambda db, x: db.put({"_id": "b"}, timeout=x),
    "remove": lambda db, x: db.remove(x, "1-x"),
    "remove rev": lambda db, x: db.remove("a", x),
    "bulk": lambda db, x: db.bulk(x),
    "bulk of": lambda db, x: db.bulk([x]),
    "replicate": lambda db, x: db.replicate(x),
    "replicate of": lambda db, x: db.replicate([x]),
    "resolve": lambda db, x: db.resolve(x),
    "get": lambda db, x: db.get(x),
    "get rev": lambda db, x: db.get("a", x),
    "open_revs": lambda db, x: db.open_revs("a", x),
    "missing_revs": lambda db, x: db.missing_revs(x),
    "missing_revs of": lambda db, x: db.missing_revs({"a": x}),
    "documents": lambda db, x: db.documents(x),
    "history": lambda db, x: db.history(x),
    "changes since": lambda db, x: db.changes(since=x),
    "changes limit": lambda db, x: db.changes(limit=x),
    "changes style": lambda db, x: db.changes(style=x),
    "changes selector": lambda db, x: db.changes(selector=x),
    "changes doc_ids": lambda db, x: db.changes(doc_ids=x),
    "place": lambda db, x: db.place(x),
    "place state": lambda db, x: db.place(0, x),
    "local get": lambda db, x: db.local.get(x),
    "GenerationLog": lambda db, x: GenerationLog(x),
    "GenerationLog name": lambda db, x: GenerationLog(db.store, x),
    "CdcLog": lambda db, x: CdcLog(x, Generations()),
    "CdcLog streams": lambda db, x: CdcLog(db.store, x),
    "CdcLog name": lambda db, x: CdcLog(db.store, Generations(), x),
    "composite_key": lambda db, x: composite_key(x),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_or_an_error_of_ours(call):
    with snapkv.open("memory:") as store:
        db = ChangesDB(store, "d").create()
        db.put({"_id": "a", "v": 1})
        for value in BAD:
            try:
                found = CALLS[call](db, value)
                if isinstance(found, Iterator):
                    list(itertools.islice(found, 5))
            except (CDCMetaError, snapkv.SnapKVError):
                continue
            except Exception as e:
                raise AssertionError(f"{call} {value!r:.30}: {type(e).__name__} leaks") from e


def test_a_store_with_a_codec_is_no_store_of_documents():
    with snapkv.open("memory:") as store:
        coded = store.with_codec(snapkv.codecs.json)
        with pytest.raises(InvalidArgumentError, match=r"pass store\.raw"):
            ChangesDB(coded, "d")
        assert ChangesDB(coded.raw, "d").create().store is store


@pytest.mark.parametrize("call", ["bulk", "replicate", "open_revs", "missing_revs of"])
def test_one_text_is_not_taken_for_many(call):
    with snapkv.open("memory:") as store:
        db = ChangesDB(store, "d").create()
        with pytest.raises(InvalidArgumentError):
            CALLS[call](db, "ab")
