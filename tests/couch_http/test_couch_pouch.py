"""A real PouchDB replicates with the server: pull, push, live, conflicts, tombstones, restarts."""

import itertools
import json

import pytest

from cdcmeta.changes import ChangesDB
from cdcmeta.couch_http import Limits
from snapkv.errors import EngineUnavailableError

from .pouched import FOLDER, Pouch, PouchError
from .programs import Program
from .served import Served
from .test_couch_documents import branch, revision
from .test_couch_feeds import until, waits

pytestmark = pytest.mark.slow


@pytest.fixture
def pouch(packages):
    pouch = Pouch(packages)
    yield pouch
    pouch.close()


@pytest.fixture
def url(db) -> str:
    return f"{db.served.server.url}{db.lib.name}"


@pytest.fixture(params=["lmdb"])
def served(request, own) -> Served:
    return own()


def test_it_pulls(db, url, pouch):
    db.lib.bulk([{"_id": f"d{n}", "n": n} for n in range(250)])
    db.lib.put({"_id": "a/b ä", "n": 1})
    done = pouch("pull", url=url)
    assert (done["ok"], done["docs_written"]) == (True, 251)
    docs = {doc["_id"]: doc for doc in pouch("all")}
    assert len(docs) == 251
    assert docs["d7"] == db.get("d7").json()
    again = pouch("pull", url=url)  # from the checkpoint
    assert (again["docs_read"], again["last_seq"]) == (0, done["last_seq"])
    db.lib.put({"_id": "more"})
    assert pouch("pull", url=url)["docs_read"] == 1


def test_it_pushes(db, url, pouch):
    pouch("bulk", docs=[{"_id": f"d{n}", "n": n} for n in range(250)])
    rev = pouch("put", doc={"_id": "a/b ä", "n": 1})["rev"]
    edited = pouch("put", doc={"_id": "a/b ä", "n": 2, "_rev": rev})["rev"]
    done = pouch("push", url=url)
    assert (done["ok"], done["docs_written"], done["doc_write_failures"]) == (True, 251, 0)
    assert db.lib.info().doc_count == 251
    assert db.lib.get("a/b ä") == {"_id": "a/b ä", "_rev": edited, "n": 2}
    assert pouch("push", url=url)["docs_written"] == 0


def test_one_document_does_not_hold_up_the_others(db, url, pouch, caplog):
    """What can never be stored is denied, also when it is the first of a batch."""
    attachment = {"a": {"content_type": "text/plain", "data": "eA=="}}
    never: dict[str, dict] = {
        "a-attached": {"_attachments": attachment},
        "b-deep": {"a": json.loads("[" * 150 + "]" * 150)},
        "c" * 257: {},
    }
    pouch("bulk", docs=[{"_id": id} | more for id, more in never.items()])
    pouch("bulk", docs=[{"_id": f"d{n}", "n": n} for n in range(249)])
    pouch("pushLive", url=url)
    until(lambda: db.lib.info().doc_count == 249, "the others do not arrive")
    until(lambda: sorted(pouch("denied")) == [*never], "it is not told what was refused")
    pouch("put", doc={"_id": "later", "n": 1})
    until(lambda: db.get("later").is_success, "it does not go on")
    assert pouch("stop")["heard"] == []
    assert sorted(pouch("denied")) == [*never]
    assert "document 'a-attached' cannot be stored: attachments" in caplog.text


def test_it_pushes_again_what_a_failed_commit_left_out(own, pouch, monkeypatch):
    """A later commit of a batch fails: PouchDB keeps its checkpoint, and pushes the batch again."""
    db = own(limits=Limits(bulk_docs=10)).database()
    url = f"{db.served.server.url}{db.lib.name}"
    pouch("bulk", docs=[{"_id": f"d{n:02}"} for n in range(40)])
    replicate, commits = ChangesDB.replicate, itertools.count()

    def fails(self, docs, **more):
        if next(commits) == 2:
            raise EngineUnavailableError("no etcd")
        return replicate(self, docs, **more)

    monkeypatch.setattr(ChangesDB, "replicate", fails)
    with pytest.raises(PouchError):
        pouch("push", url=url)
    assert db.lib.info().doc_count == 20
    done = pouch("push", url=url)
    assert (done["ok"], done["docs_written"], done["doc_write_failures"]) == (True, 20, 0)
    assert db.lib.info().doc_count == 40


def test_it_makes_and_destroys_a_database(db, url, pouch):
    new = f"{url}-new"
    pouch("put", doc={"_id": "a"})
    assert pouch("push", url=new)["docs_written"] == 1
    assert pouch("info", url=new)["doc_count"] == 1
    pouch("destroy", url=new)
    assert db.served.http.get(new).status_code == 404


def test_tombstones_on_both_sides(db, url, pouch):
    for id in ("ours", "theirs"):
        db.lib.put({"_id": id})
    pouch("pull", url=url)
    db.lib.remove("ours", db.lib.get("ours")["_rev"])
    gone = pouch("remove", id="theirs")["rev"]
    pouch("push", url=url)
    pouch("pull", url=url)
    assert db.get("theirs").json() == {"error": "not_found", "reason": "deleted"}
    assert db.get("theirs", rev=gone).json()["_deleted"] is True
    with pytest.raises(PouchError) as refused:
        pouch("get", id="ours")
    assert refused.value.status == 404
    assert pouch("all") == []


