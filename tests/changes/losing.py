"""An engine that loses requests or answers, as the network to a server does."""

from store.wrapping import Wrapped

from snapkv.engine.contract import OutcomeUnknown
from snapkv.errors import EngineUnavailableError

SETTLED = ("fine", "before", "after")
"""Fates that the store settles by itself: the caller notices nothing."""
CUT = ("before, then cut", "after, then cut")
"""Fates after which the caller learns of no outcome until `cut` is False again."""


class Losing(Wrapped):
    """Loses requests before or answers after the server had them; or everything, while `cut`."""

    plan: list[str]
    cut = False

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.plan, self.sent = [], 0

    def transact(self, prepare, peek, *, timeout):
        self.sent += 1
        fate = self.plan.pop(0) if self.plan else "fine"
        if self.cut:
            raise OutcomeUnknown("cut off", retry=True)
        if fate.startswith("before"):
            prepare(None)
            self.cut = fate in CUT
            raise OutcomeUnknown("lost", retry=True)
        answer = self.inner.transact(prepare, peek, timeout=timeout)
        if fate.startswith("after"):
            self.cut = fate in CUT
            raise OutcomeUnknown("answer lost", retry=True)
        return answer

    def read(self, ranges, **options):
        if self.cut:
            raise EngineUnavailableError("cut off")
        return self.inner.read(ranges, **options)
