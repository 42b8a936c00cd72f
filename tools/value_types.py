"""The types of a store's values for type checkers: bytes, or its codec's types.

mypy checks this file, and an unused `type: ignore` is an error; nothing runs it.
"""

from __future__ import annotations

from typing import assert_type

import snapkv.aio
from snapkv import Snapshot, SnapshotKV, Space, Watch


class User:
    """A value that is not bytes."""


class Users:
    """A codec of such values."""

    def encode(self, value: User, /) -> bytes:
        """Return no bytes."""
        return b""

    def decode(self, data: bytes, /) -> User:
        """Return a value."""
        return User()


def of_bytes(store: SnapshotKV) -> None:
    """Check a store without a codec, and what `with_codec` returns."""
    assert_type(store, SnapshotKV[bytes])
    assert_type(store.load("k"), bytes)
    assert_type(store.get("k", 5), bytes | int)
    assert_type(store.at(), Snapshot[str])
    assert_type(store.with_codec(Users()), SnapshotKV[User])
    assert_type(store.space("s").with_codec(Users()), Space[User])
    store.save("k", User())  # type: ignore[arg-type]


def of_users(users: SnapshotKV[User]) -> None:
    """Check a store with a codec."""
    assert_type(snapkv.open("memory:"), SnapshotKV)
    assert_type(snapkv.open("memory:", codec=None), SnapshotKV)
    assert_type(snapkv.open("memory:", codec=Users()), SnapshotKV[User])
    assert_type(users.load("k"), User)
    assert_type(users.get("k"), User | None)
    assert_type(users.at(), Snapshot[str, User])
    assert_type(users.at()["k"], User)
    assert_type(next(users.history("k")).value, User | None)
    assert_type(next(users.diff(0)).before, User | None)
    assert_type(users.watch(), Watch[str, User])
    assert_type(users.update("k", lambda user: user).value, User | None)
    assert_type(users.raw.load("k"), bytes)
    assert_type(users.space("s").load(b"k"), bytes)
    users.save("k", b"")  # type: ignore[arg-type]
    of_bytes(users)  # type: ignore[arg-type]


async def awaited() -> None:
    """Check the same of asyncio."""
    async with snapkv.aio.open("memory:") as store:
        assert_type(store, snapkv.aio.SnapshotKV)
    async with snapkv.aio.open("memory:", codec=Users()) as users:
        assert_type(users, snapkv.aio.SnapshotKV[User])
        assert_type(await users.load("k"), User)
        assert_type(await (await users.at())["k"], User)
        assert_type(users.watch(), snapkv.aio.Watch[str, User])
        assert_type((await users.update("k", lambda user: user)).value, User | None)
        assert_type(await users.raw.load("k"), bytes)
        await users.save("k", b"")  # type: ignore[arg-type]
