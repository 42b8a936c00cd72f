"""Updates: read a key, change its value, commit it unless another writer came first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from snapkv.base.arguments import check_int, wrong_type
from snapkv.committer import COMMIT_TIMEOUT_S_MAX, listed
from snapkv.errors import ConflictError, InvalidTypeError
from snapkv.model import Absent, AtRevision, Entry, Guard, K, KeysAndValues, Updated, V
from snapkv.reading.deadline import TimeLeft
from snapkv.reading.decoding import Decoding
from snapkv.store.store_writer import StoreWriter

TRIES = 64
WAIT_S_MIN, WAIT_S_MAX = 0.001, 0.25
"""After lost tries the longest wait doubles, from the first bound up to the second."""
KEY_LOCK_S = 2.0
"""The longest that a thread waits for the lock of a key, in seconds; then it tries without."""

_random = random.Random()


@dataclass
class KeyUpdate(KeysAndValues[K, V]):
    """An update of one key: `fn` gets its value, and returns the new one; see `SnapshotKV.update`.

    `keys` read and write bytes, of which `decoding` makes values unless it is None. `said` has the
    note, the writer and the meta.

    Two that count up from 7 at revision 4:

        first                        second
        reads 7 at revision 4        reads 7 at revision 4
        commits 8 if at revision 4   commits 8 if at revision 4: fails, the key is at revision 5
                                     waits a random time, reads 8 at revision 5
                                     commits 9 if at revision 5
    """

    core: StoreWriter
    keys: Any
    decoding: Decoding[V] | None
    key: K
    fn: Callable[[V | None], V | None]
    guards: Iterable[Guard]
    tries: int
    timeout: float | None
    said: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.guards = tuple(listed(self.guards, "guards"))
        check_int("tries", self.tries, 1)
        check_function(self.fn)
        self._stored: bytes = self.keys.keyspace.encode(self.key)
        self._seconds = self.core.commit_timeout_s if self.timeout is None else self.timeout

    def run(self) -> Updated[V]:
        """Try until a commit succeeds, tries or time are used up, or nothing changes.

        After a lost try, the threads of this process that update the key do so one after another.
        """
        left = TimeLeft(self._seconds)
        try:
            return self._try(left, 1)
        except ConflictError as e:
            lost = self._lost(e)
        wait_s = left.at_most(KEY_LOCK_S) if self.tries > 1 else 0.0
        with self.core.key_locks.held(self._stored, wait_s):
            return self._try_again(left, lost)

    def _try_again(self, left: TimeLeft, lost: ConflictError) -> Updated[V]:
        tried, wait_s_max = 1, WAIT_S_MIN
        while tried < self.tries and left.waits(_random.uniform(0, wait_s_max)):
            tried, wait_s_max = tried + 1, min(2 * wait_s_max, WAIT_S_MAX)
            try:
                return self._try(left, tried)
            except ConflictError as e:
                lost = self._lost(e)
        raise ConflictError(
            lost.failed,
            f"could not update {self.key!r}: other writers changed it first in each of {tried} "
            f"tries (at most {self.tries} and {self._seconds:g} s); try again later, or "
            "pass larger tries= and timeout=",
            tries=tried,
        ) from lost

    def _try(self, left: TimeLeft, tried: int) -> Updated[V]:
        with left.reads():
            (entry,) = self.keys.entries_of([self.key])
        value, data = self._changed(entry)
        if data == (None if entry is None else entry.value):
            return Updated(value, None, tried)
        unchanged = Absent(self.key) if entry is None else AtRevision(self.key, entry.revision)
        commit = self.keys.commit(
            puts={} if data is None else {self.key: data},
            deletes=[self.key] if data is None else (),
            guards=[unchanged, *self.guards],
            timeout=left.commit_s(COMMIT_TIMEOUT_S_MAX),
            **self.said,
        )
        return Updated(value, commit, tried)

    def _changed(self, entry: Entry | None) -> tuple[V | None, bytes | None]:
        """Return the new value and its bytes: the entry's bytes if they mean the same value."""
        key, decoding = self.key, self.decoding
        if decoding is None:
            before: Any = None if entry is None else entry.value
            new: Any = self.fn(before)
            if new is not None and not isinstance(new, bytes):
                raise wrong_type("what the function of update returns", "bytes or None", new)
            return new, new  # type: ignore[return-value]  # of bytes
        value = self.fn(entry and decoding.decode(key, entry.value, entry.revision))
        data = None if value is None else decoding.encode(key, value)
        if entry is None or data is None or data == entry.value:
            return value, data
        # the function may have changed its argument in place
        again = decoding.decode(key, entry.value, entry.revision)
        return value, entry.value if data == decoding.encode(key, again) else data

    def _lost(self, conflict: ConflictError) -> ConflictError:
        """Return a conflict over the key itself; raise that of a guard of the caller."""
        if any(guard in self.guards for guard, _ in conflict.failed):
            raise conflict
        return conflict


def check_function(fn: object) -> None:
    """Raise `InvalidTypeError` for anything but a function."""
    if not callable(fn):
        raise InvalidTypeError(f"update takes a function, not {type(fn).__name__}")
