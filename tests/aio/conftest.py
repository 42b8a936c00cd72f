"""A place on each engine, and loops that end with the test."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from store.engines import ENGINES, Place

import snapkv.aio

WAIT_S = 20.0


def is_ours(task):
    """Return whether the task runs code of snapkv, not that of the test, nor gRPC's.

    gRPC's tasks end once its core reports the end of their calls, and a task of the test that
    waited in the store has to run once more.
    """
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and Path(snapkv.__file__).parent in Path(code.co_filename).parents


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
        assert not [task for task in left if is_ours(task)], "a closed store leaves no task"
        if left:
            _, pending = await asyncio.wait(left, timeout=WAIT_S)
            assert not pending, "what waited in a closed store ends"

    return opened
