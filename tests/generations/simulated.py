"""A world of members and coordinators whose clocks are skewed, who hear late, and who die.

Time stands still but when the world moves it. A member hears of the log when the world lets it
step; in a partition it does not, until its session ends. A coordinator dies before or after any of
its commits.
"""

from __future__ import annotations

import random

import snapkv
from cdcmeta.errors import (
    GenerationUnavailableError,
    InvalidWriteTimeError,
    MemberLostError,
    SwitchAbortedError,
    SwitchPendingError,
)
from cdcmeta.generations import (
    CdcLog,
    GenerationLog,
    Generations,
    Sharding,
)
from cdcmeta.generations import (
    generation_layout as layout,
)
from cdcmeta.generations.generation_layout import read_state, unchanged
from cdcmeta.generations.log_member import LogFollower
from snapkv import CommitTimeoutError, ManualClock, pack

START_MS = 1_700_000_000_000
DELAY_S, LEEWAY_S, PATIENCE_S, TTL_MS = 10, 5, 30, 20_000


class Died(BaseException):
    """A coordinator came to its end."""


class Dying:
    """A space in which one commit ends badly, before it happened or after.

    Without an `error` it is the last thing that its user does.
    """

    def __init__(self, space, commits, *, after, error=None):
        self._space, self._left, self._after = space, commits, after
        self._error, self.used = error, False

    def __getattr__(self, name):
        return getattr(self._space, name)

    def commit(self, *args, **more):
        self._left -= 1
        now = self._left < 0 and not (self._error and self.used)
        self.used |= now
        if now and not self._after:
            raise self._error or Died
        done = self._space.commit(*args, **more)
        if now:
            raise self._error or Died
        return done


class Peer:
    """A member as the world sees it; who tells streams to a `CdcLog`, too."""

    def __init__(self, world, name, skew_ms):
        self.world, self.name, self.skew_ms = world, name, skew_ms
        self.clock = ManualClock(world.clock.now_ms() + skew_ms)
        log = world.log
        self.store = log.store
        self.session = log.store.session(10**6, log._session_prefix + name.encode())
        self.generations = Generations(clock=self.clock, leeway=LEEWAY_S)
        self.following = LogFollower(log.store, log._space, self.session, self.generations)
        self.rows = CdcLog(log.store, self)
        self.cut_off_since = None
        self.lost = False

    @property
    def log(self):
        return self.world.log.space

    def stream_of_commit(self, ts, token):
        return self.stream(ts, token, pack(2_000 * DELAY_S))

    def stream(self, ts, token, ahead=0):
        found = self.generations.stream(ts, token, ahead)
        if self.lost:
            raise MemberLostError(self.session.id)
        return found

    def guards(self):
        guard = unchanged(layout.HEAD, self.following.head_revision)
        return {self.world.log._space.name: [guard]}

    def catch_up(self, timeout):
        pass

    def end(self):
        self.lost = True
        self.following.close()
        self.session.close()


class World:
    """Runs `actions` drawn from a seed; keeps what was written, to be judged at the end."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.clock = ManualClock(START_MS)
        self.store = snapkv.open("memory:", clock=self.clock)
        self.log = GenerationLog(
            self.store,
            propagation_delay=DELAY_S,
            leeway=LEEWAY_S,
            patience=PATIENCE_S,
            random_bytes=self.rng.randbytes,
        )
        self.writes, self.logged = [], []
        self.outcomes = dict.fromkeys(("made", "aborted", "died", "refused", "lost"), 0)
        self.log.make({0: Sharding(2)})
        self.peers = []
        for n in range(3):
            self.join(f"node-{n}")

    def join(self, name):
        skew_ms = self.rng.randint(-1_000 * DELAY_S, 1_000 * DELAY_S)
        self.peers.append(Peer(self, name, skew_ms))

    # --- actions ---

    def act(self):
        actions = (self.pass_time, self.hear, self.write, self.log_row, self.coordinate)
        rare = (self.cut_off, self.restart)
        weights = [10, 25, 10, 10, 15, *([1] * len(rare))]
        self.rng.choices([*actions, *rare], weights)[0]()
        self.end_sessions()

    def pass_time(self):
        self.advance(self.rng.choice([0, 1, 50, 900, 3_000, 9_000]))

    def advance(self, ms):
        for clock in (self.clock, *(peer.clock for peer in self.peers)):
            clock.advance(ms)

    def hear(self):
        peer = self.rng.choice(self.peers)
        if peer.cut_off_since is None:
            if self.rng.random() < 0.05:
                peer.following.begin()  # the stream was lost
            peer.following.step(0)

    def write(self):
        """Ask for the stream of a client's own timestamp."""
        peer, token = self.rng.choice(self.peers), self.rng.randint(-300, 300)
        ts = pack(peer.clock.now_ms() + self.rng.randint(-6_000, 6_000), self.rng.randrange(9))
        try:
            self.writes.append((ts, token, peer.stream(ts, token)))
        except (InvalidWriteTimeError, GenerationUnavailableError):
            self.outcomes["refused"] += 1

    def log_row(self):
        peer = self.rng.choice(self.peers)
        key = b"%d" % self.rng.randrange(50)
        try:
            self.logged.append(peer.rows.write(key, b"v", timeout=0.0))
        except (InvalidWriteTimeError, GenerationUnavailableError, CommitTimeoutError):
            self.outcomes["refused"] += 1

    def coordinate(self):
        """Begin a switch or go on with one; sometimes it is the last that is heard of it."""
        tokens = self.rng.sample(range(-300, 300), self.rng.randint(1, 4))
        ring = {token: Sharding(self.rng.randint(1, 3)) for token in tokens}
        coordinator, space = self.log._coordinator, self.log._space
        if self.rng.random() < 0.5:
            deadly = Dying(space, self.rng.randrange(3), after=self.rng.random() < 0.5)
            coordinator._space = deadly
        before = read_state(space)
        try:
            if self.rng.random() < 0.4 and self.log.pending() is None:
                self.log.make(ring, timeout=0.0)
            else:
                self.log.repair(timeout=0.0)
        except (SwitchAbortedError, SwitchPendingError):
            pass
        except Died:
            self.outcomes["died"] += 1
        finally:
            coordinator._space = space
        after = read_state(space)
        self.outcomes["made"] += after.head != before.head
        self.outcomes["aborted"] += after.aborted != before.aborted

    def cut_off(self):
        peer = self.rng.choice(self.peers)
        cut = peer.cut_off_since is None
        peer.cut_off_since = self.clock.now_ms() if cut else None

    def restart(self):
        peer = self.rng.choice(self.peers)
        self.peers.remove(peer)
        peer.end()
        self.join(peer.name)

    def end_sessions(self):
        """End the sessions of those who were cut off for longer than these last."""
        for peer in list(self.peers):
            cut = peer.cut_off_since
            if cut is not None and self.clock.now_ms() - cut > TTL_MS:
                self.outcomes["lost"] += 1
                self.peers.remove(peer)
                peer.end()
                self.join(peer.name)

    # --- the end ---

    def heal(self):
        """Let everybody hear everything, and no switch be left half-way."""
        for peer in self.peers:
            peer.cut_off_since = None
        while self.log.pending() is not None:
            self.advance(1_000)
            for peer in self.peers:
                peer.following.step(0)
            try:
                self.log.repair(timeout=0.0)
            except SwitchPendingError:
                continue
        for peer in self.peers:
            while peer.following.step(0):
                pass

    def close(self):
        for peer in self.peers:
            peer.end()
        self.store.close()
