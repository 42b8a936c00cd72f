"""The world of the simulation, where the engine fails at any request of anybody, too."""

import contextlib
import random

import pytest
from sampling import first_of

from cdcmeta.errors import SwitchAbortedError, SwitchPendingError
from cdcmeta.generations import Sharding
from snapkv import SnapKVError
from snapkv.errors import (
    CommitTimeoutError,
    CommitUnknownError,
    CompactedError,
    EngineUnavailableError,
)

from .simulated import World
from .test_simulation import STEPS, assert_right_streams, reader

pytestmark = pytest.mark.slow

REQUESTS = ("commit", "at", "entries_of", "watch")


class Flaky:
    """A space whose requests fail now and then, before they happened or after."""

    def __init__(self, space, world):
        self._space, self._world = space, world

    def __getattr__(self, name):
        found = getattr(self._space, name)
        if name not in REQUESTS:
            return found

        def request(*args, **more):
            luck = self._world.luck.random() if self._world.flaky else 1.0
            if luck < 0.1:
                self._world.failures += 1
                late = CommitTimeoutError("late") if name == "commit" else CompactedError(1, 2)
                raise self._world.luck.choice([EngineUnavailableError("away"), late])
            done = found(*args, **more)
            if name == "commit" and luck < 0.2:
                self._world.failures += 1
                raise CommitUnknownError(1, bytes(16), may_still_land=True)
            return done

        return request


class FlakyWorld(World):
    """A world whose members and coordinators ask a flaky engine."""

    def __init__(self, seed):
        self.luck, self.flaky, self.failures = random.Random(-seed), False, 0
        super().__init__(seed)
        coordinator = self.log._coordinator
        coordinator._space = Flaky(coordinator._space, self)
        self.flaky = True

    def join(self, name):
        self.flaky, flaky = False, self.flaky
        super().join(name)
        following = self.peers[-1].following
        following._space, self.flaky = Flaky(following._space, self), flaky

    def hear(self):
        with contextlib.suppress(SnapKVError):  # a member's thread goes on with the next step
            super().hear()

    def coordinate(self):
        tokens = self.rng.sample(range(-300, 300), self.rng.randint(1, 4))
        ring = {token: Sharding(self.rng.randint(1, 3)) for token in tokens}
        log = self.log
        way = self.rng.choice(
            [log.make, log.regenerate_if_needed, lambda _, **more: log.repair(**more)]
        )
        with contextlib.suppress(SwitchAbortedError, SwitchPendingError, SnapKVError):
            way(ring, timeout=0.0)

    def heal(self):
        self.flaky = False
        super().heal()


@pytest.mark.long_after(4)
@pytest.mark.parametrize("seed", first_of(range(30), one_in=2))
def test_no_write_is_logged_under_a_stream_of_the_wrong_generation(seed):
    world = FlakyWorld(seed)
    try:
        for _ in range(STEPS):
            world.act()
        world.heal()
        assert_right_streams(world)
        rows = [row for window in reader(world) for row in window.rows]
        assert rows == sorted(world.logged)
        assert world.failures > 10
    finally:
        world.close()
