"""One connection of a client: how long it may take to send a head, and to read an answer."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from cdcmeta.http.limits import Limits


class Connection(H11Protocol):
    """A connection that must send each head in time, and go on reading what it asked for."""

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the first head."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Expect the rest of a head within its time, from its first byte on."""
        if self._deadline is None and not self._answering:
            self._expect_head()
        super().data_received(data)
        if self._answering:
            self._forget_deadline()

    def on_response_complete(self) -> None:
        """Expect the next head: what has come of it may be a part."""
        super().on_response_complete()
        if self._answering:
            self._forget_deadline()
        if self.transport.is_closing():
            self._expect_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self._forget_deadline()
        self._forget_unread()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close it; what was not read yet may still be."""
        super().timeout_keep_alive_handler()
        self._expect_reading()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self._limits.head_s, self._close)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self.transport.close()
        self._expect_reading()

    # --- answers that nobody reads ---

    def pause_writing(self) -> None:
        """Expect that the client takes some of what it was sent."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Expect nothing: it takes what it is sent."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._forget_unread()

    def _expect_reading(self) -> None:
        if self._unread is None:
            self._look_again(self._unsent())

    def _look_again(self, left: int) -> None:
        self._unread = self.loop.call_later(self._limits.unread_s, self._check_reading, left)

    def _check_reading(self, left_before: int) -> None:
        """Hang up unless less is left than before: while that is waited for, nothing is added."""
        left = self._unsent()
        if left < left_before:
            self._look_again(left)
        else:
            self.transport.abort()

    def _unsent(self) -> int:
        """Return how many bytes the other side has not taken yet, of ours and of the kernel's."""
        found = bytearray(4)
        try:
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, found)
        except OSError:
            return 0  # it is closed
        (kernels,) = struct.unpack("i", found)
        return int(kernels) + self.transport.get_write_buffer_size()

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
