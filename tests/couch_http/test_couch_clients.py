"""Clients that others wrote, each as its documentation shows it, on a server with a login."""

import itertools
import json
import os
import subprocess
from pathlib import Path

import couchdb3
import pytest
from ibmcloudant import CouchDbSessionAuthenticator
from ibmcloudant.cloudant_v1 import BulkDocs, CloudantV1, Document

from cdcmeta.couch_http import Login

from .test_couch_documents import branch, revision

pytestmark = pytest.mark.slow

USER, PASSWORD = "ann", "pass wörd"
CLIENT_S = 120


@pytest.fixture
def served(own):
    return own(login=Login(USER, PASSWORD))


@pytest.fixture
def node(packages, served, tmp_path):
    """Run a program of Node.js, or a command of a package; it gets the URL of the server."""

    def run(*words: str, **options) -> str:
        environment = {**os.environ, "NODE_PATH": str(packages / "node_modules")}
        command = ["node", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CLIENT_S, env=environment, **options
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_couchdb3_logs_in_by_cookie(db):
    """It does so by default."""
    url = db.served.server.url.rstrip("/")
    server = couchdb3.Server(url, user=USER, password=PASSWORD)
    assert db.lib.name in server.all_dbs()
    made = server.create("by-couchdb3")
    id, _, rev = made.save({"_id": "d", "n": 1})
    assert (id, rev) == ("d", made.get("d")["_rev"])
    made.bulk_docs([{"_id": f"d{n}"} for n in range(10)])
    made.save({"_id": "_design/views", "language": "javascript"})
    assert made.info()["doc_count"] == 12
    assert len(made.all_docs(include_docs=True).rows) == 12
    made.copy("d", "copied")
    assert made.get("copied")["n"] == 1
    assert made.security() is not None
    made.delete("d", rev)
    assert "d" not in made
    server.delete("by-couchdb3")
    assert "by-couchdb3" not in server.all_dbs()


def test_ibm_cloudant_sends_packed_bodies(db, monkeypatch):
    packed = []
    sent = CloudantV1.send
    client = CloudantV1(authenticator=CouchDbSessionAuthenticator(USER, PASSWORD))
    client.set_service_url(db.served.server.url.rstrip("/"))
    client.set_enable_gzip_compression(True)

    def watched(self, request, **options):
        packed.append(request["headers"].get("content-encoding"))
        return sent(self, request, **options)

    monkeypatch.setattr(CloudantV1, "send", watched)
    name = db.lib.name
    docs = [Document(_id=f"d{n:03}", n=n) for n in range(300)]
    told = client.post_bulk_docs(db=name, bulk_docs=BulkDocs(docs=docs)).get_result()
    assert packed == ["gzip"]
    assert [each["id"] for each in told] == [f"d{n:03}" for n in range(300)]
    client.put_document(db=name, doc_id="ä", document=Document(n=-1)).get_result()
    assert packed[-1] == "gzip"
    assert client.get_document(db=name, doc_id="ä").get_result()["n"] == -1
    found = client.post_all_docs(db=name, keys=["d001", "ä"], include_docs=True).get_result()
    assert [row["doc"]["n"] for row in found["rows"]] == [1, -1]
    assert len(client.get_uuids(count=3).get_result()["uuids"]) == 3
    diff = client.post_revs_diff(db=name, document_revisions={"d001": [revision(9, "a")]})
    assert diff.get_result()["d001"]["missing"] == [revision(9, "a")]
    many = client.post_dbs_info(keys=[name]).get_result()
    assert many[0]["info"]["doc_count"] == 301
    queries = client.post_all_docs_queries(db=name, queries=[{"limit": 1}, {"limit": 2}])
    assert [len(each["rows"]) for each in queries.get_result()["results"]] == [1, 2]
    assert client.get_session_information().get_result()["info"]["authenticated"] == "cookie"


NANO = """
const nano = require("nano")({ url: process.argv[1] });
const done = async () => {
  await nano.auth(process.argv[2], process.argv[3]);
  const session = await nano.session();
  const db = nano.use(process.argv[4]);
  const { rev } = await db.insert({ n: 1 }, "a");
  const { results } = await db.changes({ include_docs: true });
  const bulk = await db.bulk({ docs: [{ _id: "b" }, { _id: "a" }] });
  const listed = await db.list({ include_docs: true });
  const infos = await db.get("a", { revs_info: true });
  const uuids = await nano.uuids(2);
  console.log(JSON.stringify({
    user: session.userCtx.name, n: results[0].doc.n, rev, got: infos._revs_info[0].rev,
    errors: bulk.map((row) => row.error), listed: listed.rows.length, uuids: uuids.uuids.length
  }));
};
done();
"""


def test_nano_logs_in_by_cookie(db, node):
    url = db.served.server.url.rstrip("/")
    found = json.loads(node("-e", NANO, url, USER, PASSWORD, db.lib.name))
    assert found.pop("rev") == found.pop("got")
    assert found == {
        "user": USER,
        "n": 1,
        "errors": [None, "conflict"],
        "listed": 2,
        "uuids": 2,
    }


def revisions_of(db) -> dict[str, list]:
    """Return the leaves of all documents with their histories, also of deleted ones."""
    db.served.http.auth = (USER, PASSWORD)
    rows = db.changes(style="all_docs")["results"]
    ids = [{"id": row["id"]} for row in rows]
    results = db.post("_bulk_get", {"docs": ids}, revs="true").json()["results"]
    return {each["id"]: [leaf["ok"] for leaf in each["docs"]] for each in results}


@pytest.mark.parametrize("documents", [15, pytest.param(150, marks=pytest.mark.long)])
def test_couchbackup_of_many_revisions(packages, served, node, tmp_path, documents):
    """Backed up and restored, all leaves are equal, with their histories."""
    source, target = served.database(), served.database()
    for n in range(documents):
        rev = None
        for edit in range(6):
            rev = source.lib.put({"_id": f"d{n:03}", "text": f"ä{n} {edit}\u2028"}, rev).rev
    source.lib.replicate(
        [branch(f"c{n}", 2, "ba") for n in range(documents // 6)]
        + [branch(f"c{n}", 2, "ca") for n in range(documents // 6)]
        + [branch(f"g{n}", 1, "a", _deleted=True) for n in range(documents // 3)]
    )
    expected = revisions_of(source)
    leaves = itertools.chain.from_iterable(expected.values())
    assert sum(len(leaf["_revisions"]["ids"]) for leaf in leaves) >= 6 * documents + 10
    url = served.server.url.replace("//", f"//{USER}:{PASSWORD.replace(' ', '%20')}@")
    backup = tmp_path / "backup"
    tools = Path(packages) / "node_modules" / "@cloudant" / "couchbackup" / "bin"
    options = ("--url", url, "--request-timeout", "60000")
    log = ("--log", str(tmp_path / "log"), "--output", str(backup))
    node(str(tools / "couchbackup.bin.js"), *options, "--db", source.lib.name, *log)
    with backup.open() as file:
        restore = str(tools / "couchrestore.bin.js")
        node(restore, *options, "--db", target.lib.name, stdin=file)
    assert revisions_of(target) == expected
    assert target.lib.info().doc_count == source.lib.info().doc_count
