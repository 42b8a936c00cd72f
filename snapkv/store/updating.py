"""Updates: read a key, change its value, commit it unless another writer came first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from snapkv.base.arguments import check_int, wrong_type
from snapkv.committer import COMMIT_TIMEOUT_S_MAX, listed
from snapkv.errors import ConflictError, InvalidTypeError
from snapkv.model import (
    Absent,
    AtRevision,
    Commit,
    Entry,
    Guard,
    K,
    KeysAndValues,
    Scalar,
    Updated,
    V,
)
from snapkv.reading.deadline import TimeLeft
from snapkv.reading.decoding import Decoding
from snapkv.reading.view import View
from snapkv.store.store_writer import StoreWriter

TRIES = 64
WAIT_S_MIN, WAIT_S_MAX = 0.001, 0.25
"""After lost tries the longest wait doubles, from the first bound up to the second."""
KEY_LOCK_S = 2.0
"""The longest that a thread waits for the lock of a key, in seconds; then it tries without."""

_random = random.Random()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trying:
    """How an update is tried and what its commit says; checked before anything is read."""

    guards: Iterable[Guard] = ()
    tries: int = TRIES
    timeout: float | None = None
    note: str | None = None
    writer: str | None = None
    meta: Mapping[str, Scalar] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "guards", tuple(listed(self.guards, "guards")))
        check_int("tries", self.tries, 1)


class KeyUpdate(KeysAndValues[K, V]):
    """An update of one key: `fn` gets its value, and returns the new one; see `SnapshotKV.update`.

    `keys` and `commit` read and write bytes. If `decoding` is not None, it makes values of the
    bytes.

    Two that count up from 7 at revision 4:

        first                        second
        reads 7 at revision 4        reads 7 at revision 4
        commits 8 if at revision 4   commits 8 if at revision 4: fails, the key is at revision 5
                                     waits a random time, reads 8 at revision 5
                                     commits 9 if at revision 5
    """

    def __init__(
        self,
        core: StoreWriter,
        keys: View[K],
        commit: Callable[..., Commit],
        decoding: Decoding[V] | None,
        key: K,
        fn: Callable[[V | None], V | None],
        trying: Trying,
    ) -> None:
        check_function(fn)
        self._stored = keys.keyspace.encode(key)
        self._key_locks = core.key_locks
        self._seconds = core.commit_timeout_s if trying.timeout is None else trying.timeout
        self._keys: View[K] = keys
        self._key: K = key
        self._commit, self._fn = commit, fn
        self._decoding: Decoding[V] | None = decoding
        self._trying: Trying = trying

    def run(self) -> Updated[V]:
        """Try until a commit succeeds, tries or time are used up, or nothing changes.

        After a lost try, the threads of this process that update the key do so one after another.
        """
        left = TimeLeft(self._seconds)
        try:
            return self._try(left, 1)
        except ConflictError as e:
            lost = self._lost(e)
        wait_s = left.at_most(KEY_LOCK_S) if self._trying.tries > 1 else 0.0
        with self._key_locks.held(self._stored, wait_s):
            return self._try_again(left, lost)

    def _try_again(self, left: TimeLeft, lost: ConflictError) -> Updated[V]:
        tried, wait_s_max = 1, WAIT_S_MIN
        while tried < self._trying.tries and left.waits(_random.uniform(0, wait_s_max)):
            tried, wait_s_max = tried + 1, min(2 * wait_s_max, WAIT_S_MAX)
            try:
                return self._try(left, tried)
            except ConflictError as e:
                lost = self._lost(e)
        raise ConflictError(
            lost.failed,
            f"could not update {self._key!r}: other writers changed it first in each of {tried} "
            f"tries (at most {self._trying.tries} and {self._seconds:g} s); try again later, or "
            "pass larger tries= and timeout=",
            tries=tried,
        ) from lost

    def _try(self, left: TimeLeft, tried: int) -> Updated[V]:
        with left.reads():
            (entry,) = self._keys.entries_of([self._key])
        value, data = self._changed(entry)
        if data == (None if entry is None else entry.value):
            return Updated(value, None, tried)
        unchanged = Absent(self._key) if entry is None else AtRevision(self._key, entry.revision)
        trying: Trying = self._trying
        commit = self._commit(
            puts={} if data is None else {self._key: data},
            deletes=[self._key] if data is None else (),
            guards=[unchanged, *trying.guards],
            note=trying.note,
            writer=trying.writer,
            meta=trying.meta,
            timeout=left.commit_s(COMMIT_TIMEOUT_S_MAX),
        )
        return Updated(value, commit, tried)

    def _changed(self, entry: Entry | None) -> tuple[V | None, bytes | None]:
        """Return the new value and its bytes: the entry's bytes if they mean the same value."""
        key, decoding = self._key, self._decoding
        if decoding is None:
            before: Any = None if entry is None else entry.value
            new: Any = self._fn(before)
            if new is not None and not isinstance(new, bytes):
                raise wrong_type("what the function of update returns", "bytes or None", new)
            return new, new  # type: ignore[return-value]  # of bytes
        value = self._fn(entry and decoding.decode(key, entry.value, entry.revision))
        data = None if value is None else decoding.encode(key, value)
        if entry is None or data is None or data == entry.value:
            return value, data
        # the function may have changed its argument in place
        again = decoding.decode(key, entry.value, entry.revision)
        return value, entry.value if data == decoding.encode(key, again) else data

    def _lost(self, conflict: ConflictError) -> ConflictError:
        """Return a conflict over the key itself; raise that of a guard of the caller."""
        if any(guard in self._trying.guards for guard, _ in conflict.failed):
            raise conflict
        return conflict


def check_function(fn: object) -> None:
    """Raise `InvalidTypeError` for anything but a function."""
    if not callable(fn):
        raise InvalidTypeError(f"update takes a function, not {type(fn).__name__}")
