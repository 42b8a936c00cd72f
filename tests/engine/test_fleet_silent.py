"""A member of a fleet that was open and stops to answer: bounded, named, and not asked again."""

import pytest

import snapkv
from snapkv.errors import ReadTimeoutError
from snapkv.fleet import member_link
from snapkv.fleet.open_member import OpenMember

pytestmark = pytest.mark.slow


def test_a_member_that_falls_silent_is_waited_for_once(etcd, tmp_path, monkeypatch):
    monkeypatch.setattr(member_link, "AWAY_S", 600.0)
    other = f"lmdb:{tmp_path / 'other'}"
    with snapkv.open(etcd.url) as one, snapkv.open(other) as two:
        for store in (one, two):
            store.save("a", b"1")
        with snapkv.fleet.open({"one": etcd.url, "two": other}, timeout=0.5) as fleet:
            moment = fleet.at("-0s", behind="stale")
            assert moment.everywhere("a") == {"one": b"1", "two": b"1"}
            etcd.pause()
            try:
                for read in (moment.everywhere, lambda key: moment["one", key]):
                    with pytest.raises(ReadTimeoutError, match=r"timeout of 0\.5 s") as e:
                        read("a")
                    assert e.value.member == "one"
                assert moment["two", "a"] == b"1"
                assert fleet.at("-0s", behind="stale").members["one"].state == "missing"
                asked, pinned = [], OpenMember._pinned
                monkeypatch.setattr(
                    OpenMember,
                    "_pinned",
                    lambda self, *args: asked.append(self.name) or pinned(self, *args),
                )
                later = fleet.at("-0s", behind="stale")
                assert asked == ["two"]
                assert later.members["one"].error
            finally:
                etcd.resume()
