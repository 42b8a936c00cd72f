"""How many messages captures send over gRPC, in each phase of the life of their tables."""

import time
from collections import Counter
from contextlib import ExitStack

import pytest
from etcd_server import eventually

import snapkv
from cdcmeta.scheduler import Limits
from cdcmeta.scheduler.executors.changefeed_executor import StoreExecutor
from cdcmeta.scheduler.protocol import encoding
from cdcmeta.scheduler.protocol.messages import DispatchTable, DispatchTableResponse
from cdcmeta.scheduler.runtime import Capture, Changefeeds
from cdcmeta.scheduler.transport.grpc_post import GrpcPost

pytestmark = pytest.mark.slow

LABELS = ["c1", "c2", "c3", "c4"]
WAIT_S = 30
LIMITS = Limits(mute_us=2_000_000)
ROUNDS_A_SECOND = 1_000_000 / LIMITS.heartbeat_every_us
FULL_S = LIMITS.full_every_us / 1_000_000
PLACE, MOVE = 2, 3
"""Requests for a table: prepare, start; and between them to stop it at the capture before."""
BYTES_OF_A_HEARTBEAT, BYTES_OF_A_TABLE = 120, 100
HANGS = "t000/"


class CountingPost(GrpcPost):
    """Notes each message that it sends, and sends none while it is mute."""

    def __init__(self, sent):
        super().__init__()
        self._sent, self.mute = sent, False

    def send(self, address, feed, envelope):
        if not self.mute:
            self._sent.append((time.monotonic(), envelope, len(encoding.encode(envelope))))
            super().send(address, feed, envelope)

    def receive(self):
        found = super().receive()
        return [] if self.mute else found


class Phase:
    """What was sent from its beginning to its end."""

    def __init__(self, sent, began_at, ended_at):
        self.seconds = ended_at - began_at
        found = [(body, size) for at, (_, body), size in list(sent) if began_at <= at < ended_at]
        bodies = [body for body, _ in found]
        self.requests = Counter(b.request.table for b in bodies if isinstance(b, DispatchTable))
        answers = [b for b in bodies if isinstance(b, DispatchTableResponse)]
        self.answers = Counter(b.status.table for b in answers)
        self.rounds = len(bodies) - self.requests.total() - self.answers.total()
        self.bytes = sum(size for _, size in found)

    def __str__(self):
        most = max(self.requests.values(), default=0), max(self.answers.values(), default=0)
        return (
            f"{self.seconds:.2f} s: {self.requests.total()} requests, {self.answers.total()} "
            f"answers, at most {most} of a table; {self.rounds / self.seconds:.1f} heartbeats/s, "
            f"{self.bytes / self.seconds:.0f} bytes/s"
        )

    def check(self, requests=0, changes=0, slow=None):
        """Assert the bounds, with so many requests and changes of state for each table at most.

        The owner and each other capture exchange one pair of messages in a round. A request is
        repeated after pauses of 0.1, 0.2, 0.4, 0.8 seconds, then of one second, if what it asks for
        is slow: on a busy machine each may be. Each request is answered, and each change of a state
        is reported.
        """
        rounds = self.seconds * ROUNDS_A_SECOND + 2
        assert self.rounds <= 2 * (len(LABELS) - 1) * rounds, str(self)
        slow = requests if slow is None else slow
        requests_max = requests + 4 * slow + (self.seconds if requests else 0)
        for table, count in self.requests.items():
            assert count <= requests_max, f"{table}: {self}"
        for table, count in self.answers.items():
            assert count <= requests_max + changes, f"{table}: {self}"


