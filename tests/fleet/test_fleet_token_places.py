"""Tokens of cuts that show a member with a commit that is older than its place in the fleet."""

import shutil

import pytest

import snapkv
from snapkv.errors import StoreRestoredError


@pytest.fixture
def urls(tmp_path):
    found = {name: f"lmdb:{tmp_path}/{name}" for name in ("eu", "us")}
    for url in found.values():
        with snapkv.open(url) as store:
            store.save("k", b"1")
    return found


def newest(url: str) -> int:
    with snapkv.open(url) as store:
        return store.resolved()


def joined_now(urls: dict) -> dict:
    """The fleet in which `us` joins after its newest commit."""
    return urls | {"us": {"url": urls["us"], "joined": newest(urls["us"]) + 1}}


@pytest.mark.parametrize("final", [True, False])
def test_of_a_member_that_joined_after_its_newest_commit(urls, final):
    members = joined_now(urls)
    for url in urls.values() if final else ():
        with snapkv.open(url) as store:
            store.tick()
    with snapkv.fleet.open(members) as fleet:
        when = fleet.resolved() if final else newest(urls["us"]) + 2
        moment = fleet.at(when, behind="stale")
        assert moment.final is final
        token, items = moment.token, list(moment.items())
    assert {member for (member, _), _ in items} == {"eu", "us"}
    with snapkv.fleet.open(members) as fleet:
        again = fleet.at(token=token)
        assert (again.token, list(again.items()), again.final) == (token, items, final)


@pytest.mark.parametrize("behind", ["error", "stale", "leave out"])
def test_of_a_member_that_was_restored_to_before_its_first_commit(urls, tmp_path, behind):
    """It shows nothing at that time now, which is another answer than before."""
    url, backup = f"lmdb:{tmp_path}/new", tmp_path / "backup"
    with snapkv.open(url) as store:
        store.backup(str(backup))
        then = store.save("k", b"1")
    with snapkv.fleet.open({"eu": urls["eu"], "new": url}) as fleet:
        token = fleet.at(then, behind="stale").token
    shutil.rmtree(tmp_path / "new")
    backup.rename(tmp_path / "new")
    with snapkv.open(url) as store:
        store.save("k", b"of another history")
    with (
        snapkv.fleet.open({"eu": urls["eu"], "new": url}) as fleet,
        pytest.raises(StoreRestoredError, match="nothing there: the engine was restored") as e,
    ):
        fleet.at(token=token, behind=behind)
    assert e.value.member == "new"
