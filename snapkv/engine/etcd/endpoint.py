"""One endpoint and its connections: for calls, for watches, and for the thread of Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable

from snapkv.base.concurrency import THREADS, here
from snapkv.base.lifecycle import renew_in_children
from snapkv.engine.etcd.aio_client import AioChannel, AioWatchStream
from snapkv.engine.etcd.grpc_client import WATCH_ANSWER_BYTES_MAX, Channel, WatchStream
from snapkv.engine.etcd.security import Security

AnyChannel = Channel | AioChannel
AnyStream = WatchStream | AioWatchStream

_abandoned: list[AnyChannel | AnyStream] = []
"""Channels that must not be used, closed or garbage-collected (which closes them): the parent's
channels in a forked child, and channels in which an interrupt may have left a gRPC lock taken."""


class Endpoint:
    """One endpoint with its channels: an unread watch cannot block calls, which have their own.

    The main thread has channels of its own. Ctrl-C is raised there, often while gRPC holds a lock
    of the channel, which then stays taken: calls of other threads must not use that channel.

    `proven` says that the last call on this thread's channel was answered.
    """

    def __init__(
        self,
        address: str,
        make: Callable[[], AnyChannel],
        make_watches: Callable[[], AnyChannel] | None = None,
    ) -> None:
        self.address, self._make, self._make_watches = address, make, make_watches or make
        self._calls: dict[bool, AnyChannel] = {}  # by whether they are the main thread's
        self._watches: dict[bool, AnyChannel] = {}
        self._proven: set[bool] = set()

    @property
    def proven(self) -> bool:
        """Whether this thread's channel is known to lead to a server."""
        return _is_main() in self._proven

    @proven.setter
    def proven(self, answered: bool) -> None:
        if answered:
            self._proven.add(_is_main())
        else:
            self._proven.discard(_is_main())

    @classmethod
    def at(cls, address: str, security: Security) -> Endpoint:
        """Return the endpoint that listens at `host:port`."""
        to = Channel.to if here() is THREADS else AioChannel.to
        return cls(
            address,
            lambda: to(address, security),
            lambda: to(address, security, answer_bytes_max=WATCH_ANSWER_BYTES_MAX),
        )

    def calls(self) -> AnyChannel:
        """Return the channel for this thread's calls."""
        return _of_thread(self._calls, self._make)

    def watches(self) -> AnyChannel:
        """Return the channel for this thread's watches."""
        return _of_thread(self._watches, self._make_watches)

    def drop(self) -> None:
        """Let the next call connect anew: this connection may be dead; running calls finish."""
        dropped, self._calls, self._proven = self._calls, {}, set()
        for channel in dropped.values():
            channel.retire()

    def interrupted(self, stream: AnyStream | None = None) -> None:
        """Let this thread connect anew: an interrupt may have left a lock of gRPC taken.

        A `stream` that the thread was reading is abandoned, too.
        """
        mine = _is_main()
        for channels in (self._calls, self._watches):
            channel = channels.get(mine)
            if channel is not None and channel.breaks_on_interrupt:
                _abandoned.append(channels.pop(mine))
                self.proven = False
        if stream is not None and stream.breaks_on_interrupt:
            _abandoned.append(stream)
        elif stream is not None:
            stream.cancel()

    def close(self) -> None:
        """Close all channels."""
        for channel in (*self._calls.values(), *self._watches.values()):
            channel.close()

    def after_fork(self) -> None:
        """Connect anew: the child cannot use the parent's connections."""
        _abandoned.extend((*self._calls.values(), *self._watches.values()))
        self._calls, self._watches, self._proven = {}, {}, set()


class _Main:
    """The id of the main thread; in a forked child that is the thread that forked."""

    def __init__(self) -> None:
        self.ident = threading.main_thread().ident
        renew_in_children(self)

    def after_fork(self) -> None:
        self.ident = threading.main_thread().ident


_main = _Main()


def _is_main() -> bool:
    return threading.get_ident() == _main.ident


def _of_thread(channels: dict[bool, AnyChannel], make: Callable[[], AnyChannel]) -> AnyChannel:
    mine = _is_main()
    if (channel := channels.get(mine)) is None:  # another thread may drop it at any time
        channel = channels[mine] = make()
    return channel
