"""Sessions and elections in a loop: how they open, how they end, what a cancelled call leaves."""

import asyncio
import threading
from contextlib import suppress

import pytest
from store.engines import EMBEDDED

WAIT_S = 30.0


async def until(holds):
    """Wait until an asynchronous condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not await holds():
            await asyncio.sleep(0.005)


async def end_of(task):
    """Cancel a task, and return the error with which it ends."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await asyncio.wait_for(task, WAIT_S)
    return caught.value


class Gate:
    """Holds up the next grants of an engine; `passed` means that one has begun."""

    def __init__(self, monkeypatch, store):
        engine = store._store._core.engine
        self._grant, self.begun, self.open = engine.grant, threading.Event(), threading.Event()
        monkeypatch.setattr(engine, "grant", self._granted)

    def _granted(self, *args, **options):
        self.begun.set()
        assert self.open.wait(WAIT_S)
        return self._grant(*args, **options)


# --- campaigns that are cancelled ---


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
def test_a_campaign_that_is_cancelled_while_it_makes_its_session_does_not_go_on(
    opened, monkeypatch
):
    async def main():
        async with opened() as store, await store.election("e") as election:
            resigned = threading.Event()
            close = election._sync.close
            monkeypatch.setattr(election._sync, "close", lambda: (close(), resigned.set()))
            gate = Gate(monkeypatch, store)
            campaigning = asyncio.create_task(election.campaign(b"A"))
            await asyncio.to_thread(gate.begun.wait, WAIT_S)
            ending = asyncio.create_task(end_of(campaigning))
            assert await asyncio.to_thread(resigned.wait, WAIT_S)
            gate.open.set()
            await ending
            await until(lambda: no_session(store))
            assert not election.leading
            assert await election.leader() is None

    asyncio.run(main())


def test_a_campaign_that_is_cancelled_at_any_time_leaves_no_session(opened):
    async def main():
        async with opened() as store:
            for n in range(24):
                election = await store.election("e", ttl=60)
                campaigning = asyncio.create_task(election.campaign(b"A"))
                await asyncio.sleep(n / 4_000)
                campaigning.cancel()
                with suppress(asyncio.CancelledError):
                    await campaigning
                    await election.aclose()
                await until(lambda: no_session(store))
                assert not election.leading

    asyncio.run(main())


async def no_session(store):
    return not await store.sessions()