class Cluster:
    """Captures in threads, with posts that count."""

    def __init__(self, stack, count):
        self.store = stack.enter_context(snapkv.open("memory:"))
        self.tables = [f"t{n:03}/" for n in range(count)]
        self.feeds, self.sent, self.written = Changefeeds(self.store), [], Counter()
        self.posts = {label: CountingPost(self.sent) for label in LABELS}
        self.captures = {label: self._started(label) for label in LABELS}
        for capture in self.captures.values():
            stack.callback(capture.stop, drain=False)
        self.until(lambda: len(self.feeds.captures()) == len(LABELS), "all captures")
        self.until(self.leader, "an owner")

    def _started(self, label):
        options = {"store_url": "memory:here", "ttl": 5, "limits": LIMITS, "tick_s": 0.02}
        functions = {"write": self._write}
        capture = Capture(
            self.store, self.posts[label], label=label, functions=functions, **options
        )
        capture.start()
        return capture

    def _write(self, table, token, commits, checkpoint):
        self.written[table] += len(commits)

    def until(self, holds, what):
        eventually(holds, what, wait_s=WAIT_S)

    def create(self):
        start = self.store.resolved()
        self.feeds.create("copy", "memory:here", "call:write", self.tables, start=start)

    def placed(self):
        alive = self.feeds.captures()
        found = self.feeds.places("copy")
        return {p.table: alive[p.capture].label for p in found if p.capture in alive}

    def until_on(self, *labels):
        """Wait until all tables are on these captures."""

        def shared():
            found = self.placed()
            return len(found) == len(self.tables) and set(found.values()) == set(labels)

        self.until(shared, f"all tables on {labels}")

    def until_all_written(self):
        """Wait until each table has what is written now."""
        ts = self.store.multi_save({f"{table}k": b"1" for table in self.tables})
        self.until(lambda: self.feeds.checkpoint("copy").checkpoint >= ts, "all tables")

    def leader(self):
        lives = {label: capture.life for label, capture in self.captures.items()}
        return next((label for label, life in lives.items() if life and life.is_leading), None)

    def phase(self, what, act):
        """Return what was sent while `act` ran."""
        began_at = time.monotonic()
        act()
        found = Phase(self.sent, began_at, time.monotonic())
        print(what, found)
        return found

    def steady(self, what, seconds=2.0, load=False):
        def act():
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if load:
                    self.store.save(f"{self.tables[0]}k", b"%d" % time.monotonic_ns())
                time.sleep(0.01)

        return self.phase(what, act)


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def cluster(stack, request):
    cluster = Cluster(stack, getattr(request, "param", 60))
    placing = cluster.phase("placing", lambda: cluster.create() or cluster.until_on(*LABELS))
    placing.check(PLACE, changes=3)
    cluster.until_all_written()
    return cluster


@pytest.mark.long_after(1)
@pytest.mark.parametrize("cluster", [30, 120], indirect=True)
def test_a_steady_state_costs_heartbeats_however_many_tables_there_are(cluster):
    for load in (False, True):
        steady = cluster.steady("load" if load else "idle", load=load)
        steady.check()
        assert steady.rounds > 0
        lists = BYTES_OF_A_TABLE * len(cluster.tables) * (1 + steady.seconds / FULL_S)
        assert steady.bytes <= BYTES_OF_A_HEARTBEAT * steady.rounds + lists, str(steady)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("what", ["preparation", "start"])
def test_what_hangs_costs_a_message_a_second_at_most(cluster, monkeypatch, what):
    finished = StoreExecutor.is_add_finished

    def hangs(executor, table, *, is_prepare):
        if table == HANGS and is_prepare == (what == "preparation"):
            return False
        return finished(executor, table, is_prepare=is_prepare)

    owner = cluster.leader()
    holder = cluster.placed()[HANGS]
    to = next(label for label in LABELS if label not in (owner, holder))
    with monkeypatch.context() as patched:
        patched.setattr(StoreExecutor, "is_add_finished", hangs)
        cluster.feeds.move("copy", HANGS, to)
        hanging = cluster.steady(f"a {what} hangs", 4.0)
    hanging.check(1 if what == "preparation" else MOVE, changes=4, slow=1)
    assert set(hanging.requests) == {HANGS}
    moving = cluster.phase(
        "it goes on", lambda: cluster.until(lambda: cluster.placed().get(HANGS) == to, "the move")
    )
    moving.check(MOVE, changes=5)
    cluster.until_all_written()


@pytest.mark.long
def test_moves_and_losses_cost_a_few_messages_for_each_table(cluster):
    owner = cluster.leader()
    drained, lost, last = (label for label in LABELS if label != owner)
    drain = cluster.phase(
        "drain", lambda: cluster.feeds.drain(drained) or cluster.until_on(owner, lost, last)
    )
    drain.check(MOVE, changes=5)
    assert drain.requests

    def lose():
        cluster.posts[lost].mute = True
        cluster.until_on(owner, last)

    cluster.phase("a capture is mute", lose).check(PLACE, changes=3)
    cluster.until_all_written()
    cluster.steady("steady again").check()

    def depose():
        cluster.captures[owner].stop(drain=False)
        cluster.until(lambda: cluster.leader() not in (None, owner), "another owner")
        cluster.until(
            lambda: (
                owner not in cluster.placed().values()
                and len(cluster.placed()) == len(cluster.tables)
            ),
            "its tables to move",
        )

    cluster.phase("the owner is lost", depose).check(PLACE, changes=3)
    cluster.until_all_written()
