"""A directory that an older version of the code made: it opens, and everything in it is found."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

import snapkv

OLD = Path(__file__).parents[1] / "vectors" / "lmdb_0_1"
"""Made before modules moved into packages: 40 commits, of which the first four are compacted."""
STATES = json.loads((OLD / "states.json").read_text())


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A copy of the old directory, without LMDB's lock file, which every opening makes."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress((OLD / "data.mdb.gz").read_bytes()))
    shutil.copy(OLD / "writer.lock", tmp_path)
    return f"lmdb:{tmp_path}"


def test_every_moment_is_as_it_was(old: str) -> None:
    with snapkv.open(old, create=False) as store:
        for state in STATES[4:]:
            snap = store.at(state["ts"])
            assert {key: value.hex() for key, value in snap.items()} == state["keys"]
            assert snap.revision == state["revision"]
        stamps = [state["ts"] for state in STATES[4:]]
        assert store.revisions_at(stamps) == [state["revision"] for state in STATES[4:]]
        with pytest.raises(snapkv.CompactedError):
            store.load("b/0", STATES[0]["ts"])
        assert store.space("layer").load(b"\0k\xff") == b"of a layer"
        assert store.check().problems == ()


def test_its_log_and_histories_are_read(old: str) -> None:
    with snapkv.open(old, create=False) as store:
        log = [(commit.ts, commit.note, commit.writer) for commit in store.commits()]
        assert log[: len(STATES) - 4] == [(s["ts"], s["note"], "maker") for s in STATES[4:]]
        versions = {version.ts: version.value for version in store.history("b/1")}
        for state in STATES[4:]:
            if state["ts"] in versions:
                value = versions[state["ts"]]
                assert state["keys"].get("b/1") == (None if value is None else value.hex())
        assert len(versions) > 3


def test_it_is_written_and_compacted_on(old: str) -> None:
    with snapkv.open(old) as store:
        stamp = store.save("new", b"1")
        assert stamp > STATES[-1]["ts"]
        store.compact(before=STATES[20]["ts"])
    with snapkv.open(old, create=False) as store:
        assert store.load("new", stamp) == b"1"
        assert dict(store.at(STATES[-1]["ts"]).items()) == {
            key: bytes.fromhex(value) for key, value in STATES[-1]["keys"].items()
        }
        assert store.check().problems == ()
