"""Documents are answered as the bytes that are stored; nobody who reads them can tell."""

import json
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from cdcmeta.changes import documents

pytestmark = pytest.mark.slow

STRANGE = {
    "empty": {},
    'quote"and\\': {"a": 'x"y\\z\n\t\u0001'},
    "zero\0byte": {"a": "\0"},
    "ünïcödé ☃ 𝄞": {"ß": "𝄞", "line\u2028separator": "\u2029", "a": "é"},
    "numbers": {"big": 10**40, "small": -(2**63) - 1, "floats": [0.1, 1e300, -0.0, 5e-324]},
    "nested": {"a": {"z": [{}, [], None, True, {"b": ""}], "a": {"_id": "not mine"}}},
    "_design/x": {"views": {}},
}


@pytest.fixture(scope="module")
def strange(served):
    """Store documents that all tests read: some hashes have a zero byte, which is escaped."""
    db = served.database()
    more = {f"d{n:03}": {"n": n} for n in range(300)}
    for id, doc in (STRANGE | more).items():
        assert db.lib.put({"_id": id, **doc}).ok
    branch = {"_id": "d007", "_revisions": {"start": 2, "ids": ["a" * 32, "b" * 32]}}
    assert all(each.ok for each in db.lib.replicate([branch, {**branch, "_id": "d008"}]))
    db.lib.remove("d009", db.lib.get("d009")["_rev"])
    db.lib.remove("d008", "2-" + "a" * 32)
    hashes = [bytes.fromhex(change.rev.partition("-")[2]) for change in db.lib.changes().rows]
    assert any(0 in hash for hash in hashes)
    assert not all(0 in hash for hash in hashes)
    return db


@pytest.fixture
def unparsed(monkeypatch):
    """Let no stored document be parsed by the server."""

    def parsed(body: bytes) -> None:
        raise AssertionError(f"parsed: {body!r}")

    return lambda: monkeypatch.setattr(documents, "json", SimpleNamespace(loads=parsed))


def page_of(answer) -> list[dict]:
    page = json.loads(answer.content)
    return page.get("rows", page.get("results"))


@pytest.mark.parametrize("conflicts", ["true", "false"])
@pytest.mark.parametrize("style", ["main_only", "all_docs"])
def test_feed(strange, unparsed, style, conflicts):
    form = {"include_docs": True, "conflicts": conflicts == "true", "style": style}
    expected = [
        {
            "seq": str(change.seq),
            "id": change.id,
            "changes": [{"rev": rev} for rev in change.revs],
            **({"deleted": True} if change.deleted else {}),
            "doc": change.doc,
        }
        for change in strange.lib.changes(**form).rows
    ]
    unparsed()
    query = f"_changes?include_docs=true&conflicts={conflicts}&style={style}"
    answer = strange("GET", query)
    found = page_of(answer)
    assert found == expected
    assert [list(row) for row in found] == [list(row) for row in expected]
    assert any("_conflicts" in row["doc"] for row in found) == (conflicts == "true")


@pytest.mark.parametrize("descending", ["true", "false"])
def test_all_docs(strange, unparsed, descending):
    docs = {change.id: change.doc for change in strange.lib.documents(include_docs=True)}
    bare = page_of(strange("GET", f"_all_docs?descending={descending}"))
    unparsed()
    answer = strange("GET", f"_all_docs?include_docs=true&descending={descending}")
    found = page_of(answer)
    assert {row["id"]: row["doc"] for row in found} == docs
    for row, without in zip(found, bare, strict=True):
        assert row["value"] == {"rev": row["doc"]["_rev"]}
        assert without == {name: row[name] for name in ("id", "key", "value")}
    ids = [row["id"].encode() for row in found]
    assert ids == sorted(ids, reverse=descending == "true")


def test_documents(strange, unparsed):
    expected = {
        id: strange.lib.get(id, conflicts=True, revisions=True) for id in [*STRANGE, "d007"]
    }
    unparsed()
    query = "?conflicts=true&revs=true"
    found = {id: strange("GET", quote(id, safe="") + query) for id in expected}
    for id, answer in found.items():
        assert json.loads(answer.content) == expected[id]
        assert answer.headers["content-type"] == "application/json"
    assert "_conflicts" in expected["d007"]


def test_keys_of_all_docs(strange):
    body = {"keys": ["d009", "no such", "empty", "d008"]}
    found = page_of(strange("POST", "_all_docs?include_docs=true", json=body))
    deleted, missing, empty, _ = found
    assert deleted["doc"] is None
    assert deleted["value"]["deleted"] is True
    assert missing == {"key": "no such", "error": "not_found"}
    assert empty["doc"] == {"_id": "empty", "_rev": empty["value"]["rev"]}
