"""A member of a fleet with an archive beside its server: what is recorded outlives the server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_server import EtcdServer, eventually
from sampling import some

import snapkv
from snapkv import MembersBehindError, SnapshotKV
from snapkv.errors import EngineUnavailableError, StoreRestoredError
from snapkv.fleet.member_link import Silence

from .oracle import History, events_of

pytestmark = [pytest.mark.slow, pytest.mark.kills_etcd]

TIMEOUT_S = 1.0


class Kept:
    """A store on a server of its own, its archive, and a second member without one."""

    def __init__(self, server: EtcdServer, folder: Path) -> None:
        self.server, self.folder, self.archive = server, folder, str(folder / "archive")
        self.members: dict[str, Any] = {
            "kept": {"url": server.url, "archive": self.archive},
            "other": f"memory:{folder}",
        }
        self.other = snapkv.open(f"memory:{folder}")
        self.commits: list[int] = []

    def fleet(self) -> Any:
        return snapkv.fleet.open(self.members, timeout=TIMEOUT_S)

    def write(self, value: str, count: int) -> list[int]:
        """Commit to the store, each time to the other one, too; return the timestamps."""
        with snapkv.open(self.server.url) as store:
            return [self._commit(store, f"{value}{n}".encode(), n) for n in range(count)]

    def _commit(self, store: SnapshotKV, value: bytes, number: int) -> int:
        timestamp = store.commit(puts={"k": value, f"n{number}": b""}, deletes=["gone"]).ts
        self.other.save("k", value)
        return timestamp

    def record(self) -> int:
        """Record all that there is; return the timestamp up to which it is recorded."""
        return snapkv.record(self.server.url, into=self.archive).catch_up()

    def history(self) -> History:
        return History(events_of(self.server, self.folder))


@pytest.fixture
def kept(etcd: EtcdServer, tmp_path: Path) -> Iterator[Kept]:
    made = Kept(etcd, tmp_path)
    with made.other:
        yield made


@pytest.mark.long_after(1)
@pytest.mark.parametrize("opened", ["before", "after"])
def test_what_is_recorded_is_final_while_the_server_is_away(kept: Kept, opened: str) -> None:
    first = kept.write("recorded", 8)
    watermark = kept.record()
    assert watermark == first[-1]
    later = kept.write("not recorded", 4)
    history = kept.history()
    fleet = kept.fleet()
    if opened == "before":
        assert fleet.resolved(members="kept") == later[-1]
    kept.server.kill()
    with fleet if opened == "before" else kept.fleet() as fleet:
        for timestamp in [*first, *(each - 1 for each in first[1:]), first[-2] + 1]:
            moment = fleet.at(timestamp)
            assert moment.final
            seen = moment.members["kept"]
            assert (seen.state, seen.final) == ("archive", True)
            assert (seen.timestamp, seen.revision) == history.place(timestamp)
            assert dict(moment.of("kept").items()) == history.state(timestamp)
        for timestamp in later:
            check_above(fleet, timestamp, watermark, history)
        known = watermark if opened == "after" else later[-1]
        assert fleet.resolved(members="kept") == known
        found = [each.commit.ts for each in fleet.commits(until=watermark, members="kept")]
        assert found == first
        versions = list(fleet.history(("kept", "k"), until=watermark))
        assert [(each.version.ts, each.version.value) for each in versions] == [
            (timestamp, history.state(timestamp)["k"]) for timestamp in first
        ]
        kept.server.start()
        for timestamp in [*first, *later]:
            moment = until_back(fleet, timestamp)
            assert dict(moment.of("kept").items()) == history.state(timestamp)
            assert moment.members["kept"].state == "live"


def check_above(fleet: Any, timestamp: int, watermark: int, history: History) -> None:
    """Assert that a member is named at a time that its archive has not reached."""
    with pytest.raises(MembersBehindError) as caught:
        fleet.at(timestamp)
    assert set(caught.value.members) == {"kept"}
    stale = fleet.at(timestamp, behind="stale")
    seen = stale.members["kept"]
    assert (stale.final, seen.state, seen.final) == (False, "behind", False)
    assert seen.timestamp == watermark
    assert dict(stale.of("kept").items()) == history.state(watermark)
    without = fleet.at(timestamp, behind="leave out")
    assert not without.final
    assert {member for member, _ in without} == {"other"}


def until_back(fleet: Any, timestamp: int) -> Any:
    """Return a moment of the server itself, once the fleet asks it again."""

    def live() -> Any:
        moment = fleet.at(timestamp, behind="stale")
        return moment if moment.members["kept"].state == "live" else None

    return eventually(live, "the server to be asked again")


# --- the server is set back, and the archive has what it lost ---


CALLS: dict[str, Callable[[Any, int], object]] = {
    "moment": lambda fleet, ts: dict(fleet.at(ts, members="kept").items()),
    "stale": lambda fleet, ts: dict(fleet.at(ts, members="kept", behind="stale").items()),
    "now": lambda fleet, ts: fleet.at(members="kept"),
    "resolved": lambda fleet, ts: fleet.resolved(members="kept"),
    "commits": lambda fleet, ts: list(fleet.commits(until=ts, members="kept")),
    "history": lambda fleet, ts: list(fleet.history(("kept", "k"), until=ts)),
    "watch": lambda fleet, ts: fleet.watch(since=ts, members="kept").next(timeout=5),
}


OPENED_AND_CALLED = some(itertools.product(["never", "before it"], CALLS), one_in=3)


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("opened", "call"),
    [*OPENED_AND_CALLED[::3], *OPENED_AND_CALLED[1::3], *OPENED_AND_CALLED[2::3]],
)
def test_what_an_archive_showed_is_not_in_the_server_that_comes_back(
    kept: Kept, call: str, opened: str
) -> None:
    """The fleet had not seen what was lost in the server; only its archive had."""
    base = kept.write("base", 3)
    backup = kept.folder / "backup.db"
    fleet = kept.fleet()
    if opened == "before it":
        assert fleet.at(base[-1], members="kept").final
    kept.server.gateway.save_snapshot(backup)
    lost = kept.write("lost", 3)
    assert kept.record() == lost[-1]
    kept.server.kill()
    with fleet if opened == "before it" else kept.fleet() as fleet:
        moment = fleet.at(lost[1], members="kept", behind="stale")
        assert moment.final
        shown = dict(moment.items())
        assert shown["kept", "k"] == b"lost1"
        token = moment.token
        kept.server.restore_snapshot(backup)
        kept.write("new", 5)
        fleet._members.by_name["kept"].silence = Silence()  # as a second later
        with pytest.raises(StoreRestoredError) as caught:
            CALLS[call](fleet, lost[1])
        assert caught.value.member == "kept"
        with pytest.raises(StoreRestoredError):
            fleet.at(lost[1])
        assert dict(moment.items()) == shown
    with kept.fleet() as later, pytest.raises(StoreRestoredError) as caught:
        later.at(token=token)
    assert caught.value.member == "kept"


def test_a_server_that_was_set_back_and_an_archive_that_has_what_it_lost(kept: Kept) -> None:
    """The fleet is opened after that: the archive must not answer otherwise than the server."""
    base = kept.write("base", 3)
    backup = kept.folder / "backup.db"
    kept.server.gateway.save_snapshot(backup)
    lost = kept.write("lost", 3)
    assert kept.record() == lost[-1]
    kept.server.restore_snapshot(backup)
    kept.write("new", 5)
    with kept.fleet() as fleet:
        moment = fleet.at(lost[1], members="kept")
        assert moment["kept", "k"] == b"base2"
        kept.server.kill()
        try:
            assert fleet.at("-0s", members="kept", behind="stale").final is False
            with pytest.raises(StoreRestoredError) as caught:
                fleet.at(lost[1], members="kept")
            assert caught.value.member == "kept"
            with pytest.raises(EngineUnavailableError):
                moment["kept", "k"]
            assert fleet.at(base[-1], members="kept")["kept", "k"] == b"base2"
        finally:
            kept.server.start()