def test_conflicts_on_both_sides(db, url, pouch):
    """Both edit the same revision; afterwards both have both, and the same winner."""
    first = db.lib.put({"_id": "d", "by": "nobody"}).rev
    pouch("pull", url=url)
    ours = db.lib.put({"_id": "d", "by": "us"}, rev=first).rev
    theirs = pouch("put", doc={"_id": "d", "by": "them", "_rev": first})["rev"]
    pouch("push", url=url)
    pouch("pull", url=url)
    winner, loser = max(ours, theirs), min(ours, theirs)
    here = db.get("d", conflicts="true").json()
    there = pouch("get", id="d", options={"conflicts": True})
    assert here == there
    assert (here["_rev"], here["_conflicts"]) == (winner, [loser])

    db.lib.remove("d", loser)  # settled here
    pouch("pull", url=url)
    settled = pouch("get", id="d", options={"conflicts": True, "revs": True})
    assert "_conflicts" not in settled
    assert settled["_revisions"]["ids"] == [winner[2:], first[2:]]


def test_trees_arrive_as_they_are(db, url, pouch):
    db.lib.replicate([branch("d", 3, "cba", x="c"), branch("d", 2, "ea", _deleted=True)])
    pouch("pull", url=url)
    leaves = pouch("get", id="d", options={"open_revs": "all", "revs": True})
    assert {leaf["ok"]["_rev"]: leaf["ok"]["_revisions"]["ids"][-1] for leaf in leaves} == {
        revision(3, "c"): "a" * 32,
        revision(2, "e"): "a" * 32,
    }


def test_it_follows_live_in_both_directions(db, url, pouch):
    pouch("follow", url=url)
    for n in range(3):
        db.lib.put({"_id": f"down{n}", "n": n})
        assert pouch("arrives", id=f"down{n}", n=n)["n"] == n
    with db.feed(feed="continuous", since="now", timeout=20_000) as feed:
        until(lambda: waits(db), "it does not wait")
        pouch("put", doc={"_id": "up", "n": 1})
        assert feed.row()["id"] == "up"
    assert pouch("stop")["heard"] == []


def test_it_hears_changes_live(db, url, pouch):
    listening = pouch.begin("listen", url=url, id="b")
    until(lambda: waits(db), "it does not wait")
    rev = db.lib.put({"_id": "a", "n": 1}).rev
    db.lib.remove("a", rev)
    db.lib.put({"_id": "b", "n": 2})
    rows = pouch.answer(listening)
    assert {row["id"] for row in rows} == {"a", "b"}
    assert rows[-1]["doc"]["n"] == 2
    assert rows[-2]["deleted"] is True


def test_its_own_requests(db, url, pouch):
    """What an application asks without replicating."""
    rev = pouch("remotePut", url=url, doc={"_id": "a", "n": 1})["rev"]
    assert pouch("remoteGet", url=url, id="a", options={"revs": True})["_rev"] == rev
    with pytest.raises(PouchError) as refused:
        pouch("remotePut", url=url, doc={"_id": "a", "n": 2})
    assert (refused.value.status, refused.value.name) == (409, "conflict")
    with pytest.raises(PouchError) as refused:
        pouch("remoteGet", url=url, id="b")
    assert (refused.value.status, refused.value.name) == (404, "not_found")
    db.lib.put({"_id": "b", "kind": "x"})
    for options in ({"selector": {"kind": "x"}}, {"doc_ids": ["b"]}, {"since": 0, "limit": 9}):
        found = pouch("remoteChanges", url=url, options=options)
        assert [row["id"] for row in found["results"]][-1] == "b"
    rows = pouch("remoteAll", url=url, options={"startkey": "b", "include_docs": True})["rows"]
    assert [row["doc"]["kind"] for row in rows] == ["x"]


def test_it_resumes_after_the_server_was_killed(tmp_path, pouch):
    """With kill -9, in the middle of following; nothing is read twice that a checkpoint covers."""
    store = f"lmdb:{tmp_path / 'meta'}"
    with Program("--store", store, "--port", "0") as program:
        url = f"{program.url}/db"
        pouch("bulk", docs=[{"_id": f"d{n}", "n": n} for n in range(120)])
        assert pouch("push", url=url)["docs_written"] == 120
        assert pouch("pull", url=url)["docs_read"] == 0
        pouch("follow", url=url)
        pouch("remotePut", url=url, doc={"_id": "live", "n": 1})
        pouch("arrives", id="live", n=1)
        port = program.url.rpartition(":")[2]
        program.kill()
    pouch("put", doc={"_id": "meanwhile", "n": 1})
    with Program("--store", store, "--port", port):
        pouch("remotePut", url=url, doc={"_id": "after", "n": 2})
        assert pouch("arrives", id="after", n=2)["n"] == 2
        pouch("stop")
        assert pouch("push", url=url)["ok"]
        assert pouch("remoteGet", url=url, id="meanwhile")["n"] == 1
        again = pouch("pull", url=url)
        assert again["docs_read"] <= 1  # not the 120 again: it went on from its checkpoint
        assert pouch("info", url=url)["doc_count"] == 123


def test_the_lock_names_no_registry():
    lock = json.loads((FOLDER / "package-lock.json").read_text())
    assert len(lock["packages"]) > 10
    for name, package in lock["packages"].items():
        assert "resolved" not in package, name
        assert not name or package["integrity"].startswith("sha512-")
