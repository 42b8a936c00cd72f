"""Values that are never shown: the values of keys below given prefixes."""

from __future__ import annotations

from collections.abc import Iterable

from snapkv.base.arguments import wrong_type
from snapkv.base.text import counted
from snapkv.rendering.compared import State
from snapkv.rendering.decoded import REDACTED, Decoded
from snapkv.rendering.value_difference import ValueDifference


class Redaction:
    """Hides the values of keys below prefixes: only sizes, and that a value changed.

    No hash is shown, as it would give short secrets away. A prefix is compared with the beginning
    of the key, so `""` hides every value.

    >>> secret = Redaction(["secrets/"])
    >>> secret.covers("secrets/db"), secret.covers("app/db")
    (True, False)
    >>> secret.decoded(b"hunter2").text
    'redacted, 7 bytes'
    >>> secret.difference(b"hunter2", b"hunter3").summary
    'redacted, 7 bytes -> redacted, 7 bytes'
    """

    def __init__(self, prefixes: Iterable[str] = ()) -> None:
        if isinstance(prefixes, str):
            raise wrong_type("prefixes", "a list of prefixes", prefixes)
        self.prefixes = tuple(prefixes)

    def covers(self, key: str) -> bool:
        """Return whether the values of a key are hidden."""
        return key.startswith(self.prefixes)

    def preview(self, value: bytes) -> str:
        """Return what is shown instead of a value."""
        return f"redacted, {counted(len(value), 'byte')}"

    def decoded(self, value: bytes) -> Decoded:
        """Return what is shown instead of a decoded value; it does not contain the value."""
        return Decoded(REDACTED, self.preview(value), "text", b"")

    def difference(self, before: bytes | None, after: bytes | None) -> ValueDifference:
        """Return a difference that says only whether, and from which size to which, it changed."""
        state: State = "equal" if before == after else "redacted"
        shown = [None if value is None else self.decoded(value) for value in (before, after)]
        return ValueDifference(shown[0], shown[1], state, "byte")
