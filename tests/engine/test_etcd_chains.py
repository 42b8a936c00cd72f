"""The causes of errors of commits that a server does not answer, followed to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from chains import check_ends
from etcd_engines import opened
from etcd_server import EtcdProxy, EtcdServer

import snapkv
import snapkv.aio
from snapkv.coordination.requests import transact
from snapkv.engine.contract import Compare, Put, Target, Txn
from snapkv.errors import (
    CommitTimeoutError,
    CommitUnknownError,
    EngineUnavailableError,
    SnapKVError,
)

pytestmark = pytest.mark.slow

GIVES_UP_S = 0.5
FAILURES = CommitUnknownError, CommitTimeoutError, EngineUnavailableError
HURTS = "refuse", "pause"


@pytest.fixture
def proxy(etcd: EtcdServer) -> Iterator[EtcdProxy]:
    with EtcdProxy(etcd) as proxy:
        yield proxy


def check(error: SnapKVError) -> None:
    """Follow an error as a program that logs does; its last cause is that of the engine."""
    check_ends(error)
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        assert len(seen) < 20, "the causes do not end"
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__


@pytest.mark.parametrize("hurt", HURTS)
def test_causes_end_when_a_commit_finds_no_connection(proxy: EtcdProxy, hurt: str) -> None:
    with snapkv.open(proxy.url, commit_timeout=GIVES_UP_S) as store:
        store.save("a", b"1")
        getattr(proxy, hurt)()
        kinds = []
        for _ in range(3):
            with pytest.raises(FAILURES) as caught:
                store.save("a", b"2")
            check(caught.value)
            kinds.append(type(caught.value))
        proxy.resume()
    assert EngineUnavailableError in kinds


@pytest.mark.parametrize("hurt", HURTS)
def test_causes_end_in_asyncio(proxy: EtcdProxy, hurt: str) -> None:
    async def main() -> list[type]:
        kinds = []
        async with snapkv.aio.open(proxy.url, commit_timeout=GIVES_UP_S) as store:
            await store.save("a", b"1")
            getattr(proxy, hurt)()
            for _ in range(3):
                with pytest.raises(FAILURES) as caught:
                    await store.save("a", b"2")
                check(caught.value)
                kinds.append(type(caught.value))
            proxy.resume()
        return kinds

    assert EngineUnavailableError in asyncio.run(main())


def test_causes_end_for_each_commit_of_a_group(proxy: EtcdProxy) -> None:
    """Commits that are made at once share a request, and each has an error of its own."""

    async def main() -> None:
        async with snapkv.aio.open(proxy.url, commit_timeout=GIVES_UP_S) as store:
            await store.save("a", b"1")
            proxy.refuse()
            for _ in range(3):
                saves = [store.save(f"k{n}", b"2") for n in range(8)]
                errors = await asyncio.gather(*saves, return_exceptions=True)
                assert len({id(error) for error in errors}) == len(errors)
                for error in errors:
                    assert isinstance(error, FAILURES)
                    check(error)
            proxy.resume()

    asyncio.run(main())


def test_causes_end_when_a_request_of_a_candidate_gets_no_answer(proxy: EtcdProxy) -> None:
    txn = Txn((Compare(b"k", Target.CREATE, "=", 0),), (Put(b"k", b"v"),))
    with opened(proxy.url) as engine:
        proxy.refuse()
        for _ in range(2):
            with pytest.raises(EngineUnavailableError) as caught:
                transact(engine, txn, GIVES_UP_S)
            check(caught.value)
        proxy.resume()
    with pytest.raises(SnapKVError) as closed:  # its transaction is never sent
        transact(engine, txn, GIVES_UP_S)
    check(closed.value)
