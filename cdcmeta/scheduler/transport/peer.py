"""The messages that wait for one address, and the call under way."""

from __future__ import annotations

import ctypes
import logging
import threading
import traceback
from collections.abc import Callable, Hashable
from typing import Any

from cdcmeta.scheduler.transport.backlog import Waiting
from snapkv.base.waiting import monotonic

log = logging.getLogger("cdcmeta.scheduler")


class Peer:
    """Sends to one address over a channel of gRPC, one call at a time."""

    def __init__(
        self,
        address: str,
        channel: Any,
        call: Callable[[list[tuple[str, bytes]]], Any],
        waiting: Waiting[tuple[str, bytes]],
        call_bytes: int,
    ) -> None:
        """`call` begins a call with messages, and returns its future."""
        self._address, self.channel, self._call = address, channel, call
        self._waiting, self._call_bytes = waiting, call_bytes
        self._lock = threading.Lock()
        self._closed = self._fails = self._pauses = False
        self._is_cut_short = False  # an interrupt came inside a call, which may never end
        self.is_calling = False
        """Whether a call is under way."""
        self.used_at = monotonic()

    def put(self, beat: Hashable, feed: str, raw: bytes) -> None:
        """Send a message, or let it wait; `beat` identifies a heartbeat that replaces another."""
        self.used_at = monotonic()
        with self._lock:
            if beat is None:
                self._waiting.put_request((feed, raw), len(raw))
            else:
                self._waiting.put_heartbeat((feed, raw), len(raw), beat)
            batch = self._next()
        self._send(batch)

    def rank(self) -> tuple[bool, float]:
        """Return what is smaller the sooner it is closed."""
        return not self._fails, self.used_at

    def pause(self) -> None:
        """Begin no call until `resume`; messages wait."""
        with self._lock:
            self._pauses = True

    def resume(self) -> None:
        """Begin calls again."""
        with self._lock:
            self._pauses = False
            batch = self._next()
        self._send(batch)

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        if self._is_cut_short:  # closing would wait for that call, and so would a finalizer
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.channel))
        else:
            self.channel.close()

    def _next(self) -> list[tuple[str, bytes]]:
        """Return the messages of the next call; none if one is under way or nothing waits."""
        if self.is_calling or self._closed or self._pauses or not self._waiting:
            return []
        self.is_calling = True
        return self._waiting.take(self._call_bytes)

    def _send(self, batch: list[tuple[str, bytes]]) -> None:
        if not batch:
            return
        try:
            self._call(batch).add_done_callback(self._done)
        except (ValueError, RuntimeError):  # the channel was closed, or the process ends
            with self._lock:
                self.is_calling = False
        except (KeyboardInterrupt, SystemExit) as e:
            self._is_cut_short = True
            # gRPC takes a lock of all calls in a generator, which an interrupt's traceback would
            # keep suspended: so this process could send nothing more, and not close its stores
            traceback.clear_frames(e.__traceback__)
            raise

    def _done(self, call: Any) -> None:
        if not self._closed:
            self._note(call)
        with self._lock:
            self.is_calling = False
            batch = self._next()
        self._send(batch)

    def _note(self, call: Any) -> None:
        """Log when calls begin to fail, and when they no longer do."""
        code = call.code().name
        fails = code != "OK"
        if fails and not self._fails:
            why = " ".join(f"{code}: {call.details()}".split())
            log.warning("messages to %s are lost: %.300s", self._address, why)
        elif self._fails and not fails:
            log.warning("messages to %s arrive again", self._address)
        self._fails = fails
