"""The documents' sessions run, and the example is a service that ends when it is asked to."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import snapkv.aio

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_what_the_page_shows_runs(place, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/aio.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
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
            assert [await names["count_a_visit"](store) for _ in range(2)] == [1, 2]

    asyncio.run(main())


@pytest.fixture
def port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["lmdb", "etcd"], indirect=True)
@pytest.mark.long_on("etcd")
def test_the_service_answers_streams_and_ends(place, port, tmp_path):
    page = (ROOT / "docs/howto/fastapi.md").read_text()
    (tmp_path / "service.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "service.py", str(port)],
        cwd=tmp_path,
        env=os.environ | {"SNAPKV_STORE": place.url, "PYTHONPATH": str(ROOT)},
        stdout=log,
        stderr=log,
    )
    base = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=base, timeout=WAIT_S) as client, ExitStack() as streams:
            answering(client, process)
            alice = {"X-User": "alice"}
            first = client.put("/settings/dark?note=try", content=b"on", headers=alice).json()
            client.put("/settings/dark", content=b"off", headers=alice)
            assert client.get("/settings/dark").content == b"off"
            at = {"at": first["timestamp"]}
            assert client.get("/settings/dark", params=at).content == b"on"
            (written, _) = client.get("/history/dark").json()
            assert (written["writer"], written["note"]) == ("alice", "try")
            assert client.get("/changes?since=nonsense").status_code == 422

            many = httpx.Client(base_url=base, timeout=None, limits=httpx.Limits())
            streams.enter_context(many)
            followed = streams.enter_context(many.stream("GET", "/changes?prefix=da"))
            for _ in range(30):
                streams.enter_context(many.stream("GET", "/changes?prefix=other/"))
            client.put("/settings/dark", content=b"live", headers=alice)
            lines = followed.iter_lines()
            assert next(lines).startswith("id: ")
            assert json.loads(next(lines).removeprefix("data: ")) == ["dark"]

            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S)  # for ever, if it waited for the streams
    finally:
        process.kill()
        process.wait(WAIT_S)
        log.close()
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in (tmp_path / "log").read_text()


def answering(client, process):
    """Wait until the service answers."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        assert process.poll() is None
        try:
            client.get("/health")
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("no answer")
