"""No page of cdcmeta and no JSON is larger than the bound, whatever the store holds."""

import httpx
import pytest

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.ui import views
from snapkv.ui.page_answers import PAGE_BYTES_MAX

from .served import Served

pytestmark = pytest.mark.slow

LARGE = {
    "one line": {"text": "<\x01" * 200_000},
    "lines": {"text": list(range(50_000))},
}
MANY = 1_200
PATIENCE_S = 120


@pytest.fixture
def hostile(store: snapkv.SnapshotKV) -> snapkv.SnapshotKV:
    db = ChangesDB(store, "many").create()
    for name, body in LARGE.items():
        db.put({"_id": name, **body})
    for at in range(0, MANY, 100):
        db.bulk([{"_id": f"{n:05}".ljust(200, "<")} for n in range(at, at + 100)])
    return store


ASKED = {
    "/databases": [""],
    "/database": ["db=many&limit=1000", "db=many&by=id&limit=1000"],
    "/document": [
        *(f"db=many&id={id}" for id in LARGE),
        *(f"db=many&id={id}&from=0&show=side-by-side" for id in LARGE),
    ],
    "/generations": [""],
    "/generation": [""],
    "/changefeeds": [""],
    "/changefeed": [""],
    "/table": [""],
}
"""Queries of each path; the paths without a query need names, and answer what is missing."""


@pytest.mark.long_after(1)
def test_every_answer_is_at_most_the_bound(hostile: snapkv.SnapshotKV) -> None:
    assert ASKED.keys() == views.views.keys()
    with Served(hostile, extra_views=[views]) as served:
        served.http.timeout = httpx.Timeout(PATIENCE_S)
        for path, queries in ASKED.items():
            for query in queries:
                for url in (f"{path}?{query}", f"{path}.json?{query}"):
                    answer = served.http.get(url)
                    assert answer.status_code == (200 if query else answer.status_code), url
                    assert answer.status_code in (200, 400), url
                    assert len(answer.content) <= PAGE_BYTES_MAX, url
