"""The channel of an endpoint for stores of an asyncio loop, with the methods of `Channel`.

Beside `grpc_client` the only module that imports grpc.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, cast

import grpc
from grpc import aio

from snapkv.base.concurrency import here
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.grpc_client import (
    TXN,
    WATCH_PATH,
    A,
    CallFailed,
    ChannelRetired,
    Metadata,
    Method,
    Q,
    answered,
    channel_options,
    credentials_of,
    failure_of,
    serializers,
    target_of,
)
from snapkv.engine.etcd.security import Security

if TYPE_CHECKING:
    from snapkv.base.greenlet_runtime import GreenletRuntime


class AioChannel:
    """A connection of one asyncio loop to one endpoint, made when it is first used."""

    breaks_on_interrupt = False

    def __init__(self, channel: aio.Channel) -> None:
        self._channel, self._loop = channel, cast("GreenletRuntime", here())
        self._unary: dict[str, Any] = {}
        self._inside = 0  # calls on their way
        self._retired = self._closed = False

    @classmethod
    def to(cls, endpoint: str, security: Security, *, answer_bytes_max: int = -1) -> AioChannel:
        """Return a channel to `host:port`; see `Channel.to`."""
        options, target = channel_options(answer_bytes_max), target_of(endpoint)
        if not security.tls:
            return cls(aio.insecure_channel(target, options=options))
        return cls(aio.secure_channel(target, credentials_of(security), options=options))

    def call(self, method: Method[Q, A], request: Q, timeout: float, metadata: Metadata) -> A:
        """Send one request, once; `CallFailed` after `timeout` seconds at the latest.

        If the task is cancelled, a transaction that was sent goes on: its outcome is looked up.
        Raises `ChannelRetired` when it was not sent for that.
        """
        if self._retired:
            raise ChannelRetired("the channel was replaced")
        send = self._unary.get(method.path)
        if send is None:
            made = self._channel.unary_unary(method.path, **serializers(method.answer))
            send = self._unary[method.path] = made
        self._inside += 1
        try:
            call = send(request, timeout=timeout, metadata=metadata)
            try:
                self._loop.wait_for(end_of(call))  # a task that is cancelled is interrupted here
            except BaseException:
                if method is not TXN:
                    call.cancel()
                raise
            return cast(A, self._answer_of(call))
        except aio.AioRpcError as e:
            raise failure_of(e) from e
        except aio.UsageError as e:
            raise CallFailed("CANCELLED", str(e)) from e
        finally:
            self._inside -= 1
            self._close_if_over()

    def _answer_of(self, call: Any) -> Any:
        """Return the answer of a call that has ended; nothing waits."""
        try:
            return answered(self._loop.wait_for(call))
        except asyncio.CancelledError:  # gRPC raises it where the channel was closed
            raise CallFailed("CANCELLED", "the channel was closed") from None

    def _close_if_over(self) -> None:
        if self._retired and not self._inside and not self._closed:
            self._loop.start(self.close, "snapkv close")

    def retire(self) -> None:
        """Take no more calls, and close once the running calls have ended."""
        self._retired = True
        self._close_if_over()

    def watch(
        self, first: pb.WatchRequest, metadata: Metadata, timeout: float | None
    ) -> AioWatchStream:
        """Open a stream of watch answers, for `timeout` seconds (None: until it is cancelled)."""
        method = self._channel.stream_stream(WATCH_PATH, **serializers(pb.WatchResponse))
        try:
            return AioWatchStream(method, first, metadata, timeout)
        except aio.UsageError as e:
            raise CallFailed("CANCELLED", str(e)) from e

    def close(self) -> None:
        """End the connection and all its calls."""
        self._retired = self._closed = True
        self._loop.wait_for(self._channel.close())


def end_of(call: aio.Call) -> asyncio.Future[None]:
    """Return a future of the end of a call; cancelling it does not cancel the call."""
    end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set_end(_: aio.Call) -> None:
        if not end.done():
            end.set_result(None)

    call.add_done_callback(set_end)
    return end


def is_cancelled() -> bool:
    """Return whether the running task was asked to end; gRPC raises the same for its own ends."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class AioWatchStream:
    """One open watch call: answers by iterating, questions by `ask_progress`."""

    breaks_on_interrupt = False

    def __init__(
        self, method: Any, first: pb.WatchRequest, metadata: Metadata, timeout: float | None
    ) -> None:
        self._loop = cast("GreenletRuntime", here())
        self._requests: asyncio.Queue[pb.WatchRequest | None] = asyncio.Queue()
        self._requests.put_nowait(first)
        self._call = method(self._asked(), metadata=metadata, timeout=timeout)

    async def _asked(self) -> AsyncIterator[pb.WatchRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    def __iter__(self) -> Iterator[pb.WatchResponse]:
        """Yield answers until the stream ends; raises `CallFailed` when it broke."""
        try:
            while (answer := self._loop.wait_for(self._call.read())) is not aio.EOF:
                yield answered(answer)
        except grpc.RpcError as e:
            raise failure_of(e) from e
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise CallFailed("CANCELLED", "the stream was ended here") from None

    def ask_progress(self) -> None:
        """Request the progress of the stream; the answer is one of the iterated answers."""
        self._requests.put_nowait(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))

    def cancel_soon(self) -> None:
        """End the stream soon. Takes no lock: for finalizers."""
        self._loop.soon(self.cancel)

    def cancel(self) -> None:
        """End the stream, also for a call that iterates; may be repeated."""
        self._requests.put_nowait(None)
        self._call.cancel()
