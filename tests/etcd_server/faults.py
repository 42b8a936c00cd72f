"""What can happen to a request that contains certain bytes.

A fault is armed once, meets the first request with its `needle`, and is then spent; to hurt
several requests arm several. Its events are `triggered` (the whole request has come) and
`answered` (the server's answer reached the proxy). Methods in the first group are for tests, the
others run in the proxy's loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from etcd_server.frames import NEEDLE_BYTES_MAX, Piece, window_update
from etcd_server.processes import WAIT_S, eventually

if TYPE_CHECKING:
    from etcd_server.links import Link
    from etcd_server.proxy import EtcdProxy

REPLAY_WINDOW_BYTES = 1 << 24


class Fault:
    """Something that happens to the first request with `needle`; this one only looks on."""

    def __init__(self, proxy: EtcdProxy, needle: bytes) -> None:
        assert 0 < len(needle) <= NEEDLE_BYTES_MAX, f"a needle of {len(needle)} bytes"
        self.proxy, self.needle = proxy, needle
        self.triggered, self.answered = threading.Event(), threading.Event()
        self.link: Link | None = None
        self.stream = 0

    def wait_triggered(self, wait_s: float = WAIT_S) -> None:
        """Wait until the request has come; AssertionError when it did not."""
        assert self.triggered.wait(wait_s), f"{self!r} met no request in {wait_s:.0f} s"

    def wait_answered(self, wait_s: float = WAIT_S) -> None:
        """Wait until the server has answered the request."""
        assert self.answered.wait(wait_s), f"{self!r} saw no answer in {wait_s:.0f} s"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.needle[:40]!r})"

    # --- in the loop ---

    def on_match(self, link: Link) -> None:
        """See the piece that completes the needle, before it is passed on."""

    def on_whole(self, link: Link) -> None:
        """See that the whole request was passed on, or kept."""
        self.triggered.set()

    def on_answer(self, link: Link) -> None:
        """See the first of the answer, before it is passed on."""
        self.answered.set()


class CutBefore(Fault):
    """The connection breaks before the request: the server never gets it whole."""

    def on_match(self, link: Link) -> None:
        link.close()
        self.triggered.set()


class CutAfter(Fault):
    """The server gets the request, the client no answer: the connection breaks.

    It breaks once `when()` is true, or without one when the server has answered.
    """

    def __init__(self, proxy: EtcdProxy, needle: bytes, when: Callable[[], object] | None) -> None:
        super().__init__(proxy, needle)
        self._when = when
        self._error: BaseException | None = None
        self._cut = threading.Event()

    def wait_cut(self, wait_s: float = WAIT_S) -> None:
        """Wait until the client's connection is gone; raises what `when` raised."""
        assert self._cut.wait(wait_s), f"{self!r} did not cut in {wait_s:.0f} s"
        if self._error is not None:
            raise self._error

    def on_whole(self, link: Link) -> None:
        link.swallow = True
        super().on_whole(link)
        if self._when is not None:
            threading.Thread(target=self._wait, args=(link, self._when), daemon=True).start()

    def on_answer(self, link: Link) -> None:
        super().on_answer(link)
        if self._when is None:
            self._break(link)

    def _wait(self, link: Link, when: Callable[[], object]) -> None:
        try:
            eventually(when, "the condition of cut_after")
        except BaseException as e:
            self._error = e
        self.proxy.soon(self._break, link)

    def _break(self, link: Link) -> None:
        link.close()
        self._cut.set()


class DelayAnswer(Fault):
    """The server gets the request; whatever it sends on that connection waits for `release`.

    Or for `seconds` to pass.
    """

    def __init__(self, proxy: EtcdProxy, needle: bytes, seconds: float | None) -> None:
        super().__init__(proxy, needle)
        self._seconds = seconds

    def release(self) -> None:
        """Deliver what was held back, to a client that is still there."""
        self.wait_triggered()
        self.proxy.run(self._release)

    def on_whole(self, link: Link) -> None:
        link.hold_answers()
        if self._seconds is not None:
            self.proxy.later(self._seconds, self._release)
        super().on_whole(link)

    def _release(self) -> None:
        if self.link is not None:
            self.link.release_answers()


class Hold(Fault):
    """The request waits in the proxy, also when the client gives up, and arrives on `release`.

    Everything that the client sends on the connection from there on is lost, so its giving up
    (RST_STREAM) too. The request's headers wait as well: the server counts the client's deadline
    from when they come. For requests below `WAITING_BYTES_MAX`.
    """

    def release(self) -> None:
        """Deliver the request, cut off the client if it is still there, wait for the answer."""
        self.wait_triggered()
        self.proxy.run(self._release)
        self.wait_answered()

    def on_match(self, link: Link) -> None:
        link.hold_requests(self.stream)

    def on_whole(self, link: Link) -> None:
        link.lose_requests()
        super().on_whole(link)

    def on_answer(self, link: Link) -> None:
        super().on_answer(link)
        link.close()

    def _release(self) -> None:
        if self.link is not None:
            self.link.release_requests()


class Record(Fault):
    """The connection is remembered up to the end of the request; `replay` sends it once more.

    Earlier requests of the connection come again as well.
    """

    def __init__(self, proxy: EtcdProxy, needle: bytes) -> None:
        super().__init__(proxy, needle)
        self._bytes: bytes | None = None

    def replay(self) -> None:
        """Send the same bytes on a new connection; return when the server has answered them."""
        self.wait_answered()
        assert self._bytes is not None, "the connection was too long to be remembered"
        again = Fault(self.proxy, self.needle)
        again.stream = self.stream
        # the client that granted room for the answers is not there: we do
        self.proxy.replay(self._bytes + window_update(REPLAY_WINDOW_BYTES), again)
        again.wait_answered()

    def on_whole(self, link: Link) -> None:
        self._bytes = bytes(link.recorded) if link.recorded is not None else None
        super().on_whole(link)


def meets(fault: Fault, piece: Piece) -> bool:
    """Return whether a server's piece answers the request of a fault."""
    return piece.answers and piece.stream == fault.stream
