"""Opening a store, or keys that other programs write, in an asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from typing import Any

from snapkv.aio.reads import Observed
from snapkv.aio.resources import C, Opening, made
from snapkv.aio.runners import LoopRunner, Runner, ThreadRunner
from snapkv.aio.store import SnapshotKV
from snapkv.codecs import Codec
from snapkv.model import K, V
from snapkv.store import open as _open
from snapkv.store.location import scheme_of


def open(
    url: str | None = None, *, codec: Codec[V] | None = None, **options: Any
) -> Opening[SnapshotKV[V]]:
    """Open a store for one asyncio loop; `await` it, or use it in `async with`.

    `url`, `codec` and `options` are as for `snapkv.open`, which describes costs and errors:
    without a URL it opens the store that the environment's `SNAPKV_STORE` names. On etcd, calls run
    in the loop, on `grpc.aio` (extra `aio`); on other engines, and with `archive=`, in 12 threads.

        async with snapkv.aio.open("etcd://localhost:2379") as store:
            timestamp = await store.save("schema/users", b"id int")
            value = await store.load("schema/users", timestamp)

    Raises as `snapkv.open`, and `MissingExtraError` without the extra.
    """

    async def begin() -> SnapshotKV[V]:
        found = _open.environment_url() if url is None else url
        runner = await runner_for(found, options)
        store: Any = await open_in(runner, partial(_open.open, found, codec=codec, **options))
        raw = None if codec is None else SnapshotKV(runner, store.raw)
        return SnapshotKV(runner, store, raw)

    return Opening(begin())


def observe(url: str, *, prefix: K | Collection[K], **options: Any) -> Opening[Observed[K]]:
    """Open keys that other programs write, for reading any moment of them; see `snapkv.observe`.

        async with snapkv.aio.observe("etcd://localhost:2379", prefix="/registry/") as registry:
            before = await registry.at("-5m")

    Raises as `snapkv.observe`, and `MissingExtraError` without the extra `aio`.
    """

    async def begin() -> Observed[K]:
        runner = await runner_for(url, options)
        call = partial(_open.observe, url, prefix=prefix, **options)
        return Observed(runner, await open_in(runner, call))

    return Opening(begin())


async def runner_for(url: str, options: dict[str, Any]) -> Runner:
    """Return what runs the calls of a store: the loop, if all that it waits for is etcd."""
    is_etcd = isinstance(url, str) and scheme_of(url) == "etcd"
    if not is_etcd or options.get("archive") is not None:
        return ThreadRunner()
    for module in ("snapkv.engine.etcd.engine", "snapkv.base.greenlet_runtime"):  # they take 0.1 s
        await asyncio.to_thread(import_module, module)
    from snapkv.base.greenlet_runtime import GreenletRuntime

    return LoopRunner(GreenletRuntime())


async def open_in(runner: Runner, call: Callable[[], C]) -> C:
    """Return what a call opens; end the runner if it raises, or if this is cancelled."""
    try:
        return await made(runner.run, call)
    except BaseException:
        await runner.end()
        raise
