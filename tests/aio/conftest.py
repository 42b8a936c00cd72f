"""A place on each engine, and loops that end with the test."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from store.engines import ENGINES, Place

import snapkv.aio


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
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, "a closed store leaves no task"

    return opened
