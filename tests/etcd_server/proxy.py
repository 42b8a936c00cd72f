"""A TCP proxy in front of one etcd node that hurts its clients as a test tells it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from etcd_server.faults import CutAfter, CutBefore, DelayAnswer, Fault, Hold, Record
from etcd_server.links import End, Link, Replay
from etcd_server.node import EtcdServer
from etcd_server.processes import WAIT_S, free_port

F = TypeVar("F", bound=Fault)
PORT_TRIES_MAX = 10


class EtcdProxy:
    """Passes bytes between clients and a node, in one thread; closes with its block.

    Faults match the bodies of gRPC requests, of which protobuf keeps keys and values in plain: a
    value that nothing else contains names one request. With TLS there is nothing to match.

    `connections` counts those accepted, `requests` the calls that clients began. `latency_s` is
    added to each direction.
    """

    def __init__(self, server: EtcdServer) -> None:
        self.server = server
        self.latency_s = 0.0
        self.connections = 0
        self.requests = 0
        self.armed: list[Fault] = []
        self.links: set[Link] = set()
        self._replays: list[Replay] = []
        self._paused = False
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._note_error)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        for _ in range(PORT_TRIES_MAX):
            self.port = free_port()
            try:
                self._await(self._listen())
            except OSError:
                continue
            return
        self._stop_loop()
        raise AssertionError("no free port for a proxy")

    @property
    def endpoint(self) -> str:
        """Host and port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """What `snapkv.open` takes."""
        return f"etcd://{self.endpoint}"

    def __enter__(self) -> EtcdProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Reset all connections and end the thread; twice is fine. Raises its first mishap."""
        if not self._loop.is_closed():
            try:
                self._await(self._end())
            finally:
                self._stop_loop()
            if self._errors:
                raise self._errors[0]

    # --- faults of one request ---

    def look(self, needle: bytes) -> Fault:
        """Arm a fault that does nothing, to see a request pass and be answered."""
        return self._arm(Fault(self, needle))

    def cut_before(self, needle: bytes) -> CutBefore:
        """Break the connection in place of passing the request on."""
        return self._arm(CutBefore(self, needle))

    def cut_after(self, needle: bytes, when: Callable[[], object] | None = None) -> CutAfter:
        """Pass the request on, lose the answer, break the connection once `when()` is true.

        Without `when`: once the server has answered.
        """
        return self._arm(CutAfter(self, needle, when))

    def delay_answer(self, needle: bytes, seconds: float | None = None) -> DelayAnswer:
        """Pass the request on; hold all answers of the connection back until `release()`."""
        return self._arm(DelayAnswer(self, needle, seconds))

    def hold(self, needle: bytes) -> Hold:
        """Keep the request until `release()`, long after the client has given up."""
        return self._arm(Hold(self, needle))

    def record(self, needle: bytes) -> Record:
        """Remember the connection up to the request, for `replay()`."""
        return self._arm(Record(self, needle))

    # --- faults of everything ---

    def pause(self) -> None:
        """Pass nothing on, close nothing: a network that drops packets. New clients connect."""

        def pause() -> None:
            self._paused = True
            for link in self.links:
                link.client.stop_reading("pause")
                link.server.stop_reading("pause")

        self.run(pause)

    def refuse(self) -> None:
        """Refuse new connections and reset those there are: a process that died."""

        async def refuse() -> None:
            self._stop_listening()
            self._reset_all()

        self._await(refuse())

    def resume(self) -> None:
        """Take `pause` and `refuse` back; what was kept in a pause arrives."""

        async def resume() -> None:
            self._paused = False
            for link in self.links:
                link.client.read_again("pause")
                link.server.read_again("pause")
                self._connect(link)
            if self._listener is None:
                await self._listen()

        self._await(resume())

    def cut_all(self) -> None:
        """Reset all connections; clients may connect again."""
        self.run(self._reset_all)

    @property
    def open_connections(self) -> int:
        """How many connections of clients there are."""
        return self.run(lambda: sum(link.client.transport is not None for link in self.links))

    # --- for faults ---

    def run(self, act: Callable[[], Any]) -> Any:
        """Do something in the loop and return its result."""

        async def wrapped() -> Any:
            return act()

        return self._await(wrapped())

    def soon(self, act: Callable[..., object], *arguments: object) -> None:
        """Do something in the loop, without waiting, unless the proxy is closed."""
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            assert self._loop.is_closed()

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        """Do something in the loop after some time; called in the loop."""
        self._loop.call_later(seconds, act)

    def replay(self, data: bytes, fault: Fault) -> None:
        """Send bytes to the server on a connection of their own; tell `fault` of the answer."""

        async def replay() -> None:
            made = await self._loop.create_connection(
                lambda: Replay(data, fault), "127.0.0.1", self.server.client_port
            )
            self._replays.append(made[1])

        self._await(replay())

    # --- for links ---

    @property
    def holds_armed(self) -> bool:
        """Whether a request could be for a `hold`."""
        return any(isinstance(fault, Hold) for fault in self.armed)

    def opened(self, link: Link) -> None:
        """Take a new client in."""
        self.connections += 1
        self.links.add(link)
        if self._paused:
            link.client.stop_reading("pause")
            link.server.stop_reading("pause")
        else:
            self._connect(link)

    def ended(self, link: Link) -> None:
        """Forget a link both ends of which are closed."""
        self.links.discard(link)

    # --- inside ---

    def _arm(self, fault: F) -> F:
        self.run(lambda: self.armed.append(fault))
        return fault

    def _connect(self, link: Link) -> None:
        if link.connecting:
            return
        link.connecting = True

        async def connect() -> None:
            try:
                await self._loop.create_connection(
                    lambda: link.server, "127.0.0.1", self.server.client_port
                )
            except OSError:
                link.reset()  # what a client of a dead server sees

        task = self._loop.create_task(connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self) -> None:
        def accept() -> End:
            return Link(self).client

        self._listener = await self._loop.create_server(accept, "127.0.0.1", self.port)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _reset_all(self) -> None:
        for link in list(self.links):
            link.reset()

    async def _end(self) -> None:
        self._stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._reset_all()
        for replay in self._replays:
            if replay.transport is not None:
                replay.transport.abort()
        deadline = self._loop.time() + WAIT_S
        while self.links or any(replay.transport for replay in self._replays):
            assert self._loop.time() < deadline, "connections do not close"
            await asyncio.sleep(0.001)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the thread of a proxy hangs"
        self._loop.close()

    def _await(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append(context.get("exception") or AssertionError(context["message"]))
