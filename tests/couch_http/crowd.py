"""Many longpollers in one thread, as cheap as can be: what is looked at is the server."""

import asyncio
import json
import threading

from .served import WAIT_S


class Crowd:
    """Clients that each follow a feed for some rounds; a round ends when a row came."""

    def __init__(self, port: int, path: str, clients: int, rounds: int) -> None:
        self._port, self._path = port, path
        self._clients, self._rounds = clients, rounds
        self._waiting = threading.Semaphore(0)

    def all_wait(self) -> None:
        """Return once each client was told that its next request waits."""
        for _ in range(self._clients):
            assert self._waiting.acquire(timeout=WAIT_S)

    def run(self, since: str) -> list[list[str]]:
        """Return the ids that each client was told of, in order."""

        async def all_of_them() -> list[list[str]]:
            return await asyncio.gather(*(self._client(since) for _ in range(self._clients)))

        return asyncio.run(asyncio.wait_for(all_of_them(), 2 * WAIT_S))

    async def _client(self, since: str) -> list[str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        seen: list[str] = []
        while len(seen) < self._rounds:
            path = f"{self._path}&since={since}"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head, head
            body = b""
            while piece := await self._piece(reader):
                if not body:
                    self._waiting.release()
                body += piece
            page = json.loads(body)
            since = page["last_seq"]
            seen += [row["id"] for row in page["results"]]
        writer.close()
        return seen

    @staticmethod
    async def _piece(reader: asyncio.StreamReader) -> bytes:
        size = int(await reader.readline(), 16)
        return (await reader.readexactly(size + 2))[:-2]
