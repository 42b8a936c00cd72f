"""The page of `snapkv ui` over the same stores: one request for each view, compared with git."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import snapkv
from snapkv.cli.git_clone import TreeEntry
from snapkv.cli.git_import import shown_oid
from snapkv.cli.tour.examiner import AskedDate, content_name
from snapkv.errors import MissingExtraError
from system.everything.clones import History, authors, writer_of
from system.everything.filling import GIT_COMMIT
from system.everything.replicas import compare_places
from system.everything.replication import Story
from system.everything.report import PLACES, VIEWS, Report

READY_S, ANSWER_S = 20.0, 60.0
BUDGET_S = 10.0
"""What views may look through before they stop, and say so: on a busy machine, too, it is all."""
WAY, CLUSTER = "page", "default"


class NoPage(Exception):
    """The page cannot be served on this machine; the message says why."""


class Page:
    """A server of the page in a thread of this process."""

    def __init__(self, store: snapkv.SnapshotKV) -> None:
        from cdcmeta.ui import views
        from snapkv import ui

        self._ready = threading.Event()
        site = ui.Site(ui.Source(store), extra_views=(views,), budget_s=BUDGET_S)
        self._server = ui.ui_server(site, port=0, ready=self._ready.set)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> Page:
        self._thread.start()
        self._ready.wait(READY_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._thread.join(READY_S)

    def data(self, path: str, **query: Any) -> Any:
        """Return the plain data of a view. Raises `OSError`, `ValueError`."""
        return json.loads(self.get(f"{path}.json", query))["data"]

    def get(self, path: str, query: Mapping[str, Any]) -> str:
        """Return what a URL shows. Raises `OSError`, `ValueError`."""
        address = self._server.url.removeprefix("http://").rstrip("/")
        connection = http.client.HTTPConnection(address, timeout=ANSWER_S)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}")
            answer = connection.getresponse()
            body = answer.read().decode()
        except http.client.HTTPException as e:
            raise ValueError(f"not an answer of HTTP: {e!r}") from e
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise ValueError(f"status {answer.status}: {body[:200]}")
        return body


@contextmanager
def _served(store: snapkv.SnapshotKV) -> Iterator[Page]:
    try:
        page = Page(store)
    except MissingExtraError as e:
        raise NoPage(f"{e.name} is not installed (pip install 'snapkv[{e.extra}]')") from e
    with page:
        yield page


# --- the views -----------------------------------------------------------------------------


def ask_page(
    report: Report,
    history: History,
    story: Story,
    store: snapkv.SnapshotKV,
    captures: snapkv.SnapshotKV,
) -> None:
    """Ask for the views of the histories and of the captures' records. Raises `NoPage`."""
    with _served(store) as page:
        views = _Views(report, history, story, page)
        for name, view in views.all().items():
            try:
                wrong = view()
            except (OSError, ValueError, LookupError) as e:
                report.failed(VIEWS, name, WAY, str(e))
            else:
                report.add(VIEWS, name, WAY, wrong)
    with _served(captures) as page:
        for seen in story.sightings:
            try:
                found = _places(page, seen.captures.keys(), seen.ts)
            except (OSError, ValueError, LookupError) as e:
                report.failed(PLACES, seen.label, WAY, str(e))
            else:
                compare_places(report, seen, WAY, found)


