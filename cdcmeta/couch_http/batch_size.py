"""How much is read at once: as many documents as can be sent together, whatever their size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from cdcmeta.couch_http.limits import Limits


class Pace:
    """How many documents to read at once, by the sizes of those before: one, to begin with.

    From one step to the next it doubles at most. Nobody knows the next document before it is read:
    where large ones follow small ones, `Limits.docs` of them may be read together, once.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.docs = 1

    def after(self, size: int) -> None:
        """Take in that the documents of a step had so many bytes; of none nothing is learned."""
        if size:
            fits = self.docs * self._limits.step_bytes // size
            self.docs = max(1, min(fits, 2 * self.docs, self._limits.docs))


def pieces_of(rows: deque[bytes], size: int) -> Iterator[bytes]:
    """Yield rows in pieces of some size, or one row more; what was yielded is let go."""
    while rows:
        yield b"".join(_taken(rows, size))


def _taken(rows: deque[bytes], size: int) -> Iterator[bytes]:
    while rows and size > 0:
        size -= len(rows[0])
        yield rows.popleft()
