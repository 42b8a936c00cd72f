"""`snapkv ui --fleet`: which fleet or store it serves, and that it serves it."""

import json
import shlex
import subprocess
import sys

import httpx
import pytest

import snapkv
from snapkv.cli import main
from snapkv.cli.exits import Exit
from snapkv.ui import FleetSite

from .served import WAIT_S, FleetServed

pytestmark = pytest.mark.slow


@pytest.fixture
def file(tmp_path):
    """Return the file of a fleet of two stores, with paths that count from it."""
    for name in ("eu", "us"):
        with snapkv.open(f"lmdb:{tmp_path / name}", durability="none") as store:
            store.save("image", name.encode())
    path = tmp_path / "shop.toml"
    path.write_text('[members]\neu = "lmdb:eu"\nus = "lmdb:us"\n')
    return path


@pytest.mark.parametrize(
    ("words", "environment", "why"),
    [
        ("--fleet FILE --store lmdb:x", {}, "--fleet has the places of its members"),
        ("--fleet FILE --observe /x", {}, "--fleet has the places of its members"),
        ("--members eu --store lmdb:x", {}, "--members is of a fleet: give --fleet, too"),
        ("--fleet FILE --members nobody", {}, "no member is named 'nobody'"),
        ("--fleet FILE.toml", {}, "No such file"),
        ("", {"SNAPKV_FLEET": "FILE", "SNAPKV_STORE": "lmdb:x"}, "give --store or --fleet"),
        ("", {"SNAPKV_FLEET": "FILE.toml"}, "No such file"),
        ("--store lmdb:nowhere", {"SNAPKV_FLEET": "FILE"}, "no store at"),
        ("--fleet OLD --allow-restore", {}, "--allow-restore needs a store that can be written"),
    ],
)
def test_what_it_cannot_serve(words, environment, why, file, tmp_path, monkeypatch, capsys):
    old = tmp_path / "old.toml"
    old.write_text('[members]\nold = "archive:nowhere"\n')
    monkeypatch.chdir(tmp_path)
    for name in ("SNAPKV_FLEET", "SNAPKV_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("FILE", str(file)))
    words = words.replace("FILE", str(file)).replace("OLD", str(old))
    assert main(["ui", "--port=0", *words.split()]) in (Exit.USAGE, Exit.NO_STORE)
    assert why in capsys.readouterr().err


def test_it_serves_the_members_that_are_chosen(file):
    command = [sys.executable, "-m", "snapkv", "ui", "--port=0", "--members=u*", f"--fleet={file}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stderr.readline().split()[-1]
            with httpx.Client(base_url=url, timeout=WAIT_S) as http:
                data = http.get("/members.json").json()["data"]
                assert [each["name"] for each in data["members"]] == ["us"]
                found = http.get("/key.json?key=image").json()["data"]["values"]
                assert [(each["members"], each["value"]) for each in found] == [(["us"], "us")]
                assert http.get("/?member=eu").status_code == 400
        finally:
            process.terminate()
        assert process.wait(WAIT_S) == 0


def test_the_command_below_a_page_shows_the_same(file, tmp_path, capsys):
    def printed(url):
        answer = served.http.get(url).json()
        words = shlex.split(answer["command"])
        assert words[0] == "snapkv"
        assert main([*words[1:], "--json"]) == 0
        lines = capsys.readouterr().out.splitlines()
        return answer["data"], [json.loads(line) for line in lines]

    with snapkv.open(f"lmdb:{tmp_path / 'us'}") as store:
        before = store.save("other", b"1")
        store.commit(puts={"image": b"us 2", "new": b"3"}, deletes=["other"])
    with (
        snapkv.fleet.open(file) as fleet,
        FleetServed(FleetSite(fleet, words=("--fleet", str(file)), extra_views=())) as served,
    ):
        data, lines = printed("/members.json")
        members = [(each["name"], each["state"]) for each in data["members"]]
        shown = [(each["member"], each["state"]) for each in lines if "member" in each]
        assert members == shown == [("eu", "live"), ("us", "live")]
        data, lines = printed(f"/changes.json?from={before}")
        rows = [(row["key"], row["before"], row["after"]) for row in data["members"][0]["rows"]]
        assert rows == [("image", "us", "us 2"), ("new", None, "3"), ("other", "1", None)]
        assert [(each["key"], each["before"], each["after"]) for each in lines] == rows
        for url in ("/key.json?key=image", f"/key.json?key=image&at={before}"):
            data, lines = printed(url)
            values = [(name, each["value"]) for each in data["values"] for name in each["members"]]
            assert [(each["member"], each["value"]) for each in lines] == sorted(values)
        assert served.http.get(f"/members.json?at={before}").json()["command"] == ""
        site = FleetSite(fleet, words=("--fleet", "f"), members="u*,eu", extra_views=())
        assert site.command("get", members=None) == "snapkv fleet get --fleet f --members 'u*,eu'"
        assert site.command("get", members="u*") == "snapkv fleet get --fleet f --members us"
