"""What cannot be is refused, and leaves a coordinator as if it had never been told of it."""

import math

import pytest
from simulated_captures import SimulatedExecutor

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import (
    Agent,
    Barrier,
    Cluster,
    Coordinator,
    KnownOwner,
    Limits,
    TableState,
    Token,
)

from .speaking import OWNER, REVISION, beat, from_capture, says, sync

OLD = Token(8, 1)
EPOCHS = {"c0": 3, "c1": 4}
TABLES = {"t": 1.0, "u": 2.0}
ROUND_US = 100_000
SEEN = Cluster(1_000, EPOCHS, TABLES, 100, REVISION + 3)
"""What is seen first; the revision is one after the election."""
OTHER = Cluster(10**12, {"c0": 12, "c9": 5}, {"x": 7.0}, 10**12, REVISION + 9, Barrier(1))
"""What could be seen later; it would change all that a coordinator knows."""
TOO_LARGE, SURROGATE = 1 << 63, "\ud800"

CANNOT_BE = [
    *({name: bad} for name in ("now", "checkpoint") for bad in (-1, True, 1.5, TOO_LARGE, None)),
    *(
        {"captures": EPOCHS, "revision": bad}
        for bad in (-1, 0, True, 9.5, TOO_LARGE, None, REVISION - 1)
    ),
    *({"captures": bad} for bad in (None, ["c0"], [("c0", 3)], "c0")),
    *({"captures": {"c0": 12, "c9": bad}} for bad in ("x", None, -5, True, 1.5, TOO_LARGE)),
    {"captures": {"c0": 12, "c9": OTHER.revision + 1}},
    *({"captures": {"c0": 12, bad: 5}} for bad in ("", 5, None, b"c9", SURROGATE, OWNER)),
    *({"tables": bad} for bad in (None, ["x"], [("x", 1.0)], "x")),
    *({"tables": {"x": 7.0, bad: 1.0}} for bad in ("", 5, None, b"t", SURROGATE)),
    *(
        {"tables": {"x": 7.0, "t": bad}}
        for bad in (math.nan, math.inf, -math.inf, -1, -0.5, "1", None, 1e101, 10**400)
    ),
    *({"barrier": bad} for bad in (None, -5, 1.5, 7, "x", (7, ()), {})),
    *({"barrier": Barrier(bad)} for bad in (None, -5, 1.5, True, TOO_LARGE)),
    *({"barrier": Barrier(1, bad)} for bad in (None, [("t", 5)], {"t": 5}, "t", (5,), ("t",))),
    *(
        {"barrier": Barrier(1, (("t", 5), bad))}
        for bad in (
            *(("u",), ("u", 5, 5), ["u", 5], None, "u5"),
            *(("", 5), (5, 5), (None, 5), (SURROGATE, 5)),
            *(("u", -1), ("u", 1.5), ("u", True), ("u", None), ("u", TOO_LARGE)),
        )
    ),
]
CANNOT_COME_AFTER = [
    {"now": SEEN.now - 1},
    {"now": 0},
    {"captures": EPOCHS, "revision": SEEN.revision - 1},
    {"captures": EPOCHS, "revision": REVISION},
    {"captures": {"c0": 2, "c1": 4}},
    {"captures": {"c0": 3, "c1": 0}},
]


def named(value: object) -> str:
    return ascii(value) if len(ascii(value)) < 70 else f"{ascii(value)[:60]}..."


def twins() -> tuple[Coordinator, Coordinator]:
    return tuple(Coordinator(OWNER, "c0", revision=REVISION) for _ in range(2))


def told(capture: str, table: str):
    held = says(table, TableState.REPLICATING, OLD)
    return from_capture(capture, sync(held), epoch=EPOCHS[capture])


def refuses(owner: Coordinator, bad: Cluster) -> None:
    """Check that a cluster is refused, with messages that would change something."""
    stops = beat(says("t", TableState.STOPPED, OLD), is_stopping=True)
    inbox = [told("c0", "x"), told("c1", "x"), from_capture("c0", stops)]
    with pytest.raises(InvalidArgumentError):
        owner.tick(inbox, bad)


