"""A place on each engine, and loops that end with the test."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from store.engines import ENGINES, Place

import snapkv.aio

WAIT_S = 20.0


def is_of_grpc(task):
    """Return whether gRPC started the task: it ends once its core reports the end of the call."""
    return task.get_coro().__qualname__.startswith("_AioCall.")


@pytest.fixture(params=ENGINES)
def place(request, tmp_path):
    with Place(ENGINES[request.param], tmp_path) as place:
        yield place


@pytest.fixture
def opened(place):
    """Open asynchronous stores of the place: `async with opened() as store`."""

    @asynccontextmanager
    async def opened(**options):
        async with snapkv.aio.open(place.url, **(place.kind.options | options)) as store:
            yield store
        left = asyncio.all_tasks() - {asyncio.current_task()}
        ending = {task for task in left if is_of_grpc(task)}
        assert not left - ending, "a closed store leaves no task"
        if ending:
            _, pending = await asyncio.wait(ending, timeout=WAIT_S)
            assert not pending, "the tasks of calls that were cancelled end"

    return opened
