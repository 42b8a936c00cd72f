"""Commits with a planned fate, and what became of them."""

import pytest
from protocol_remote import (
    TS_KEY,
    Network,
)

import snapkv
from snapkv import CommitUnknownError
from snapkv.engine.contract import Delete, Put, Txn


def once(network: Network, key: str) -> int:
    """Return the one revision that wrote a key."""
    ((revision, _),) = network.journal.written(key)
    return revision


def never(network: Network, key: str) -> None:
    """Assert that nothing wrote the key, and that nothing on its way will."""
    network.arrive()
    assert network.journal.written(key) == []


def unknown_commit(
    network: Network, store: snapkv.SnapshotKV, *fates, **commit
) -> CommitUnknownError:
    """Commit into the given fates and a dead network; return the error after it is back."""
    client = store._core.committer.writer
    network.plan(client, *fates)
    network.cut(client)
    with pytest.raises(CommitUnknownError) as caught:
        store.commit(**commit, timeout=1)
    network.mend(client)
    assert caught.value.may_still_land
    return caught.value


def recreate(network: Network) -> None:
    """Delete the timestamp key and make it again, as an administrator might."""
    journal = network.journal
    made = journal.revisions[journal.stamps[0].revision][TS_KEY]
    assert made is not None
    network.apply(Txn(success=(Delete(TS_KEY),)))
    network.apply(Txn(success=(Put(TS_KEY, made),)))
    assert journal.stamps[-1].ts == 0
