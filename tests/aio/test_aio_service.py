"""The documents' sessions run, and the example is a service that ends when it is asked to."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from store.engines import Place  # noqa: F401

import snapkv.aio

ROOT = Path(__file__).parents[2]
START = "import sys; sys.path.insert(0, {folder!r}); import fastapi_service as f; "
SERVE = "f.serve({url!r}, {port})"
WAIT_S = 30.0


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_what_the_page_shows_runs(place, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/aio.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    names = {}
    for block in blocks:
        exec(block, names)
    assert capsys.readouterr().out.splitlines() == [
        "b'id int'",
        "[Difference(key='schema/users', before=b'id int', after=b'id int, email text')]",
        "b'id int' ['schema/users']",
        "emails ['schema/users']",
    ]

    async def main():
        async with snapkv.aio.open(place.url) as store:
            followed = await names["follow"](store)
            assert await store.load("schema/users", followed) == b"id int"
            assert await names["save_in_time"](store, "a", b"1") > 0

    asyncio.run(main())


@pytest.fixture
def port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("place", ["lmdb", "etcd"], indirect=True)
def test_the_service_answers_streams_and_ends(place, port, tmp_path):
    start = START.format(folder=str(ROOT / "examples"))
    command = [sys.executable, "-c", start + SERVE.format(url=place.url, port=port)]
    base = f"http://127.0.0.1:{port}"
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=base, timeout=WAIT_S) as client, ExitStack() as streams:
            answering(client, process)
            said = {"X-User": "alice", "X-Reason": "try"}
            first = client.put("/keys/flags/dark", content=b"on", headers=said).json()["ts"]
            client.put("/keys/flags/dark", content=b"off")
            assert client.get("/keys/flags/dark").content == b"off"
            assert first.isdigit()
            history = client.get("/history/flags/dark").json()
            assert [history[0][name] for name in ("writer", "note", "value")] == [
                "alice",
                "try",
                "on",
            ]
            assert client.get("/keys/none").status_code == 404
            undone = client.post("/undo/flags/dark", params={"to": history[0]["time"]})
            assert undone.status_code == 200
            assert client.get("/keys/flags/dark").content == b"on"

            many = httpx.Client(base_url=base, timeout=None, limits=httpx.Limits())
            streams.enter_context(many)
            followed = streams.enter_context(many.stream("GET", "/changes?prefix=flags/"))
            for _ in range(30):
                streams.enter_context(many.stream("GET", "/changes?prefix=other/"))
            client.put("/keys/flags/dark", content=b"live")
            lines = followed.iter_lines()
            assert next(lines).startswith("id: ")
            assert json.loads(next(lines).removeprefix("data: ")) == ["flags/dark"]

            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S)
            assert time.monotonic() - began < WAIT_S / 2, "it waits for no stream"
    finally:
        process.kill()
        process.wait(WAIT_S)
        log.close()
    assert "Traceback" not in (tmp_path / "log").read_text()


def answering(client, process):
    """Wait until the service answers."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        assert process.poll() is None
        try:
            client.get("/keys/none")
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("no answer")
