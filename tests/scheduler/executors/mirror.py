"""A mirror in a CouchDB database: its writers, commits for them, and what it contains."""

import base64
import itertools
import json
import ssl
from urllib.parse import quote, urlsplit

import httpx

from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors.couch_client import CouchDatabase
from cdcmeta.scheduler.executors.couch_sink import CouchWriter, key_of
from snapkv import Change, Changes, Commit

WAIT_S = 20.0
TABLE = "t/"
T1, T2, T3 = Token(1, 1), Token(2, 1), Token(3, 1)
CONTEXT = ssl.create_default_context()  # costs more than a test
_numbers = itertools.count()


def commit(ts, **values):
    """Return a commit of keys of the table; None removes."""
    return commit_of(ts, {f"{TABLE}{name}": value for name, value in values.items()})


def commit_of(ts, values):
    head = Commit(ts, 0, ts, "ann@host", None)
    return Changes(head, tuple(Change(key, value, head) for key, value in values.items()))


class Mirror:
    """A database of a test's own at a server."""

    def __init__(self, url, environment=None):
        self.name = f"mirror-{next(_numbers)}"
        self.base, self.environment = url.rstrip("/"), environment or {}
        url = f"{self.base}/{self.name}"
        self.http = httpx.Client(base_url=url, timeout=WAIT_S, verify=CONTEXT)
        self._writers = []

    def close(self):
        for writer in self._writers:
            writer.close()
        self.http.close()

    def url(self, port=None, scheme="http"):
        """Return the URL for a changefeed, through a proxy at another port."""
        netloc = urlsplit(self.base).netloc if port is None else f"127.0.0.1:{port}"
        return f"couch+{scheme}://{netloc}/{self.name}"

    def writer(self, token, *, port=None, table=TABLE, write_s=WAIT_S, origin=None):
        database = CouchDatabase(self.url(port), self.environment)
        writer = CouchWriter(database, "feed", table, token, write_s=write_s, origin=origin)
        self._writers.append(writer)
        return writer

    def docs(self):
        """Return the documents by key, and check that none has conflicts."""
        query = {"include_docs": "true", "conflicts": "true"}
        rows = self.http.get("/_all_docs", params=query).raise_for_status().json()["rows"]
        docs = [row["doc"] for row in rows]
        assert [doc["_id"] for doc in docs if "_conflicts" in doc] == []
        return {key_of(doc["_id"]): doc for doc in docs}

    def content(self):
        """Return the values by key, as they were in the source but for the format of JSON."""
        return {key: value_of(doc) for key, doc in self.docs().items()}

    def leaves(self, key):
        """Return all leaves of a document, also deleted ones."""
        query = {"open_revs": "all", "revs": "true"}
        answer = self.http.get(f"/{quote(key, safe='')}", params=query).raise_for_status()
        return [leaf["ok"] for leaf in answer.json()]

    def record(self):
        """Return the checkpoint and the token in the only record."""
        answer = self.http.get("/_local_docs", params={"include_docs": "true"})
        (row,) = answer.raise_for_status().json()["rows"]
        return int(row["doc"]["checkpoint"]), Token(*row["doc"]["token"])

    def seq(self):
        """Return what changes with each change of a document."""
        return self.http.get("/_changes").raise_for_status().json()["last_seq"]


def value_of(doc):
    if "value_base64" in doc:
        assert doc["value"] is None
        return base64.b64decode(doc["value_base64"])
    value = doc["value"]
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
