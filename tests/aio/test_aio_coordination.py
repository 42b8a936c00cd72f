"""Sessions and elections in a loop: how they open, how they end, what a cancelled call leaves."""

import asyncio
import threading
from contextlib import suppress

import pytest
from store.engines import EMBEDDED

import snapkv
import snapkv.aio
from snapkv.aio import runners

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
        engine = store._sync._core.engine
        self._grant, self.begun, self.open = engine.grant, threading.Event(), threading.Event()
        monkeypatch.setattr(engine, "grant", self._granted)

    def _granted(self, *args, **options):
        self.begun.set()
        assert self.open.wait(WAIT_S)
        return self._grant(*args, **options)


# --- opened and left ---


async def no_session(store):
    return not await store.sessions()


def test_a_session_and_an_election_open_where_a_block_begins(opened):
    async def main():
        async with opened() as store:
            async with store.session(60, b"me") as session:
                assert isinstance(session, snapkv.aio.Session)
                assert [each.id for each in await store.sessions()] == [session.id]
                async with store.election("e", session=session) as election:
                    assert isinstance(election, snapkv.aio.Election)
                    assert await election.leader() is None, "it takes part from campaign() on"
                    await election.campaign(b"A")
                assert not election.leading, "it has resigned"
                assert await election.leader() is None
                assert session.alive, "which is not the election's to end"
            assert not session.alive
            assert await no_session(store)
            with suppress(KeyError):
                async with store.session(60) as session, store.election("e") as election:
                    await election.campaign(b"A")
                    raise KeyError
            assert not session.alive
            assert not election.leading
            assert await no_session(store)

    asyncio.run(main())


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_all_that_takes_a_coroutine_takes_a_session(opened):
    async def main():
        async with opened() as store:
            task = asyncio.create_task(store.session(60, b"0"))
            async with asyncio.TaskGroup() as group:
                grouped = group.create_task(store.session(60, b"1"))
            found = [
                await task,
                grouped.result(),
                await store.session(60, b"2"),
                await asyncio.wait_for(store.session(60, b"3"), WAIT_S),
                *await asyncio.gather(store.session(60, b"4")),
            ]
            async with await store.session(60, b"5") as session, await store.election("e"):
                found.append(session)
            assert [each.value for each in found] == [b"%d" % n for n in range(6)]
            assert len(await store.sessions()) == 5
            never = asyncio.create_task(store.session(60, b"6"))
            assert isinstance(await end_of(never), asyncio.CancelledError)
            failing = asyncio.create_task(store.session(-1))
            with pytest.raises(snapkv.errors.InvalidOptionError):
                await failing
            assert len(await store.sessions()) == 5

    asyncio.run(main())


def test_what_opens_is_awaited_once(opened):
    async def main():
        async with opened() as store:
            opening = store.session(60)
            async with await opening, store.election("e"):
                with pytest.raises(RuntimeError, match="already awaited"):
                    await opening
            closed = store.session(60)
            closed.close()
            with pytest.raises(RuntimeError, match="already awaited"):
                await closed
            assert await no_session(store)

    asyncio.run(main())


# --- sessions whose making is cancelled ---


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
def test_a_session_that_is_made_after_its_task_was_cancelled_is_closed(opened, monkeypatch):
    monkeypatch.setattr(runners, "SETTLE_S", 0.01)

    async def main():
        async with opened() as store:
            made, make = threading.Event(), store._sync.session

            def made_at_last(*args):
                session = make(*args)
                made.set()
                return session

            monkeypatch.setattr(store._sync, "session", made_at_last)
            gate = Gate(monkeypatch, store)
            making = asyncio.create_task(entered(store.session(60)))
            assert await asyncio.to_thread(gate.begun.wait, WAIT_S)
            error = await end_of(making)
            gate.open.set()
            assert await asyncio.to_thread(made.wait, WAIT_S)
            await until(lambda: no_session(store))
            assert error.__traceback__, "a session must not live as long as what refers to it"

    asyncio.run(main())


def test_a_session_whose_task_is_cancelled_again_and_again_is_closed(opened):
    async def main():
        async with opened() as store:
            errors = []
            for n in range(24):
                making = asyncio.create_task(entered(store.session(60)))
                await asyncio.sleep(n / 4_000)
                while not making.done():
                    making.cancel()
                    await asyncio.sleep(0)
                errors += await asyncio.gather(making, return_exceptions=True)
            await until(lambda: no_session(store))
            assert all(isinstance(e, asyncio.CancelledError | None) for e in errors), errors

    asyncio.run(main())


async def entered(opening):
    """Open something and close it."""
    async with await opening:
        pass


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


def test_a_leader_that_campaigns_again_proclaims_and_another_object_is_rejected(opened):
    async def main():
        async with opened() as store, store.session(60) as session:
            election = await store.election("e", session=session)
            await election.campaign(b"1")
            await election.campaign(b"2", timeout=0)
            assert (await election.leader()).value == b"2"
            other = await store.election("e", session=session)
            with pytest.raises(snapkv.errors.InvalidOptionError, match="already has a candidate"):
                await other.campaign(b"3")
            await election.resign()
            await other.campaign(b"3")
            assert (election.leading, other.leading) == (False, True)

    asyncio.run(main())
