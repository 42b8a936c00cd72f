"""Failovers: another endpoint answers than before. Each one is logged once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from snapkv.base.lifecycle import renew_in_children

log = logging.getLogger(__name__)

OnFailover = Callable[[str, str, str], None]
"""Takes the endpoint that was left, the one that answers now, and why the last one failed."""


class Failovers:
    """Notices that another endpoint answers; safe for threads.

    A failover is complete when another endpoint answers. With all endpoints down, calls go round
    them without any. For example, `a` answered last; then a, b and c do not answer, and b does:

        event        answering   logged
        left(a)      a           -
        left(b)      a           -
        left(c)      a           -
        answers(b)   b           a -> b, once
        answers(b)   b           -
    """

    def __init__(self, first: str) -> None:
        self.answering = first
        """The endpoint that answered last; the first one before any has."""
        self.on_failover: OnFailover | None = None
        self._why = ""
        self._lock = threading.Lock()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = threading.Lock()

    def left(self, why: object) -> None:
        """Note why calls leave an endpoint."""
        self._why = str(why)

    def answers(self, address: str) -> None:
        """Note that the endpoint in use has answered."""
        with self._lock:
            before, self.answering = self.answering, address
            if before == address:
                return
        log.warning("etcd: %s answers instead of %s: %s", address, before, self._why)
        if self.on_failover is not None:
            self.on_failover(before, address, self._why)
