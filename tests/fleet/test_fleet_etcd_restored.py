"""A server of a fleet is set back to a backup while the fleet, its moments and watches exist.

Whatever was answered before is answered the same way, or raises `StoreRestoredError` with the
name of the member; also in a process that comes later with a token, and also if the server has
more commits than it lost before anything of the fleet asks it.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from etcd_server import EtcdServer, eventually, prefix_end
from sampling import SOAK

import snapkv
from snapkv.engine.etcd.cluster_client import ClusterClient as EtcdConnection
from snapkv.errors import StoreRecreatedError, StoreRestoredError
from snapkv.fleet import fleet_watch
from snapkv.timeline import continuity

from .oracle import History, events_of

pytestmark = [pytest.mark.slow, pytest.mark.kills_etcd]

TIMEOUT_S, WAIT_S = 5.0, 60
BASE, LOST = 4, 6
RAISED_BY = 1_000_000_000
RAISED = (f"--bump-revision={RAISED_BY}", "--mark-compacted")
"""As the documentation of etcd wants it restored: what was before is all compacted."""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EtcdServer]]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("restored")
        yield [stack.enter_context(EtcdServer(folder / f"etcd{n}")) for n in range(3)]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idle watches look for a restore often."""
    for module in (continuity, fleet_watch):
        monkeypatch.setattr(module, "LOOK_S", 0.2)