class _Views:
    """The views, each with what git says of it; each returns the number of differences."""

    def __init__(self, report: Report, history: History, story: Story, page: Page) -> None:
        self._report, self._history, self._story, self._page = report, history, story, page
        known = [moment for moment in history.moments if moment.index >= 0]
        self._then, self._now = known[len(known) // 2], known[-1]
        self._key = self._chosen()

    def all(self) -> dict[str, Callable[[], int]]:
        """Return the views by what they show."""
        then, now = self._then, self._now
        found = {
            f"/changes: what changed from {then.date} to {now.date}": self._changes,
            f"/: the newest commits of {self._history.clones[0].name}": self._commits,
            f"/keys: the clones at {then.date}": self._keys,
            "/databases: how many documents each has": self._databases,
            "/generations: which operated when": self._generations,
        }
        if self._key is not None:
            found[f"/key: the value of {self._key}, and its author"] = self._value
            found[f"/document: the document of {self._key}"] = self._document
        return found

    def _chosen(self) -> str | None:
        """Return a key that exists then and now, one that has changed if there is any."""
        history = self._history
        both = history.tree(self._then.ms).keys() & history.tree(self._now.ms).keys()
        changed = history.changes(self._then.ms, self._now.ms).keys()
        return min(both, key=lambda key: (key not in changed, key), default=None)

    def _changes(self) -> int:
        then, now = self._then, self._now
        rows = self._page.data("/changes", **{"from": then.date, "at": now.date})["rows"]
        found = {row["key"]: row["kind"].encode() for row in rows}
        changes = sorted(self._history.changes(then.ms, now.ms).items())
        wanted = {
            key: b"+" if change.before is None else b"-" if change.after is None else b"~"
            for key, change in changes[: len(rows) or 1]  # a page has as many as fit on it
        }
        return self._report.compare("/changes", found, wanted)

    def _commits(self) -> int:
        """Compare the data of one clone's commits, and what people see of them."""
        one = self._history.clones[0]
        steps = self._page.data("/", prefix=one.prefix)["steps"]
        shown = self._page.get("/", {"prefix": one.prefix})
        ids = [step["meta"].get(GIT_COMMIT, "none").encode() for step in steps]
        newest = [oid for oid, _ in one.changing()][::-1]
        wanted = {f"commit {n}": oid for n, oid in enumerate(newest[: len(ids) or 1])}
        found = {f"commit {n}": id for n, id in enumerate(ids) if shown_oid(id) in shown}
        return self._report.compare("/", found, wanted)

    def _keys(self) -> int:
        nodes = self._page.data("/keys", at=self._then.date)["nodes"]
        found = {node["path"]: b"" for node in nodes}
        tree = self._history.tree(self._then.ms)
        wanted = {key.partition("/")[0] + "/": b"" for key in tree}
        return self._report.compare("/keys", found, wanted)

    def _value(self) -> int:
        key, now = str(self._key), self._now
        data = self._page.data("/key", key=key, at=now.date)
        found = {key: content_name(data["value"].encode(), self._entry(now))}
        found["author"] = data["versions"][0]["writer"].encode()
        toured = next(each for each in self._history.clones if key.startswith(each.prefix))
        written = authors(toured.clone, None, toured.timeline.oids[-1])
        author = written[key.removeprefix(toured.prefix).encode()]
        wanted = {key: self._entry(now).oid, "author": writer_of(author).encode()}
        return self._report.compare("/key", found, wanted)

    def _document(self) -> int:
        key, then = str(self._key), self._then
        database, _, path = key.partition("/")
        data = self._page.data("/document", db=database, id=f"/{path}", at=then.date)
        found = {key: json.loads(data["document"]["body"])["line"].encode()}
        return self._report.compare("/document", found, {key: self._entry(then).line})

    def _entry(self, moment: AskedDate) -> TreeEntry:
        return self._history.tree(moment.ms)[str(self._key)]

    def _databases(self) -> int:
        rows = self._page.data("/databases")["rows"]
        found = {row["name"]: b"%d" % row["documents"] for row in rows}
        keys = list(self._history.tree(self._now.ms))
        wanted = {
            each.name: b"%d" % sum(key.startswith(each.prefix) for key in keys)
            for each in self._history.clones
        }
        return self._report.compare("/databases", found, wanted)

    def _generations(self) -> int:
        rows = self._page.data("/generations")["rows"][0]["rows"]
        found = {"generations": b"%d" % len(rows), "newest": rows[0]["time"].encode()}
        made = self._story.generation
        wanted = {"generations": b"%d" % (1 if made is None else 2)}
        wanted["newest"] = found["newest"] if made is None else b"%d" % made.time
        return self._report.compare("/generations", found, wanted)


def _places(
    page: Page, tables: Iterable[tuple[str, str]], timestamp: int
) -> dict[tuple[str, str], str]:
    """Return the capture of each table that the page shows of a moment."""
    found = {}
    for feed in dict.fromkeys(feed for feed, _ in tables):
        data = page.data("/changefeed", cluster=CLUSTER, feed=feed, at=timestamp)
        for row in data["at"]["tables"]:
            found[feed, row["table"]] = row["capture"] or ""
    return found
