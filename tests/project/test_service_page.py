"""The service of docs/howto/fastapi.md is what the page shows, and keeps what the page promises."""

import asyncio
import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import snapkv
from snapkv.errors import DecodeError, StoreClosedError
from tests.project.pages import blocks_of, pages_run_by

(PAGE,) = pages_run_by("test_the_service_keeps_what_the_page_promises")
CAROL = {"X-User": "carol"}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with warnings.catch_warnings(action="ignore"):  # starlette prefers another client than httpx
        from fastapi.testclient import TestClient

    (block,) = [each for each in blocks_of(PAGE) if each.kind == "program" and not each.reason]
    monkeypatch.setenv("SNAPKV_STORE", "memory:")
    names: dict[str, Any] = {"__name__": "service"}
    exec(compile(block.code, PAGE, "exec"), names)
    with TestClient(names["app"]) as client:
        yield client


def test_the_service_keeps_what_the_page_promises(client: Any) -> None:
    first = client.put("/settings/web/limits?note=first", content=b"cpu: 1", headers=CAROL).json()
    read = client.get("/settings/web/limits")
    assert (read.status_code, read.content) == (200, b"cpu: 1")
    seen = CAROL | {"If-Match": read.headers["ETag"]}
    assert client.put("/settings/web/limits", content=b"cpu: 2", headers=seen).status_code == 200
    assert client.put("/settings/web/limits", content=b"cpu: 3", headers=seen).status_code == 409

    at = first["timestamp"]
    assert client.get("/settings/web/limits", params={"at": at}).content == b"cpu: 1"
    told = client.get("/history/web/limits").json()
    notes = [(each["writer"], each["note"]) for each in told]
    assert notes == [("carol", "first"), ("carol", None)]

    undo = {"at": at, "prefix": "web/", "note": "undo"}
    assert client.post("/restore", params=undo, headers=CAROL).status_code == 200
    assert client.get("/settings/web/limits").content == b"cpu: 1"

    assert int(client.get("/health").json()["newest"]) > int(at)


def test_what_is_not_the_clients_fault_is_not_a_status_of_the_client(client: Any) -> None:
    failed = client.app.exception_handlers[snapkv.SnapKVError]
    closed, broken = StoreClosedError("closed"), DecodeError("a", 3, "json", "no JSON")
    found = [asyncio.run(failed(None, error)).status_code for error in (closed, broken)]
    assert found == [503, 500]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "url", "headers", "status"),
    [
        ("GET", "/settings/none", {}, 404),
        ("GET", "/settings/a?at=yesterday-ish", {}, 422),
        ("GET", "/settings/a?at=rev:99999", {}, 404),
        ("PUT", "/settings/a", {}, 422),  # without a user
        ("PUT", "/settings/a", CAROL | {"If-Match": "*"}, 422),
        ("POST", "/restore?at=rev:3&prefix=nothing/&note=n", CAROL, 404),
    ],
)
def test_the_service_answers_mistakes(
    client: Any, method: str, url: str, headers: dict[str, str], status: int
) -> None:
    client.put("/settings/a", content=json.dumps({"a": 1}).encode(), headers=CAROL)
    answer = client.request(method, url, headers=headers)
    assert answer.status_code == status, answer.text
