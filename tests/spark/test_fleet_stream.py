"""Streams of fleets: each change once, whatever dies; a batch ends at a time that is final."""

import json
import random

import pytest
from direct import forget_all
from fleets import NAMES, FleetQuery, Grown, fleet_file
from reading.tabled import FOREVER, changes_of
from stream_queries import LIMITS, Checkpoint, needs_limits, refused_by

from snapkv import to_datetime
from snapkv.layout import Mark
from snapkv.spark import fleet_stream, micro_batches
from snapkv.spark.fleet_stream import At, FleetOffset
from snapkv.spark.micro_batches import LIMITS_KNOWN

pytestmark = pytest.mark.slow

NOWHERE = "etcd://127.0.0.1:1"


@pytest.fixture
def grown(tmp_path, clock):
    found = Grown(tmp_path, clock)
    yield found
    forget_all()
    found.close()


@pytest.fixture(autouse=True)
def no_idling(monkeypatch):
    """A stream that finds nothing new waits for half a second."""
    monkeypatch.setattr(fleet_stream, "IDLE_S", 0.0)


def changes(grown: Grown, since: int, until: int = FOREVER, names=NAMES) -> list[tuple]:
    """The rows of all members' changes in (since, until], by member."""
    return [
        (name, *row)
        for name in names
        for row in changes_of(grown.writing[name].plain, since, until)
    ]


def state(grown: Grown, at: int, names=NAMES) -> list[tuple]:
    """The rows of the first snapshot."""
    rows = []
    for name in names:
        plain = grown.writing[name].plain
        mark = plain.rows[plain.row_at(at)]
        rows += [
            (name, key, value, "insert", mark.revision, None, to_datetime(mark.ts))
            for key, value in plain.state(at).items()
        ]
    return rows


def by_member(rows: list[tuple]) -> list[tuple]:
    """Rows in the order of members, each member's own in the order in which they came."""
    return sorted(rows, key=lambda row: row[0])


def times_of(batch: list[list[tuple]]) -> set:
    return {row[6] for task in batch for row in task}


# --- each change once ---


@pytest.mark.long_after(1)
@pytest.mark.parametrize("passes_start", [True, False], ids=["4.2", "4.0"])
@pytest.mark.parametrize("seed", range(2))
def test_every_change_once(grown, seed, passes_start):
    """Drivers die at any time; `Query` asserts that a batch asked for again has the same rows."""
    grown.rng.seed(seed)
    rng, checkpoint = random.Random(seed), Checkpoint()
    start = rng.choice(({}, {"startingVersion": "latest"}, {"startingTimestamp": 0}))
    grown.steps(10)
    begin = grown.tick()

    def driver() -> FleetQuery:
        limited = LIMITS_KNOWN and passes_start and rng.random() < 0.6
        limits = {"maxRowsPerTrigger": rng.choice((1, 5, 40))} if limited else {}
        return FleetQuery(grown.path, checkpoint, passes_start=passes_start, **start, **limits)

    query = driver()
    if start == {"startingVersion": "latest"}:
        assert query.log()
    for _ in range(40):
        grown.steps(rng.randrange(4))
        if rng.random() < 0.4:
            grown.tick()
        if rng.random() < 0.2:
            query = driver()
        if len(checkpoint.offsets) == checkpoint.done:
            query.log()
        else:
            query.run()
            if rng.random() < 0.7:
                query.commit()
    end = grown.tick()
    driver().drained()
    first = FleetOffset.from_json(json.loads(checkpoint.offsets[0])).timestamp
    since = {"startingTimestamp": 0}.get(next(iter(start), ""), max(begin, first))
    expected = changes(grown, since, end) if start else state(grown, first) + changes(grown, first)
    assert by_member(checkpoint.rows()) == by_member(expected)
    assert len(checkpoint.batches) > 4


