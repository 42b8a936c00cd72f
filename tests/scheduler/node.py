"""An agent with a simulated executor, told what to do by hand."""

from simulated_captures import Durations, SimulatedExecutor

from cdcmeta.scheduler import Agent, KnownOwner, Progress, Token
from cdcmeta.scheduler.protocol.messages import HeartbeatResponse

from .speaking import OWNER, REVISION, asks, commit, prepare, statuses

G1, G2, G3 = Token(9, 1), Token(9, 2), Token(9, 3)
LATER = Progress(150, 150)
SLOW = Durations(prepare_us=10, start_us=20, stop_us=30)


class Node:
    """An agent, its executor, and the data that there is to replicate."""

    def __init__(self, durations=SLOW, executor=SimulatedExecutor):
        self.data = 0
        self.executor = executor(source=lambda table: self.data, durations=lambda table: durations)
        owner = KnownOwner(OWNER, REVISION)
        self.agent = Agent("c1", self.executor, epoch=3, owner=owner, version="7")

    def tick(self, *inbox, us=0):
        """Let time pass, then let the agent read; return what it says."""
        self.executor.now += us
        return self.agent.tick(inbox)

    def told(self, *inbox, us=0):
        """Return what the agent says of tables."""
        return statuses(self.tick(*inbox, us=us))

    def listed(self, *asked):
        """Return the answer to a heartbeat."""
        (body,) = [b for _, b in self.tick(asks(*asked)) if isinstance(b, HeartbeatResponse)]
        return body

    def state(self, table="t"):
        return self.executor.status(table).state.name

    def replicating(self, token=G1):
        """Let it replicate the table."""
        self.tick(prepare("t", token))
        self.tick(us=10)
        told = self.told(commit("t", token, LATER))
        assert [*told, *self.told(us=20)] == [("t", token, "REPLICATING")]
        return self