class Past:
    """A fleet of two stores and a prefix, and all that it has given before a member is restored."""

    def __init__(self, servers: list[EtcdServer], victim: str, folder: Path) -> None:
        self.victim, self.folder, self.name = victim, folder, f"restored-{next(_numbers)}"
        self._is_raised = False
        self.servers = dict(zip(("orders", "plans", "registry"), servers, strict=True))
        self.prefix = f"/{self.name}/"
        self.members = {
            name: {"url": server.url, "name": self.name} for name, server in self.servers.items()
        }
        self.members["registry"]["prefix"] = self.prefix
        self._first = self.servers[victim].gateway.revision() + 1
        self._stack = ExitStack()

    def __enter__(self) -> Past:
        enter = self._stack.__enter__().enter_context
        self.fleet = enter(snapkv.fleet.open(self.members, timeout=TIMEOUT_S))
        self._ticker = enter(enter(snapkv.fleet.open(self.members)).ticker())
        self.tick()
        self._stores = [
            enter(snapkv.open(self.servers[name].url, name=self.name))
            for name in ("orders", "plans")
        ]
        self.since = self.fleet.resolved()
        self.moments: dict[str, Any] = {}
        self.resumes: dict[str, str] = {}
        self.write(b"base", BASE)
        self.keep("base")
        self._backup = self.folder / "backup.db"
        self._saved = self.servers[self.victim].gateway.revision()
        self.servers[self.victim].gateway.save_snapshot(self._backup)
        self.write(b"lost", LOST)
        self.keep("lost")
        self._follow()
        self.old = self.history()
        self.states = {
            when: {name: dict(moment.items(members=name)) for name in self.members}
            for when, moment in self.moments.items()
        }
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # --- what happens ---

    def write(self, value: bytes, count: int) -> None:
        """Write to all members, and tick all after each write; each state is another one."""
        registry = self.servers["registry"].gateway
        for n in range(count):
            for store in self._stores:
                store.commit(puts={"k": value + b"%d" % n, f"n{n}": b""})
            registry.put(f"{self.prefix}k".encode(), value + b"%d" % n)
            self.tick()

    def tick(self) -> None:
        """Tick all members at one time, with stores that the fleet does not share."""
        assert len(self._ticker.tick().ticked) == len(self.members)

    def keep(self, when: str) -> None:
        """Keep the newest moment."""
        self.moments[when] = self.fleet.at()
        assert self.moments[when].final

    def _follow(self) -> None:
        """Follow the fleet, with tokens in the base, behind it, and before any item."""
        enter = self._stack.enter_context
        self.watch = enter(self.fleet.watch(since=self.since))
        base, lost = (self.moments[when].timestamp for when in ("base", "lost"))
        self.given = []
        while self.watch.timestamp < lost:
            if (item := self.watch.next(timeout=0.05)) is not None:
                self.given.append(item)
                if item.timestamp <= base:
                    self.resumes["base"] = self.watch.token
        self.resumes["lost"] = self.watch.token
        self.idle = enter(self.fleet.watch())
        assert self.idle.next(timeout=0.3) is None
        self.resumes["idle"] = self.idle.token

    def restore(self, new: int, *flags: str) -> None:
        """Set the victim back, and let it have new writes before the fleet asks it."""
        self.servers[self.victim].restore_snapshot(self._backup, *flags)
        if flags:
            self._is_raised, self._first = True, self._saved + RAISED_BY + 1
        if new:
            self.write(b"new", new)

    def history(self) -> History:
        """Return what the victim's server shows of the member now, as far as it is left."""
        events = events_of(self.servers[self.victim], self.folder, first=self._first)
        prefix = self.prefix if self.victim == "registry" else None
        return History(events, prefix, name=self.name)

    # --- what must be true then ---

    def at(self, when: str) -> int:
        """Return a timestamp."""
        return self.moments[when].timestamp

    @property
    def key(self) -> tuple[str, str]:
        """A key of the victim."""
        return self.victim, f"{self.prefix}k" if self.victim == "registry" else "k"

    def read(self, *arguments: Any, **options: Any) -> dict[Any, bytes]:
        """Return all keys of a new moment."""
        return dict(self.fleet.at(*arguments, **options).items())

    def check_first(self, first: str) -> None:
        """Let something be the first that notices."""
        if first == "moment":
            self.check_moments()
        elif first == "watch":
            self.check_watch()
        elif first == "idle watch":
            self.check_raises(lambda: all_of(self.idle))
        else:
            self.check_raises(lambda: CALLS[first](self))

    def check_raises(self, call: Callable[[], object]) -> None:
        with pytest.raises(StoreRestoredError) as caught:
            call()
        assert caught.value.member == self.victim

    def check_moments(self) -> None:
        """Assert that moments of before are as they were, or raise."""
        for when, moment in self.moments.items():
            for name in self.members:
                expected = self.states[when][name]
                reads: list[Callable[[], Any]] = [
                    lambda moment=moment, name=name: dict(moment.items(members=name)),
                    lambda moment=moment, name=name, keys=expected: {
                        key: moment[key] for key in keys
                    },
                    lambda moment=moment, name=name: {
                        (name, key): value for key, value in moment.of(name).items()
                    },
                ]
                for read in reads:
                    self.check_same(name, read, expected)

    def check_same(self, name: str, read: Callable[[], Any], expected: Any) -> None:
        if name == self.victim:
            self.check_raises(read)
        else:
            assert read() == expected

    def check_watch(self) -> None:
        """Assert that an open watch brings no item of the new history, and ends with the error."""
        self.check_raises(lambda: all_of(self.watch, self.given))
        shown = [item for item in self.given if self.victim in item.members]
        found = [(item.timestamp, written(item.members[self.victim])) for item in shown]
        until = self.moments["lost"].timestamp
        assert found == self.old.changes(self.since, until)

    def check_new_calls(self) -> None:
        """Assert that the fleet raises for whatever has to do with the victim, and only for it."""
        for call in CALLS.values():
            self.check_raises(lambda call=call: call(self))  # type: ignore[misc]
        others = sorted(set(self.members) - {self.victim})
        for when, moment in self.moments.items():
            again = self.fleet.at(moment.timestamp, members=others)
            assert again.final
            for name in others:
                assert dict(again.items(members=name)) == self.states[when][name]

    def check_later(self, new: History) -> None:
        """Assert that another process gets the same by tokens, or the error."""
        asked = {
            "members": self.members,
            "timeout": TIMEOUT_S,
            "tokens": self.tokens,
            "resumes": self.resumes,
        }
        program = Path(__file__).with_name("later.py")
        done = subprocess.run(
            [sys.executable, str(program), json.dumps(asked)],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        answers = json.loads(done.stdout)
        restored = {"error": "StoreRestoredError", "member": self.victim}
        assert answers["tokens"]["lost"] == restored
        base = answers["tokens"]["base"]
        if "error" in base:
            self.check_error(base)
        else:
            found = {(name, key): b64decode(value) for name, key, value in base["items"]}
            seen = set(self.members) - (set() if base["final"] else {self.victim})
            expected: dict[Any, bytes] = {}
            for name in seen:  # without the victim if it was compacted
                expected |= self.states["base"][name]
            assert found == expected
        for when in ("lost", "idle"):
            answer = answers["resumes"][when]
            assert {key: answer.get(key) for key in restored} == restored, (when, answer)
            assert not [each for each in answer["items"] if each[1] == self.victim]
        resumed = answers["resumes"]["base"]
        if "error" in resumed:
            self.check_error(resumed)
        else:
            found_writes = [
                (timestamp, tuple((key, plain(value)) for key, value in changes))
                for timestamp, name, changes in resumed["items"]
                if name == self.victim
            ]
            begun = json.loads(self.resumes["base"])["timestamp"]
            assert found_writes == new.changes(begun, 1 << 63)

    def check_error(self, answer: dict[str, Any]) -> None:
        """Assert that an error names the victim, whose past may be compacted by the restore."""
        allowed = {"StoreRestoredError"} | ({"CompactedError"} if self._is_raised else set())
        assert answer["error"] in allowed
        assert answer["member"] == self.victim

    def check_opened_anew(self) -> None:
        """Assert that a fleet that is opened now shows what the server itself does."""
        self.tick()
        data = self.prefix if self.victim == "registry" else f"{self.name}/data/"
        pairs = self.servers[self.victim].gateway.range(data.encode(), prefix_end(data.encode()))
        cut = 0 if self.victim == "registry" else len(data)
        with snapkv.fleet.open(self.members, timeout=TIMEOUT_S) as fleet:
            moment = fleet.at()
            assert moment.final
            found = dict(moment.of(self.victim).items())
            assert found == {pair.key[cut:].decode(): pair.value for pair in pairs}


CALLS: dict[str, Callable[[Past], object]] = {
    "now": lambda past: past.read(),
    "now, stale": lambda past: past.read("-0s", behind="stale"),
    "now, left out": lambda past: past.read("-0s", behind="leave out"),
    "base": lambda past: past.read(past.at("base")),
    "lost": lambda past: past.read(past.at("lost")),
    "lost, left out": lambda past: past.read(past.at("lost"), behind="leave out"),
    "victim": lambda past: past.read(past.at("lost") - 1, members=past.victim),
    "token": lambda past: past.read(token=past.tokens["lost"]),
    "token, left out": lambda past: past.read(token=past.tokens["base"], behind="leave out"),
    "resolved": lambda past: past.fleet.resolved(),
    "resolved of some": lambda past: past.fleet.resolved(1),
    "diff": lambda past: list(past.fleet.diff(past.at("base"), past.at("lost"))),
    "commits": lambda past: list(past.fleet.commits(since=past.since)),
    "old commits": lambda past: list(past.fleet.commits(until=past.at("lost"))),
    "history": lambda past: list(past.fleet.history(past.key, until=past.at("lost"))),
    "watch since": lambda past: all_of_new(past, since=past.at("base")),
    "resume": lambda past: all_of_new(past, resume=past.resumes["lost"]),
}
"""All of them read from the victim. A time that is known needs no round trip before that."""


def all_of_new(past: Past, **options: Any) -> None:
    with past.fleet.watch(**options) as watch:
        all_of(watch)


def all_of(watch: Any, into: list[Any] | None = None) -> None:
    """Take what a watch brings, up to its error."""
    for _ in range(int(WAIT_S / 0.5)):
        item = watch.next(timeout=0.5)
        if item is not None and into is not None:
            into.append(item)


def plain(value: str | None) -> bytes | None:
    return None if value is None else b64decode(value)


def written(changes: Any) -> Any:
    return tuple((change.key, change.value) for change in changes)


FIRST = ["moment", "watch", "idle watch", *CALLS]
AFTER = [(0, ()), (2, ()), (3 * LOST, ()), (2, RAISED)]
"""How much is written before anything of the fleet asks, and how the backup is restored."""
CASES = [
    pytest.param(victim, new, flags, first, id=f"{victim}-{new}{'-raised' * bool(flags)}-{first}")
    for victim, (new, flags), first in itertools.product(["plans", "registry"], AFTER, FIRST)
]


@pytest.mark.long_after(1)
@pytest.mark.parametrize(("victim", "new", "flags", "first"), CASES if SOAK else CASES[::23])
def test_a_member_is_restored_under_a_fleet(
    servers: list[EtcdServer],
    tmp_path: Path,
    often: None,
    victim: str,
    new: int,
    flags: tuple[str, ...],
    first: str,
) -> None:
    with Past(servers, victim, tmp_path) as past:
        past.tokens = {when: moment.token for when, moment in past.moments.items()}
        past.restore(new, *flags)
        past.check_first(first)
        past.check_moments()
        past.check_new_calls()
        past.check_watch()
        past.check_later(past.history())
        past.check_new_calls()
        past.check_opened_anew()


def test_a_watch_whose_stream_is_opened_after_the_restore(
    etcd: EtcdServer, tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server brings nothing, and the stream was never opened again: nothing shows it."""
    is_restored, plain = threading.Event(), EtcdConnection.watch

    def watch(connection: EtcdConnection, request: Any) -> Any:
        assert is_restored.wait(WAIT_S)
        return plain(connection, request)

    backup = tmp_path / "backup.db"
    with snapkv.open(etcd.url) as store, snapkv.fleet.open({"a": etcd.url}) as fleet:
        store.save("k", b"base")
        etcd.gateway.save_snapshot(backup)
        lost = store.save("k", b"lost")
        monkeypatch.setattr(EtcdConnection, "watch", watch)
        with fleet.watch(since=lost) as watching:
            eventually(lambda: watching._followers[0]._watch, "the watch to be made")
            etcd.restore_snapshot(backup)
            is_restored.set()
            with pytest.raises(StoreRestoredError) as caught:
                all_of(watching)
        assert caught.value.member == "a"


@pytest.mark.parametrize("recreated", [False, True])
@pytest.mark.parametrize("prefix", [None, "/made/"])
def test_a_member_is_restored_to_before_its_store_was_made(
    etcd: EtcdServer, tmp_path: Path, often: None, prefix: str | None, recreated: bool
) -> None:
    backup = tmp_path / "backup.db"
    etcd.gateway.put(b"before", b"")
    etcd.gateway.save_snapshot(backup)
    member = {"url": etcd.url} | ({} if prefix is None else {"prefix": prefix})
    with snapkv.fleet.open({"a": member, "b": f"memory:{tmp_path}"}, timeout=TIMEOUT_S) as fleet:
        with fleet.ticker() as ticker:
            ticker.tick()
            etcd.gateway.put(b"/made/k", b"1")
            at = ticker.tick().timestamp
        with fleet.watch(since=at) as watch:
            moment = fleet.at(at)
            shown = dict(moment.items())
            etcd.restore_snapshot(backup)
            if recreated:
                with fleet.ticker() as ticker:
                    ticker.tick()
            calls: list[Callable[[], object]] = [
                lambda: fleet.at(),
                lambda: list(moment.items()) == shown or None,
                lambda: fleet.at("-0s", behind="stale"),
                lambda: list(fleet.commits(until=at)),
                lambda: all_of(watch),
            ]
            for call in calls:
                with pytest.raises((StoreRecreatedError, StoreRestoredError)) as caught:
                    call()
                assert caught.value.member == "a"
        token = moment.token
    with snapkv.fleet.open({"a": member, "b": f"memory:{tmp_path}"}, timeout=TIMEOUT_S) as later:
        wanted = StoreRecreatedError if recreated else snapkv.MembersBehindError
        with pytest.raises(wanted) as caught:
            later.at(token=token)
        assert caught.value.member == "a" or set(caught.value.members) == {"a"}
