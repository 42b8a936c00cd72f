"""The generation log of a table's streams: recorded once, checked by every process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations.log import layout
from snapkv import Absent, ConflictError, Ops, SnapshotKV, Space, SpaceOps
from snapkv.errors import CorruptStoreError
from snapkv.tuples import pack

BOUND = pack(("generations",))


class Binding:
    """Records and checks which generation log a table's streams are of.

    The first commit of a table records it, in the table's space and in the log's. Safe for
    threads: without a lock, several may look it up.
    """

    def __init__(self, store: SnapshotKV, space: Space, table: str, log_space: str) -> None:
        self._store, self._space, self._table, self._log_space = store, space, table, log_space
        self._is_recorded = False

    def ops(self) -> dict[str, SpaceOps]:
        """Return the operations to add to the next commit, by space; none once it is recorded.

        One round trip until then. Raises `InvalidArgumentError`.
        """
        self._is_recorded = self._is_recorded or self.look()
        if self._is_recorded:
            return {}
        return {
            self._space.name: SpaceOps({BOUND: self._log_space.encode()}, guards=[Absent(BOUND)]),
            self._log_space: SpaceOps({layout.table_key(self._table): b""}),
        }

    def look(self) -> bool:
        """Return whether the table is recorded for this log.

        Raises `InvalidArgumentError` if it is recorded for another one.
        """
        found = bound_to(self._space)
        if found not in (None, self._log_space):
            raise InvalidArgumentError(
                f"the streams of table {self._table!r} are of {found!r}, not of "
                f"{self._log_space!r}: open it with that log of generations"
            )
        return found is not None

    def record(self) -> None:
        """Record the log, unless it is recorded; raises as `look`."""
        while spaces := self.ops():
            with suppress(ConflictError):  # another process recorded first: check its log
                self._store.commit(lambda _, spaces=spaces: Ops(spaces=spaces))  # type: ignore[misc]


def bound_to(space: Space) -> str | None:
    """Return the space of the generation log of a table's streams, None if not recorded.

    Raises `CorruptStoreError`.
    """
    (found,) = space.entries_of([BOUND])
    try:
        return None if found is None else found.value.decode()
    except UnicodeDecodeError as e:
        raise CorruptStoreError(f"not the name of a generation log: {found!r}") from e


def merged(*parts: Mapping[str, SpaceOps]) -> dict[str, SpaceOps]:
    """Return the operations of several mappings, by space, for one commit."""
    found: dict[str, SpaceOps] = {}
    for part in parts:
        for name, ops in part.items():
            had = found.get(name, SpaceOps())
            puts, deletes = {**had.puts, **ops.puts}, [*had.deletes, *ops.deletes]
            found[name] = SpaceOps(puts, deletes, guards=[*had.guards, *ops.guards])
    return found