@pytest.mark.parametrize("limit", LIMITS)
def test_equal_times_on_two_members_are_in_one_batch(grown, limit):
    query = FleetQuery(grown.path, startingVersion="latest", **limit)
    assert query.log()
    grown.clock.advance(1_000)
    stamps = {grown.save("eu", "k", b"1"), grown.save("us", "k", b"2"), grown.save("us", "l", b"3")}
    assert len(stamps) == 2, "two members, one time"
    grown.tick()
    query.drained()
    batches = [batch for batch in query.checkpoint.batches if any(batch)]
    sizes = [sorted((row[0], row[1]) for task in batch for row in task) for batch in batches]
    first, second = [("eu", "k"), ("us", "k")], [("us", "l")]
    assert sizes == ([first, second] if limit else [first + second])
    assert query.checkpoint.rows() == by_member(query.checkpoint.rows()) or limit


def test_a_batch_ends_at_a_time_that_is_final(grown):
    """What only some members have reached waits for the others."""
    checkpoint = Checkpoint()
    query = FleetQuery(grown.path, checkpoint, startingVersion="latest")
    assert query.drained() == []
    grown.clock.advance(1_000)
    grown.save("eu", "k", b"1")
    assert query.drained() == []
    end = grown.tick()
    rows = query.drained()
    assert [(row[0], row[2]) for row in rows] == [("eu", b"1")]
    offset = FleetOffset.from_json(json.loads(checkpoint.offsets[-1]))
    assert offset.timestamp == end == min(at.mark.timestamp for at in offset.members.values())


@pytest.mark.parametrize("options", [{}, {"startingVersion": "latest"}, {"startingTimestamp": 0}])
def test_the_first_batch_is_empty_and_brings_the_start_into_the_log(grown, options):
    grown.steps(10)
    grown.tick()
    query = FleetQuery(grown.path, **options)
    start = query.initial()
    grown.steps(10)
    grown.tick()
    assert query.initial() == start, "Spark asks twice"
    end = query.latest(start)
    assert json.loads(start)["pinned"] is False
    assert json.loads(end) == json.loads(start) | {"pinned": True}
    assert query.read(start, end) == []


# --- members that come, go, or are away ---


@pytest.mark.parametrize("passes_start", [True, False], ids=["4.2", "4.0"])
def test_members_that_come_and_go(grown, passes_start):
    """One that left is read up to then, one that is new from the last batch on."""
    path = grown.folder / "members.toml"
    members = {"eu": {"url": grown.urls["eu"]}}
    checkpoint = Checkpoint()

    def follow() -> list[tuple]:
        options = {"startingVersion": "latest", "passes_start": passes_start}
        return FleetQuery(fleet_file(path, members), checkpoint, **options).drained()

    grown.steps(10)
    first = grown.tick()
    assert follow() == []
    grown.steps(15)
    left = grown.tick()
    grown.steps(15)
    second = grown.tick()
    members |= {"us": {"url": grown.urls["us"], "joined": left + 1}}
    members |= {"old": {"url": grown.urls["old"]}}
    members["eu"]["left"] = left
    assert follow() == [
        *changes(grown, first, left, ["eu"]),
        *changes(grown, first, second, ["old"]),
        *changes(grown, left, second, ["us"]),
    ]
    if passes_start:  # before 4.2, all members of the checkpoint are asked
        grown.stores["eu"].close()
        (grown.folder / "eu").rename(grown.folder / "away")
    grown.writing["us"].steps(10)
    grown.clock.advance(1)
    grown.writing["old"].tick()
    end = grown.writing["us"].store.resolved()
    grown._recorder.catch_up()
    assert follow() == changes(grown, second, end, ["us"])
    del members["eu"]
    message = refused_by("CHECKPOINT_INVALID", follow)
    assert "'eu'" in message
    assert "left" in message


def test_a_member_that_left_before_the_start_is_not_needed(grown):
    grown.save("us", "k", b"1")
    left = grown.tick()
    grown.stores["us"].close()
    (grown.folder / "us").rename(grown.folder / "away")
    grown.clock.advance(1)
    grown.save("eu", "k", b"1")
    grown.writing["old"].tick()
    grown._recorder.catch_up()
    members = {name: {"url": url} for name, url in grown.urls.items()}
    members["us"]["left"] = left
    path = fleet_file(grown.folder / "members.toml", members)
    for start in ({}, {"startingTimestamp": left + 1}):
        query = FleetQuery(path, **start)
        assert [row[:3] for row in query.drained()] == [("eu", "k", b"1")]


