"""Clients that wait for a feed, all in one process: `python -m benchmarks.longpollers`.

Each asks with `feed=longpoll` again and again. A line `waiting` goes out whenever all of them
wait; in the end a JSON list with the times (seconds, monotonic) at which each was told.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable


async def client(port: int, db: str, rounds: int, waits: Callable[[], None]) -> list[float]:
    """Follow a database for some rounds; return when each brought its row."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    told: list[float] = []
    since = "now"
    while len(told) < rounds:
        path = f"/{db}/_changes?feed=longpoll&since={since}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            raise ConnectionError(head.decode())
        body = b""
        while size := int(await reader.readline(), 16):
            if not body:
                waits()
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        told.append(time.monotonic())
        since = json.loads(body)["last_seq"]
    writer.close()
    return told


async def main(port: int, db: str, clients: int, rounds: int) -> None:
    """Run them all."""
    waiting = 0

    def waits() -> None:
        nonlocal waiting
        waiting += 1
        if waiting % clients == 0:
            print("waiting", flush=True)

    told = await asyncio.gather(*(client(port, db, rounds, waits) for _ in range(clients)))
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
