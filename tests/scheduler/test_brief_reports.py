"""Heartbeats cost what changes: brief answers, the rest that they stand for, and what tells it."""

import pytest
from simulated_captures import Durations

from cdcmeta.scheduler import Limits, Progress, TableState, Token
from cdcmeta.scheduler.core.states import Rest
from cdcmeta.scheduler.core.watermarks import Coverage, Digest, assignment_hash
from cdcmeta.scheduler.protocol.messages import Heartbeat, HeartbeatResponse

from .cluster import SimCluster
from .speaking import Owner, beat, from_capture, says, sync

TABLES = {f"t{n}": 1.0 for n in range(30)}
OLD = Token(8, 1)
R = TableState.REPLICATING


def rest_of(checkpoint, *tables, token=OLD):
    digest = Digest()
    for table in tables:
        digest.put(table, token)
    return digest.rest((), Progress(checkpoint, checkpoint))


class Owning(Owner):
    """An owner whose capture a replicates tables; it is asked briefly."""

    def __init__(self, *tables):
        super().__init__({"a": 3}, tables, limits=Limits(heartbeat_every_us=1))
        self.hear(sync(*(says(table, R, OLD) for table in tables)))
        self.hear()

    def hear(self, *bodies):
        self.last = self.tick(*(from_capture("a", body) for body in bodies))
        (self.beat,) = [body for _, body in self.last.messages if isinstance(body, Heartbeat)]
        return self.last.watermarks.checkpoint


def brief(rest, *statuses):
    return HeartbeatResponse(statuses, False, rest)


# --- an owner ---


def test_the_rest_stands_for_tables_that_are_not_listed():
    owner = Owning("t1", "t2", "t3")
    assert not owner.beat.is_full
    assert owner.beat.tables == ()
    assert owner.hear(brief(rest_of(190, "t1", "t2", "t3"))) == 190
    assert not owner.beat.is_full


def test_a_listed_table_counts_for_itself():
    owner = Owning("t1", "t2", "t3")
    behind = says("t2", R, OLD, Progress(150, 150))
    assert owner.hear(brief(rest_of(190, "t1", "t3"), behind)) == 150
    assert owner.hear(brief(rest_of(195, "t1", "t2", "t3"))) == 195


@pytest.mark.parametrize(
    "rest",
    [
        rest_of(190, "t1", "t3"),
        rest_of(190, "t1", "t2", "t3", "t4"),
        rest_of(190, "t1", "t2", "t3", token=Token(8, 2)),
        rest_of(190),
        Rest(Progress(190, 190), 3, 12345),
    ],
    ids=["fewer", "more", "another token", "none", "another digest"],
)
def test_a_rest_of_other_tables_is_not_believed(rest):
    """A report may be lost: the capture lists all its tables next."""
    owner = Owning("t1", "t2", "t3")
    before = owner.last.watermarks.checkpoint
    assert owner.hear(brief(rest)) == before
    assert owner.beat.is_full
    assert {table for table, _ in owner.beat.tables} == {"t1", "t2", "t3"}
    owner.hear(beat(*(says(table, R, OLD) for table in ("t1", "t2", "t3"))))
    assert not owner.beat.is_full


def test_an_older_rest_takes_nothing_back():
    owner = Owning("t1", "t2")
    old = brief(rest_of(140, "t1", "t2"))
    assert owner.hear(brief(rest_of(190, "t1"), says("t2", R, OLD, Progress(150, 150)))) == 150
    assert owner.hear(old) == 150
    assert owner.coordinator.replication.progress_of("t1") == Progress(190, 190)
    assert owner.hear(brief(rest_of(190, "t1"), says("t2", R, OLD, Progress(160, 160)))) == 160


def test_a_covered_table_begins_elsewhere_where_it_was():
    owner = Owning("t1")
    owner.hear(brief(rest_of(190, "t1")))
    assert owner.coordinator.replication.progress_of("t1") == Progress(190, 190)
    owner.alive = {"b": 10}
    owner.tick()
    assert owner.coordinator.replication.sets["t1"].progress.checkpoint == 190


def test_all_tables_are_asked_for_now_and_then():
    owner = Owning("t1")
    limits = owner.coordinator.limits
    beats = []
    for _ in range(3):
        owner.now += limits.full_every_us // 2
        owner.hear(brief(rest_of(190, "t1")))
        beats.append(owner.beat.is_full)
    assert beats == [False, True, False]


# --- a whole cluster ---


def settled(**options):
    cluster = SimCluster(3, TABLES, **options)
    cluster.run(cluster.is_replicating, ticks_max=300)
    return cluster


def test_an_answer_lists_what_has_news():
    cluster = settled()
    sent = []
    cluster.traffic.check = lambda envelopes, now: sent.extend(envelopes)
    cluster.run(lambda: cluster.ticks % 40 == 0, ticks_max=50)
    answers = [body for _, body in sent if isinstance(body, HeartbeatResponse)]
    assert len(answers) > 20
    assert [body.tables for body in answers if body.rest is not None] == [()] * len(answers)
    before = cluster.watermarks.checkpoint
    cluster.run(lambda: cluster.watermarks.checkpoint > before, ticks_max=10)


def test_without_the_digest_something_is_lost(monkeypatch):
    """The simulation notices it: a checkpoint is stored that a table has not reached."""
    monkeypatch.setattr(Coverage, "is_expected", lambda *_: True)
    with pytest.raises(AssertionError):
        all_lossy(40)


def test_with_the_digest_nothing_is_lost():
    all_lossy(6)


def all_lossy(count):
    for seed in range(count):
        lossy(seed)


def lossy(seed):
    """Let tables fail while messages are lost, late and overtaken."""
    cluster = settled(durations=lambda table: Durations(200_000, 200_000, 200_000))
    rng = cluster.rng
    rng.seed(seed)
    network = cluster.transport
    network.loss, network._delay_us = 0.3, lambda rng: rng.randrange(400_000)
    slow = set()
    for node in cluster.nodes.values():
        node.executor._source = lambda table: cluster.now - (3_000_000 if table in slow else 0)
    for _ in range(150):
        cluster.tick()
        if rng.random() < 0.2:
            node = rng.choice(list(cluster.nodes.values()))
            if tables := node.agent.tables():
                node.executor.fail(rng.choice(tables))
        if rng.random() < 0.1:
            slow ^= {rng.choice(list(TABLES))}


def test_the_mark_of_an_assignment_has_63_bits():
    hashes = {assignment_hash(table, Token(9, n)) for table in TABLES for n in range(10)}
    assert len(hashes) == 300
    assert all(0 <= each < 1 << 63 for each in hashes)


def test_a_capture_without_news_is_asked_less_often():
    cluster = settled()
    beats = []
    cluster.traffic.check = lambda envelopes, now: beats.extend(
        body for _, body in envelopes if isinstance(body, Heartbeat)
    )
    for node in cluster.nodes.values():
        node.executor._source = lambda table: 1
    cluster.run(lambda: cluster.ticks % 100 == 0, ticks_max=120)
    beats.clear()
    asked = cluster.ticks
    cluster.run(lambda: cluster.ticks - asked == 100, ticks_max=120)
    rounds = 100 * 50_000 // cluster.limits.heartbeat_every_us
    assert len(beats) <= 3 * (rounds // 5 + 1)
    before = cluster.watermarks.checkpoint
    for node in cluster.nodes.values():
        node.executor._source = lambda table: cluster.now
    cluster.run(lambda: cluster.watermarks.checkpoint > before, ticks_max=20)