@needs_limits
def test_a_member_that_is_away_holds_the_others_back(grown, monkeypatch):
    """With `resolved` the others go on, and its changes come later, each once."""
    strict, loose = Checkpoint(), Checkpoint()
    members = {name: {"url": url} for name, url in grown.urls.items()}
    path = fleet_file(grown.folder / "members.toml", members)

    def follow(checkpoint: Checkpoint, **options) -> list[tuple]:
        query = FleetQuery(path, checkpoint, startingVersion="latest", **options)
        found = query.drained()
        assert query.reader.reportLatestOffset()["metrics"]["membersBehind"] == behind
        return found

    behind: list[str] = []
    begin = grown.tick()
    assert follow(strict) == follow(loose, resolved="60%") == []
    away = grown.folder / "away"
    (grown.folder / "us").rename(away)
    for value in (b"1", b"2"):  # it goes on, but cannot be reached
        grown.save("us", "k", value)
        grown.clock.advance(1)
    grown.save("eu", "k", b"1")
    between = grown.tick()
    behind = ["us"]
    assert follow(loose, resolved=2) == changes(grown, begin, between, ["eu", "old"])
    offset = json.loads(loose.offsets[-1])
    assert offset["ts"] == between > offset["members"]["us"]["ts"]
    behind = []
    assert follow(strict) == []
    query = FleetQuery(path, strict, startingVersion="latest")
    refused_by("MEMBERS_BEHIND", query.reader.prepareForTriggerAvailableNow)
    away.rename(grown.folder / "us")
    grown.save("us", "k", b"3")
    grown.save("eu", "k", b"2")
    end = grown.tick()
    assert by_member(follow(strict)) == changes(grown, begin, end)
    follow(loose, resolved="60%", maxRowsPerTrigger=1)
    assert by_member(loose.rows()) == changes(grown, begin, end)
    times = [json.loads(offset)["ts"] for offset in loose.offsets]
    assert times == sorted(times)


@needs_limits
@pytest.mark.parametrize("limit", LIMITS)
def test_available_now_ends_where_members_were_final(grown, limit):
    grown.steps(10)
    grown.tick()
    query = FleetQuery(grown.path, startingTimestamp=0, **limit)
    query.reader.prepareForTriggerAvailableNow()
    target = grown.stores["eu"].resolved()
    grown.steps(10)
    grown.tick()
    assert by_member(query.drained()) == changes(grown, 0, target)
    assert by_member(FleetQuery(grown.path, query.checkpoint).drained()) == changes(grown, target)


# --- other stores, other checkpoints ---


def test_a_member_that_is_restored_ends_the_stream(grown):
    checkpoint = Checkpoint()
    with grown.restored("us"):
        grown.steps(20)
        grown.tick()
        FleetQuery(grown.path, checkpoint).drained()
    message = refused_by("STORE_MISMATCH", FleetQuery(grown.path, checkpoint).drained)
    assert "member us" in message
    assert "new checkpoint" in message


def test_a_member_that_is_recreated_between_planning_and_reading(grown):
    query = FleetQuery(grown.path, startingTimestamp=0)
    grown.save("us", "k", b"1")
    grown.tick()
    while query.log():
        start, end = query.checkpoint.offsets[-1], query.latest(query.checkpoint.offsets[-1])
        if query.reader.partitions(json.loads(start), json.loads(end)):
            break
        query.checkpoint.done += 1
    tasks = query.reader.partitions(json.loads(start), json.loads(end))
    grown.recreate("us")
    forget_all()
    (task,) = [task for task in tasks if task.member == "us"]
    assert "member us" in refused_by("STORE_MISMATCH", lambda: list(query.reader.read(task)))


