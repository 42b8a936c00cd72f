"""Which log of generations a table's streams are of: recorded once, checked by whoever opens it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from cdcmeta.errors import WrongGenerationLogError
from cdcmeta.generations.log import layout
from snapkv import Absent, ConflictError, Ops, SnapshotKV, Space, SpaceOps
from snapkv.errors import CorruptStoreError
from snapkv.tuples import pack

BOUND = pack(("generations",))


class Binding:
    """Whether a log of generations is the one that a table's streams are of.

    The first commit of a table records it, in the table's space and in the log's. Safe for
    threads: it is looked up again rather than locked.
    """

    def __init__(self, store: SnapshotKV, space: Space, table: str, log_space: str) -> None:
        self._store, self._space, self._table, self._log_space = store, space, table, log_space
        self._is_recorded = False

    def ops(self) -> dict[str, SpaceOps]:
        """Return what the next commit has to carry, by space: nothing once it is recorded.

        A round trip until then. Raises `WrongGenerationLogError`.
        """
        self._is_recorded = self._is_recorded or self.look()
        if self._is_recorded:
            return {}
        return {
            self._space.name: SpaceOps({BOUND: self._log_space.encode()}, guards=[Absent(BOUND)]),
            self._log_space: SpaceOps({layout.table_key(self._table): b""}),
        }

    def look(self) -> bool:
        """Return whether the table is recorded as one of this log.

        Raises `WrongGenerationLogError` where it is one of another.
        """
        found = bound_to(self._space)
        if found not in (None, self._log_space):
            raise WrongGenerationLogError(self._table, str(found), self._log_space)
        return found is not None

    def record(self) -> None:
        """Record it, if nobody has; raises as `look`."""
        while spaces := self.ops():
            with suppress(ConflictError):  # another process was first: look what it recorded
                self._store.commit(lambda _, spaces=spaces: Ops(spaces=spaces))  # type: ignore[misc]


def bound_to(space: Space) -> str | None:
    """Return the space of the log whose generations a table's streams are of, None: not recorded.

    Raises `CorruptStoreError`.
    """
    (found,) = space.entries_of([BOUND])
    try:
        return None if found is None else found.value.decode()
    except UnicodeDecodeError as e:
        raise CorruptStoreError(f"no name of a log of generations: {found!r}") from e


def merged(*parts: Mapping[str, SpaceOps]) -> dict[str, SpaceOps]:
    """Return operations by space as one commit does all of them together."""
    found: dict[str, SpaceOps] = {}
    for part in parts:
        for name, ops in part.items():
            had = found.get(name, SpaceOps())
            puts, deletes = {**had.puts, **ops.puts}, [*had.deletes, *ops.deletes]
            found[name] = SpaceOps(puts, deletes, guards=[*had.guards, *ops.guards])
    return found
