"""A configuration service: reads of any moment, writes with a reason, undo, and live changes.

pip install fastapi uvicorn '.[aio]'
python examples/fastapi_service.py lmdb:./config        # or etcd://localhost:2379

curl -X PUT localhost:8000/keys/flags/dark -d on -H 'X-User: alice'
curl localhost:8000/keys/flags/dark
curl localhost:8000/history/flags/dark
curl -N 'localhost:8000/changes?prefix=flags/'
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import socket

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

import snapkv
import snapkv.aio


def service(url: str) -> FastAPI:
    """Return the service over the store that `url` names."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.watches = set()
        async with snapkv.aio.open(url) as app.state.store:
            yield

    app = FastAPI(lifespan=lifespan)

    def store() -> snapkv.aio.SnapshotKV:
        return app.state.store

    @app.exception_handler(snapkv.KeyNotFoundError)
    async def absent(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status_code=404)

    @app.exception_handler(snapkv.CompactedError)
    async def compacted(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status_code=410)

    @app.get("/keys/{key:path}")
    async def read(key: str, at: str | None = None) -> Response:
        return Response(await store().load(key, at), media_type="application/octet-stream")

    @app.put("/keys/{key:path}")
    async def write(key: str, request: Request) -> dict[str, str]:
        writer, note = request.headers.get("X-User"), request.headers.get("X-Reason")
        ts = await store().save(key, await request.body(), writer=writer, note=note)
        return {"ts": str(ts)}

    @app.get("/history/{key:path}")
    async def history(key: str) -> list[dict[str, object]]:
        return [
            {
                "time": version.ts and snapkv.format_time(version.ts),
                "writer": version.writer,
                "note": version.note,
                "value": None if version.value is None else version.value.decode(errors="replace"),
            }
            async for version in store().history(key)
        ]

    @app.post("/undo/{key:path}")
    async def undo(key: str, to: str, request: Request) -> dict[str, str]:
        try:
            commit = await store().restore(to, key, writer=request.headers.get("X-User"))
        except snapkv.SnapKVError as error:
            raise HTTPException(409, str(error)) from error
        return {"ts": str(commit.ts)}

    @app.get("/changes")
    async def changes(prefix: str = "", since: str | None = None) -> StreamingResponse:
        watch = await store().watch(prefix, since)  # an invalid time is an error before the stream

        async def events() -> AsyncIterator[str]:
            app.state.watches.add(watch)
            async with watch:
                async for found in watch:
                    keys = [change.key for change in found]
                    yield f"id: {found.commit.ts}\ndata: {json.dumps(keys)}\n\n"
            app.state.watches.discard(watch)

        return StreamingResponse(events(), media_type="text/event-stream")

    return app


class Server(uvicorn.Server):
    """A server that ends the streams of changes when it stops; uvicorn would wait for them."""

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """End the streams, then the rest."""
        watches = self.config.app.state.watches
        await asyncio.gather(*(watch.aclose() for watch in watches))
        await super().shutdown(sockets)


def serve(url: str, port: int) -> None:
    """Serve the store that `url` names until a signal comes."""
    Server(uvicorn.Config(service(url), port=port, timeout_graceful_shutdown=1)).run()


if __name__ == "__main__":
    serve(sys.argv[1], 8000)