def test_what_compaction_took_is_an_error_or_counted(grown):
    checkpoint = Checkpoint()
    FleetQuery(grown.path, checkpoint, startingVersion="latest").drained()
    for n in range(5):
        grown.save("eu", "k", b"%d" % n)
        grown.save("us", "k", b"%d" % n)
    grown.tick()
    grown.compact("us")
    message = refused_by("VERSION_COMPACTED", FleetQuery(grown.path, checkpoint).drained)
    assert "member us" in message
    query = FleetQuery(grown.path, checkpoint, failOnDataLoss="false")
    rows = query.drained()
    assert [row for row in rows if row[0] == "eu"] == changes(grown, 0, names=["eu"])
    assert len([row for row in rows if row[0] == "us"]) < 5
    if LIMITS_KNOWN:
        assert query.reader.reportLatestOffset()["metrics"]["commitsLost"] > 0


def test_an_offset_names_a_commit_of_each_member():
    """These bytes are in checkpoints."""
    marks = {"eu": At(bytes(range(16)), Mark(3 << 18, 42, 17)), "us": At.after(4 << 18)}
    offset = FleetOffset(4 << 18, marks, snapshot=True, pinned=False)
    assert json.dumps(offset.to_json()) == (
        '{"v": 1, "ts": 1048576, "snapshot": true, "pinned": false, "members": {'
        '"eu": {"store": "000102030405060708090a0b0c0d0e0f", "rev": 42, "ts": 786432, '
        '"commit": 17}, "us": {"store": "", "rev": 0, "ts": 1048576, "commit": 0}}}'
    )
    assert FleetOffset.from_json(offset.to_json()) == offset
    for wrong in (
        {"v": 2},
        {"members": []},
        {"members": {"eu": {}}},
        {"members": {"eu": None}},
        {"ts": -1},
        {"pinned": None},
    ):
        refused_by("CHECKPOINT_INVALID", lambda: FleetOffset.from_json(offset.to_json() | wrong))  # noqa: B023


def test_the_checkpoint_of_one_store_is_not_that_of_a_fleet(grown):
    from stream_queries import Query

    checkpoint = Checkpoint()
    assert Query(grown.urls["eu"], checkpoint).log()
    refused_by("CHECKPOINT_INVALID", FleetQuery(grown.path, checkpoint).drained)
    checkpoint = Checkpoint()
    assert FleetQuery(grown.path, checkpoint).log()
    refused_by("CHECKPOINT_INVALID", Query(grown.urls["eu"], checkpoint).drained)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"endingTimestamp": 0}, "for a batch"),
        ({"behind": "stale"}, "for a batch"),
        ({"startingVersion": 3}, "one member only"),
        ({"startingTimestamp": "2100-01-01T00:00:00Z"}, "in the future"),
        ({"resolved": "some"}, "'some'"),
        ({"resolved": 4}, "from 1 to 3"),
        ({"resolved": "9" * 5_000}, 'give "all"'),
    ],
    ids=str,
)
def test_options_that_a_stream_does_not_have(grown, options, part):
    code = "TIMESTAMP_INVALID" if "future" in part else "INVALID_OPTION"
    assert part in refused_by(code, lambda: FleetQuery(grown.path, **options).initial())


@needs_limits
def test_an_idle_stream_waits_for_a_time_that_is_final(grown, monkeypatch):
    """Spark asks a hundred times a second; each time is a round trip to every member."""
    query, paused = FleetQuery(grown.path, startingVersion="latest"), []
    query.drained()
    at = query.checkpoint.offsets[-1]
    monkeypatch.setattr(micro_batches, "AGAIN_S", 60)
    assert query.latest(at) == at

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 3:
            grown.tick()

    monkeypatch.setattr(fleet_stream, "IDLE_S", 60)
    monkeypatch.setattr(fleet_stream, "pause", pause)
    assert query.latest(at) != at
    assert len(paused) == 3


@pytest.mark.parametrize("limit", LIMITS)
def test_options_of_rows_are_those_of_one_store(grown, limit):
    options = {"keyPrefix": "a/", "preimages": "true", "ignoreDeletes": "true"}
    query = FleetQuery(grown.path, startingTimestamp=0, **options, **limit)
    grown.steps(30)
    end = grown.tick()
    expected = [
        (name, *row)
        for name in NAMES
        for row in changes_of(grown.writing[name].plain, 0, end, "a/", preimages=True)
        if row[2] != "delete"
    ]
    assert by_member(query.drained()) == expected
    assert expected
