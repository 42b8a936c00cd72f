"""A fleet of three real servers that are killed and stopped, against what `etcdctl watch` printed.

A process reads moments and follows the fleet all the while. What it says is final has to be what
the servers themselves show, however often it is read; what is missing has to be named.
"""

from __future__ import annotations

import random
import time
from base64 import b64decode
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sampling import SOAK

import snapkv
from snapkv.fleet.fleet_watch import FleetChanges, Late

from .oracle import History, State, Writes, merged
from .world import PLACES, WAIT_S, Readers, World, Writing, made_world

pytestmark = [pytest.mark.slow, pytest.mark.kills_etcd]

FAULTS = ["kill", "pause"]
ROUNDS = 6 if SOAK else 1
MOMENTS_MIN = 15
"""So many final moments are taken between two faults."""
TIMEOUT_S = 1.0
CALL_S_MAX = 5 * TIMEOUT_S + 3.0
"""A call asks each member several times, and the machine may be busy."""
RESUMES = 40 if SOAK else 5
AWAY = {"EngineUnavailableError", "EngineBusyError"}


@pytest.mark.long
def test_final_moments_and_watches_while_servers_are_away(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    with made_world(tmp_path) as world, Writing(world, seed) as writing:
        since = writing.rounds[0].timestamp
        with Readers(world, since=since, timeout=TIMEOUT_S, seed=seed) as readers:
            hurt_and_heal(world, readers, random.Random(seed))
            end = writing.last_round()
            lines = readers.end(end)
        histories = world.histories()
        check_moments(lines, histories)
        check_rounds(lines, histories)
        expected = merged(histories, since, end)
        assert len(expected) > 100
        check_watch(lines, expected)
        check_lenient(lines, histories, since, end)
        check_resuming(world, lines, expected, end, random.Random(seed))


# --- the faults ---


def hurt_and_heal(world: World, readers: Readers, rng: random.Random) -> None:
    """Let servers be away one after the other, each until the readers have noticed."""
    wait_for_all(readers)
    for _ in range(ROUNDS):
        faults = rng.sample([*FAULTS, rng.choice(FAULTS)], 3)
        long = rng.randrange(3)
        print("faults", faults, "the long one", long)
        for server, (node, fault) in enumerate(zip(world.servers, faults, strict=True)):
            lost = set(world.on(server))
            if fault == "kill":
                node.kill()
            else:
                node.pause()
            readers.wait_for(partial(names, lost), f"{lost} to be named ({fault})")
            if server == long:
                readers.wait_for(partial(leaves_out, lost), f"{lost} to be left out")
            if fault == "kill":
                node.start()
            else:
                node.resume()
            wait_for_all(readers)


def names(lost: set[str], line: dict[str, Any]) -> bool:
    """Return whether a moment of all members names those that are lost, and only those."""
    if line["kind"] != "moment" or line["asked"]["of"] is not None:
        return False
    if "error" in line:
        return bool(line["error"]["members"]) and set(line["error"]["members"]) == lost
    late = {name for name, seen in line["seen"].items() if seen[0] in ("behind", "missing")}
    return late == lost


def leaves_out(lost: set[str], line: dict[str, Any]) -> bool:
    return line["kind"] == "lenient" and lost <= left_out(line)


def left_out(line: dict[str, Any]) -> set[str]:
    return set(line["item"].get("missing", ()))


def wait_for_all(readers: Readers) -> None:
    """Wait for moments of now that are final on all members, and for both watches to be there."""
    now = time.time_ns() // 1_000_000 << 18
    late = Counter({"moment": MOMENTS_MIN, "watch": 1, "lenient": 1})

    def reached(line: dict[str, Any]) -> bool:
        item = line.get("item", line)
        is_new = item.get("timestamp", 0) > now and not item.get("missing")
        if is_new and line.get("final", True) and len(line.get("seen", PLACES)) == len(PLACES):
            late[line["kind"]] -= 1
        return all(left <= 0 for left in late.values())

    readers.wait_for(reached, f"moments and watches to come to {now}")


# --- moments ---


def check_moments(lines: list[dict[str, Any]], histories: dict[str, History]) -> None:
    """Assert that all that was called final is what the servers show, and all else is named."""
    moments = {line["id"]: line for line in lines if line["kind"] == "moment"}
    finals = late = 0
    for line in moments.values():
        assert line["seconds"] < CALL_S_MAX, line
        if "error" in line:
            assert line["error"]["type"] == "MembersBehindError", line
            assert set(line["error"]["members"]) <= set(histories)
            assert line["asked"]["behind"] == "error" or line["asked"]["when"] is None
            late += 1
            continue
        assert list(line["seen"]) == (line["asked"]["of"] or sorted(histories))
        states = {name: seen[0] for name, seen in line["seen"].items()}
        assert line["final"] == (not {"behind", "missing"} & set(states.values())), line
        assert line["final"] or line["asked"]["behind"] != "error", line
        check_states(line, line, histories)
        finals += line["final"]
        late += not line["final"]
    assert finals > 4 * MOMENTS_MIN * ROUNDS
    assert late > 5
    again = [line for line in lines if line["kind"] == "again"]
    assert {line["by"] for line in again} == {"moment", "token"}
    for line in again:
        first = moments[line["id"]]
        if "error" in line:
            assert_away(line["error"])
            assert line["by"] == "token"
        else:
            check_states(first, line, histories)
    print(f"{finals} final moments, {late} that name members, {len(again)} read again")


def check_states(
    first: dict[str, Any], read: dict[str, Any], histories: dict[str, History]
) -> None:
    """Assert that a moment, when it was taken or later, shows what its members had."""
    assert read["timestamp"] == first["timestamp"]
    for name, answer in read["states"].items():
        assert answer["seconds"] < CALL_S_MAX, answer
        check_seen(first, read, name, histories[name])
        if "error" in answer:
            assert_away(answer["error"])
            assert answer["error"]["member"] == name
            continue
        timestamp = read["seen"][name][1]
        expected = histories[name].state(timestamp) if timestamp else {}
        assert items_of(answer) == expected, (name, read)


def check_seen(first: dict[str, Any], read: dict[str, Any], name: str, history: History) -> None:
    """Assert that what is said of a member is true, and is what was said at first."""
    state, timestamp, revision, newest, final = read["seen"][name]
    assert newest <= history.timestamps[-1]
    if state in ("live", "archive"):
        assert (timestamp, revision) == history.place(first["timestamp"]), (name, read)
        assert final
    elif state == "behind" and timestamp:
        assert history.place(timestamp) == (timestamp, revision)
        assert timestamp < first["timestamp"]
        assert not final
    else:
        assert not timestamp
        assert final == (state == "absent")
    if timestamp and first["seen"][name][1]:
        assert read["seen"][name][:3] == first["seen"][name][:3]


def items_of(answer: dict[str, Any]) -> State:
    return {key: b64decode(value) for key, value in answer["items"].items()}


def assert_away(error: dict[str, Any]) -> None:
    assert AWAY & set(error["bases"]), error
    assert error["member"] in PLACES


def check_rounds(lines: list[dict[str, Any]], histories: dict[str, History]) -> None:
    """Assert that moments of rounds exist, at a tick that each observed member has."""
    rounds = [line for line in lines if line.get("spread") is not None]
    assert rounds
    for line in rounds:
        observed = [name for name in line["seen"] if PLACES[name].prefix is not None]
        assert len(observed) > 1
        for name in observed:
            assert histories[name].place(line["timestamp"])[0] == line["timestamp"]


# --- watches ---


def decoded(changes: list[list[Any]]) -> Writes:
    return tuple((key, None if value is None else b64decode(value)) for key, value in changes)


def items(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    found = [line for line in lines if line["kind"] == kind]
    assert not [line for line in found if "error" in line]
    return found


def check_watch(lines: list[dict[str, Any]], expected: list[tuple[int, dict[str, Writes]]]) -> None:
    """Assert that a watch that waits for all members brought every change once, in order."""
    found = [
        (line["item"]["timestamp"], {n: decoded(c) for n, c in line["item"]["members"].items()})
        for line in items(lines, "watch")
    ]
    timestamps = [timestamp for timestamp, _ in found]
    assert timestamps == sorted(set(timestamps))
    assert found == expected


def check_lenient(
    lines: list[dict[str, Any]], histories: dict[str, History], since: int, until: int
) -> None:
    """Assert that a watch that leaves members out brought every change of each, once, in order.

    What comes later was named as missing in all items in between.
    """
    of_members: dict[str, list[tuple[int, Writes]]] = {name: [] for name in histories}
    newest, late = since, 0
    shown: list[tuple[int, set[str]]] = []
    for line in items(lines, "lenient"):
        item = line["item"]
        if "late" in item:
            late += 1
            name = item["late"]
            for timestamp, changes in item["changes"]:
                assert item["since"] < timestamp <= item["until"]
                of_members[name].append((timestamp, decoded(changes)))
                after = [missing for at, missing in shown if at >= timestamp]
                assert all(name in missing for missing in after), (name, timestamp)
            continue
        assert item["timestamp"] > newest
        newest = item["timestamp"]
        shown.append((newest, set(item["missing"])))
        assert not set(item["missing"]) & set(item["members"])
        for name, changes in item["members"].items():
            of_members[name].append((newest, decoded(changes)))
    assert late, "no member was left out"
    for name, history in histories.items():
        assert of_members[name] == history.changes(since, until), name


# --- resuming ---


def check_resuming(
    world: World,
    lines: list[dict[str, Any]],
    expected: list[tuple[int, dict[str, Writes]]],
    end: int,
    rng: random.Random,
) -> None:
    """Assert that a watch that goes on after any item brings the rest, and nothing else."""
    with snapkv.fleet.open(world.members) as fleet:
        strict = items(lines, "watch")
        for line in rng.sample(strict, RESUMES):
            timestamp = line["item"]["timestamp"]
            rest = [each for each in expected if each[0] > timestamp]
            for options in ({"since": timestamp}, {"resume": line["token"]}):
                found = followed(fleet, end, **options)
                assert [(each.timestamp, plain(each)) for each in found] == rest
        lenient = items(lines, "lenient")
        while_out = [n for n, line in enumerate(lenient) if left_out(line)]
        for at in [*rng.sample(range(len(lenient)), RESUMES), rng.choice(while_out)]:
            found = followed(fleet, end, resume=lenient[at]["token"], behind="leave out")
            assert of_each(found) == left_after(lenient[at + 1 :]), at


def followed(fleet: Any, end: int, **options: Any) -> list[FleetChanges | Late]:
    """Return the items of a watch up to a time."""
    found = []
    with fleet.watch(**options) as watch:
        deadline = time.monotonic() + WAIT_S
        while watch.timestamp < end or "behind" in watch.token:
            assert time.monotonic() < deadline, f"{watch.timestamp} is all in {WAIT_S} s"
            item = watch.next(timeout=0.05)
            if item is not None:
                found.append(item)
    return found


def plain(item: FleetChanges) -> dict[str, Writes]:
    return {name: written(changes) for name, changes in item.members.items()}


def written(changes: Any) -> Writes:
    return tuple((change.key, change.value) for change in changes)


def of_each(found: list[FleetChanges | Late]) -> dict[str, list[tuple[int, Writes]]]:
    """Return the changes of each member, whichever items brought them."""
    sorted_: dict[str, list[tuple[int, Writes]]] = {name: [] for name in PLACES}
    for item in found:
        if isinstance(item, Late):
            sorted_[item.member] += [(each.commit.ts, written(each)) for each in item.changes]
        else:
            for name, changes in plain(item).items():
                sorted_[name].append((item.timestamp, changes))
    return sorted_


def left_after(lines: list[dict[str, Any]]) -> dict[str, list[tuple[int, Writes]]]:
    """Return the same of printed items."""
    sorted_: dict[str, list[tuple[int, Writes]]] = {name: [] for name in PLACES}
    for item in (line["item"] for line in lines):
        if "late" in item:
            sorted_[item["late"]] += [(ts, decoded(changes)) for ts, changes in item["changes"]]
        else:
            for name, changes in item["members"].items():
                sorted_[name].append((item["timestamp"], decoded(changes)))
    return sorted_
