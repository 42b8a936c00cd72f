"""A process that reads a fleet without a pause, and prints what it got as lines of JSON.

    python reader.py SETTINGS     a JSON object: members, timeout, since, seed

Two threads take moments and read them again later; two follow the fleet, one of which leaves
members out that are away. A line "end TIMESTAMP" on its input ends it: the moments are read a last
time, and the watches go on up to that timestamp.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # modules of all tests; what is beside this file are tests
    sys.path[0] = str(Path(__file__).parents[1])

from chains import check_ends

import snapkv
from snapkv.errors import SnapKVError
from snapkv.fleet.fleet_watch import Late

BEHIND = ("error", "stale", "leave out")
KEPT_MAX = 400
"""So many moments are kept and read again."""


def failure(error: SnapKVError) -> dict[str, Any]:
    """Return an error as JSON."""
    members = getattr(error, "members", {})
    return {
        "type": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "member": error.member,
        "members": dict(members),
        "text": str(error),
    }


def writes(changes: Any) -> list[list[Any]]:
    """Return the changes of one member as JSON: keys and values."""
    return [[c.key, None if c.value is None else b64encode(c.value).decode()] for c in changes]


def shown(item: Any) -> dict[str, Any]:
    """Return an item of a watch as JSON."""
    if isinstance(item, Late):
        changes = [[each.commit.ts, writes(each)] for each in item.changes]
        return {"late": item.member, "since": item.since, "until": item.until, "changes": changes}
    members = {name: writes(changes) for name, changes in item.members.items()}
    return {"timestamp": item.timestamp, "members": members, "missing": list(item.missing)}


def seen_in(moment: Any) -> dict[str, Any]:
    """Return what a moment says of its members as JSON."""
    seen = {
        name: [each.state, each.timestamp, each.revision, each.newest, each.final]
        for name, each in moment.members.items()
    }
    return {"timestamp": moment.timestamp, "final": moment.final, "seen": seen}


class Reader:
    """The fleet, its moments, and where they are printed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.names, self.since = sorted(settings["members"]), settings["since"]
        self.rng = random.Random(settings["seed"])
        self.fleet = snapkv.fleet.open(settings["members"], timeout=settings["timeout"])
        self.end: int | None = None
        self.kept: list[tuple[int, Any]] = []
        self.newest = self.since
        self._numbers = itertools.count(1)
        self._printing = threading.Lock()

    def print(self, **line: Any) -> None:
        """Print one line."""
        text = json.dumps(line)
        with self._printing:
            print(text, flush=True)

    # --- moments ---

    def take_moments(self) -> None:
        """Take moments and read them again, until the end."""
        while self.end is None:
            if self.rng.random() < 0.3 and self.kept:
                self.read_again(*self.rng.choice(self.kept))
            else:
                self.take(next(self._numbers))

    def take(self, number: int) -> None:
        """Take a moment and read it."""
        asked = self._asked()
        line: dict[str, Any] = {"kind": "moment", "id": number, "asked": asked}
        with timed(line):
            try:
                moment = self.fleet.at(asked["when"], members=asked["of"], behind=asked["behind"])
            except SnapKVError as e:
                check_ends(e)
                line["error"] = failure(e)
        if "error" not in line:
            line |= seen_in(moment) | {"spread": moment.spread, "states": self._states(moment)}
            self._keep(number, moment)
        self.print(**line)

    def _asked(self) -> dict[str, Any]:
        """Return what to ask for: any time, of some members."""
        known = [self.newest, *(moment.timestamp for _, moment in self.kept[-50:])]
        when: Any = self.rng.choice(
            [
                None,
                None,
                self.rng.randrange(self.since, self.newest + 1),
                self.rng.choice(known),
                self.rng.choice(known) - 1,
                f"-{self.rng.random():.3f}s",
                "-0s",
            ]
        )
        several = self.rng.sample(self.names, self.rng.randrange(1, len(self.names)))
        of = self.rng.choice([None, None, sorted(several)])
        return {"when": when, "of": of, "behind": self.rng.choice(BEHIND)}

    def _keep(self, number: int, moment: Any) -> None:
        if moment.final:
            self.newest = max(self.newest, moment.timestamp)
        if len(self.kept) < KEPT_MAX:
            self.kept.append((number, moment))
        else:
            self.kept[self.rng.randrange(KEPT_MAX)] = number, moment

    def read_again(self, number: int, moment: Any) -> None:
        """Read a moment again, by itself or by its token."""
        line: dict[str, Any] = {"kind": "again", "id": number, "by": "moment"}
        if self.rng.random() < 0.5:
            line["by"] = "token"
            with timed(line):
                try:
                    moment = self.fleet.at(token=moment.token, behind="leave out")
                except SnapKVError as e:
                    check_ends(e)
                    line["error"] = failure(e)
        if "error" not in line:
            line |= seen_in(moment) | {"states": self._states(moment)}
        self.print(**line)

    def _states(self, moment: Any) -> dict[str, Any]:
        """Return the keys of each member, or the error that came in their place."""
        found: dict[str, Any] = {}
        for name in moment.members:
            line: dict[str, Any] = {}
            with timed(line):
                try:
                    line["items"] = self._state(moment, name)
                except SnapKVError as e:
                    check_ends(e)
                    line["error"] = failure(e)
            found[name] = line
        return found

    def _state(self, moment: Any, name: str) -> dict[str, str]:
        """Return the keys of one member, read in one of the ways to read them."""
        if self.rng.random() < 0.5:
            found = dict(moment.items(members=[name]))
        else:
            keys = list(moment.keys(members=[name]))
            found = {key: moment[key] for key in keys}
        assert all(member == name for member, _ in found)
        return {key: b64encode(value).decode() for (_, key), value in found.items()}

    # --- watches ---

    def follow(self, kind: str, behind: Any) -> None:
        """Follow the fleet up to the end, with a token after each item."""
        try:
            with self.fleet.watch(since=self.since, behind=behind) as watch:
                while self.end is None or watch.timestamp < self.end or _is_missing(watch):
                    item = watch.next(timeout=0.2)
                    if item is not None:
                        self.print(kind=kind, item=shown(item), token=watch.token)
        except SnapKVError as e:
            check_ends(e)
            self.print(kind=kind, error=failure(e))
        self.print(kind=f"end of {kind}")


def _is_missing(watch: Any) -> bool:
    """Return whether a member is left out now, by the token."""
    return any(place[1] == "behind" for place in json.loads(watch.token)["members"].values())


@contextmanager
def timed(line: dict[str, Any]) -> Iterator[None]:
    """Note how many seconds a block took."""
    began = time.monotonic()
    yield
    line["seconds"] = time.monotonic() - began


def main() -> None:
    """Run until the end."""
    reader = Reader(json.loads(sys.argv[1]))
    work: list[Callable[[], None]] = [
        reader.take_moments,
        reader.take_moments,
        lambda: reader.follow("watch", "error"),
        lambda: reader.follow("lenient", "leave out"),
    ]
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    words = sys.stdin.readline().split()
    reader.end = int(words[1]) if words else 0  # the tests have ended: so do we
    for thread in threads:
        thread.join()
    for each in reader.kept:
        reader.read_again(*each)
    reader.fleet.close()
    reader.print(kind="end")


if __name__ == "__main__":
    main()
