"""A fleet under load, step by step: what each test waits for, and what must hold at its end."""

import time
from functools import partial

from etcd_server import eventually
from sampling import SOAK

import snapkv
from cdcmeta.scheduler.runtime import Changefeeds
from snapkv.errors import CommitTimeoutError, CommitUnknownError, EngineUnavailableError

from . import ledger
from .fleet import WAIT_S, Load, check_checkpoints, leader, until_same

FEED = "all"
OUTAGES = CommitTimeoutError, CommitUnknownError, EngineUnavailableError
"""What a client gets while its store has no leader."""


def tables(number):
    return [f"t{n:02}/" for n in range(number)]


class PatientLoad(Load):
    """A load that goes on when its store is away; counts its commits, and those that failed."""

    done = failed = 0

    def step(self):
        try:
            found = super().step()
        except OUTAGES:
            self.failed += 1
            return None
        self.done += 1
        return found

    def _run(self):
        try:
            while not self._stop.wait(self._pause_s):
                if (found := self.step()) is not None:
                    self.commits[found[0]].append(found[1])
        except Exception as e:
            self.error = e


class Steps:
    """A fleet that shares the tables of one changefeed."""

    def __init__(self, fleet, store, names):
        self.fleet, self.store, self.tables = fleet, store, names
        self.feeds = Changefeeds(store)

    # --- what an operator sees ---

    def registered(self):
        return {said.label for said in self.feeds.captures().values()}

    def placed(self):
        """By table, the label of the capture that is on record and lives."""
        alive = self.feeds.captures()
        found = self.feeds.places(FEED)
        return {p.table: alive[p.capture].label for p in found if p.capture in alive}

    def leader(self):
        return leader(self.store)

    # --- waits: for a store that is away as well, and captures have a supervisor ---

    def until(self, holds, what, wait_s=WAIT_S, pause_s=0.02):
        def patiently():
            try:
                found = holds()
            except OUTAGES:
                found = None
            if not found:
                self.fleet.supervise()
                time.sleep(pause_s)  # it costs calls of the store that the captures need
            return found

        try:
            return eventually(patiently, what, wait_s=wait_s)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.fleet.log()[-8_000:]}") from e

    def until_registered(self, *labels):
        self.until(lambda: self.registered() == set(labels), f"the captures {labels}")

    def until_shared(self, *labels):
        """Wait until all tables are on these captures, each of which has some.

        A capture that registers again, as on a busy machine, gets tables by balance.
        """

        def shared():
            found = self.placed()
            if len(found) < len(self.tables) or not set(found.values()) <= set(labels):
                return False
            if set(found.values()) == set(labels):
                return True
            self.feeds.rebalance(FEED)
            return False

        self.until(shared, f"all tables on {labels}", pause_s=0.2)

    def until_written(self, load, more=100 if SOAK else 40):
        """Wait until the load goes on, and all that it wrote until then is in the sink."""
        goal = load.done + more
        self.until(lambda: load.done >= goal, "the load to go on")
        wanted = {table: list(commits) for table, commits in load.commits.items()}
        self.until(lambda: not self.missing(wanted), "the sink to follow")

    # --- steps ---

    def begin(self, *labels):
        """Create the changefeed when its captures are registered, and wait for all tables."""
        self.until_registered(*labels)
        self.store.multi_save({f"{table}first": b"1" for table in self.tables})
        start = self.store.resolved()
        self.feeds.create(
            FEED, self.fleet.url, "call:ledger", self.tables, start=start, with_state=True
        )
        self.until_shared(*labels)

    def missing(self, wanted):
        """The commits that the sink does not have, by table."""
        found = {t: ledger.missing(self.fleet.ledger, t, wanted[t]) for t in wanted}
        return {table: commits for table, commits in found.items() if commits}

    def check_writers(self):
        """Assert that no table was written by two assignments at once."""
        ledger.check(self.fleet.ledger, self.tables)

    def check_end(self, load):
        """Assert what must hold once the load has ended, whatever has failed."""
        until_same(self.fleet, self.store, self.tables, "the sink to have what the source has")
        self.check_writers()
        assert load.done
        assert not self.missing(load.commits)
        newest = max(ts for commits in load.commits.values() for ts in commits)
        reached = partial(self.feeds.checkpoint, FEED)
        self.until(lambda: reached().checkpoint >= newest, "the checkpoint of all that was written")
        assert len(check_checkpoints(self.store, FEED)) > 1


def opened(stack, url, **options):
    return stack.enter_context(snapkv.open(url, **options))
