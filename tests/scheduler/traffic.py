"""What owners and captures may send in a tick, whatever they received: a fixed number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cdcmeta.scheduler import AddRequest, Envelope, Token
from cdcmeta.scheduler.core.limits import MESSAGES_PER_TABLE_MAX
from cdcmeta.scheduler.protocol.messages import (
    Announce,
    DispatchTable,
    DispatchTableResponse,
    Heartbeat,
    HeartbeatResponse,
    Sync,
)


class Traffic:
    """Looks at all that is sent; raises `AssertionError` for more than may be."""

    def __init__(self, repeat_us: int) -> None:
        self.sent: Counter[str] = Counter()
        """How many messages of each kind were sent."""
        self._repeat_us = repeat_us
        self._requested: dict[tuple[str, str, str], tuple[tuple[Token, bool | None], int]] = {}

    def check(self, envelopes: Sequence[Envelope], now: int) -> None:
        """Take in what one process sends in one tick."""
        rounds: Counter[tuple[str, str]] = Counter()
        tables: Counter[tuple[str, str]] = Counter()
        for header, body in envelopes:
            self.sent[type(body).__name__] += 1
            match body:
                case Announce() | Heartbeat():
                    rounds[header.to, "heartbeat"] += 1
                case Sync() | HeartbeatResponse():
                    rounds[header.to, type(body).__name__] += 1
                case DispatchTable(request):
                    tables[header.to, request.table] += 1
                    is_prepare = request.is_prepare if isinstance(request, AddRequest) else None
                    key = (header.sender, header.to, request.table)
                    what, at = self._requested.get(key, (None, 0))
                    again = what == (request.token, is_prepare)
                    assert not again or now - at >= self._repeat_us, f"repeated at once: {body}"
                    self._requested[key] = (request.token, is_prepare), now
                case DispatchTableResponse(status):
                    tables[header.to, status.table] += 1
        assert all(n == 1 for n in rounds.values()), rounds
        for (to, table), n in tables.items():
            told = [body for header, body in envelopes if header.to == to]
            assert n <= MESSAGES_PER_TABLE_MAX, f"{n} messages about {table} to {to}: {told[:9]}"
