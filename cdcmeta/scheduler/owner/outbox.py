"""The requests that an owner sends in a tick: few, however many reports ask for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.core.tasks import AddRequest, Send


class _Sent(NamedTuple):
    """A request that was sent and may have been lost."""

    token: Token
    kind: str
    at: int
    pause_us: int
    """How long it is not repeated."""


class Outbox:
    """Collects the requests of one tick, at most one for each table and capture.

    Of several requests, the last with the newest token is sent. A request is repeated only if it
    is still due after a pause, which doubles each time, from `Limits.heartbeat_every_us` to
    `Limits.repeat_max_us`. So the number of requests does not depend on the number of reports that
    ask for them. A request that is left out counts as lost: the capture's next report causes it
    again.
    """

    def __init__(self, limits: Limits) -> None:
        self._first_us = limits.heartbeat_every_us
        self._max_us = max(limits.repeat_max_us, self._first_us)
        self._waiting: dict[tuple[str, str], Send] = {}
        self._sent: OrderedDict[tuple[str, str], _Sent] = OrderedDict()
        """In the order of sending; the oldest are forgotten after twice the longest pause."""

    def put(self, sends: Iterable[Send]) -> None:
        """Add requests. O(sends)."""
        for send in sends:
            key = send.capture, send.request.table
            before = self._waiting.get(key)
            if before is None or send.request.token >= before.request.token:
                self._waiting[key] = send

    def take(self, now: int) -> list[Send]:
        """Return the requests to send now; `now` in microseconds. O(requests)."""
        sent, waiting, self._waiting = self._sent, self._waiting, {}
        while sent and next(iter(sent.values())).at + 2 * self._max_us < now:
            sent.popitem(last=False)
        return [send for key, send in waiting.items() if self._is_due(key, send, now)]

    def _is_due(self, key: tuple[str, str], send: Send, now: int) -> bool:
        token, kind = send.request.token, _kind(send)
        before, pause_us = self._sent.get(key), self._first_us
        if before is not None and (before.token, before.kind) == (token, kind):
            if now < before.at + before.pause_us:
                return False
            pause_us = min(2 * before.pause_us, self._max_us)
        self._sent[key] = _Sent(token, kind, now, pause_us)
        self._sent.move_to_end(key)
        return True


def _kind(send: Send) -> str:
    request = send.request
    if isinstance(request, AddRequest):
        return "prepare" if request.is_prepare else "commit"
    return "remove"
