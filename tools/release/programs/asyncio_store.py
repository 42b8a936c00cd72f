"""asyncio reads and writes a store; of etcd, what is missing is a server, not a package."""

import asyncio

import snapkv.aio
from snapkv.errors import EngineUnavailableError


async def main() -> None:
    """Use a store on disk, then ask for one on etcd."""
    async with snapkv.aio.open("lmdb:store") as store:
        first = await store.save("a", b"1")
        await store.save("a", b"2")
        assert (await store.load("a", first), await store.load("a")) == (b"1", b"2")
    try:
        await snapkv.aio.open("etcd://127.0.0.1:1")  # no server listens there
    except EngineUnavailableError:
        return
    raise SystemExit("a store without a server was opened")


asyncio.run(main())