@pytest.mark.parametrize("bad", CANNOT_BE, ids=named)
def test_what_cannot_be_is_refused_from_the_start(bad):
    owner, twin = twins()
    refuses(owner, OTHER._replace(**bad))
    for n in range(3):
        inbox = [told("c0", "t"), told("c1", "x")] if n == 1 else []
        seen = SEEN._replace(now=SEEN.now + n * ROUND_US)
        assert owner.tick(inbox, seen) == twin.tick(inbox, seen)
        assert owner.refused == twin.refused


@pytest.mark.parametrize("bad", [*CANNOT_BE, *CANNOT_COME_AFTER], ids=named)
def test_what_cannot_come_after_what_was_seen_is_refused(bad):
    """One that takes in nothing of it goes on as its twin does, to the last message."""
    owner, twin = twins()
    for each in (owner, twin):
        each.tick([told("c0", "t"), told("c1", "u")], SEEN)
    refuses(owner, OTHER._replace(**bad))
    tables = TABLES | {"new": 1.0}
    for n in range(4):
        seen = SEEN._replace(now=SEEN.now + n * ROUND_US // 2)
        if n > 1:
            seen = seen._replace(tables=tables, checkpoint=200)
        reports = beat(says("t", TableState.REPLICATING, OLD))
        inbox = [from_capture("c0", reports)]
        assert owner.tick(inbox, seen) == twin.tick(inbox, seen)
        assert owner.refused == twin.refused
    assert owner.captures.known == twin.captures.known
    assert owner.replication.sets == twin.replication.sets


@pytest.mark.parametrize("bad", [None, 5, "x", {}, tuple(SEEN)], ids=named)
def test_a_cluster_is_a_cluster(bad):
    owner, twin = twins()
    refuses(owner, bad)
    assert owner.tick([], SEEN) == twin.tick([], SEEN)


def test_what_can_just_be_is_taken():
    """The largest numbers, the least weights, and what stays as it is."""
    most = TOO_LARGE - 1
    owner = Coordinator(OWNER, "c0", revision=REVISION)
    barrier = Barrier(most, (("t", most), ("gone", 0)))
    seen = Cluster(0, {"c0": 0, "é": REVISION}, {"t": 0, "ü": 1e100}, 0, REVISION, barrier)
    assert len(owner.tick([], seen).messages) == 2
    assert owner.tick([], seen).messages == []
    seen = Cluster(most, {"c0": most, "é": REVISION}, {}, most, most, barrier)
    assert len(owner.tick([], seen).messages) == 2


# --- constructors ---


@pytest.mark.parametrize(
    "bad",
    [
        *(
            {what: bad}
            for what in ("name", "capture", "version")
            for bad in ("", 5, None, b"c9", SURROGATE)
        ),
        {"capture": OWNER},
        *({"revision": bad} for bad in (0, -1, True, 1.5, "9", None, TOO_LARGE)),
        *({"changefeed_epoch": bad} for bad in (-1, True, 1.5, "9", None, TOO_LARGE)),
        *({"limits": bad} for bad in ("x", 0, {}, {"add_batch": 5}, Limits)),
    ],
    ids=named,
)
def test_owners_that_cannot_be(bad):
    good = {"name": OWNER, "capture": "c0", "revision": REVISION, "limits": Limits()}
    Coordinator(**good)
    with pytest.raises(InvalidArgumentError):
        Coordinator(**(good | bad))


@pytest.mark.parametrize(
    "bad",
    [
        *({what: bad} for what in ("name", "version") for bad in ("", 5, None, b"c0", SURROGATE)),
        *(
            {what: bad}
            for what in ("epoch", "changefeed_epoch")
            for bad in (-1, True, 1.5, "3", None, TOO_LARGE)
        ),
        *({"owner": bad} for bad in (None, OWNER, (OWNER, REVISION), KnownOwner)),
    ],
    ids=named,
)
def test_agents_that_cannot_be(bad):
    good = {"name": "c0", "executor": SimulatedExecutor(), "epoch": 3, "owner": KnownOwner()}
    Agent(**good)
    with pytest.raises(InvalidArgumentError):
        Agent(**(good | bad))


def test_an_agent_begins_without_tables():
    executor = SimulatedExecutor()
    executor.add_table("t", 5, Token(1, 1), is_prepare=True)
    with pytest.raises(InvalidArgumentError, match="no tables"):
        Agent("c0", executor, epoch=3, owner=KnownOwner())
