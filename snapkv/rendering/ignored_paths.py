"""Paths that do not count when values are compared, and which pairs of values differ only there."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

from snapkv.base.text import counted
from snapkv.rendering import kubernetes
from snapkv.rendering.decoded import Decoded
from snapkv.rendering.paths import AUTO, NONE, Patterns
from snapkv.rendering.value_decoding import decode
from snapkv.rendering.value_difference import Redaction, compare, is_kubernetes

REMAINDER_BYTES_MAX = 1 << 16
"""The size of the largest value that is compared without decoding it."""
REMAINDERS_MAX = 1_024

Read = Callable[[bytes], Decoded]


def effective(ignore: Sequence[str] | None) -> tuple[str, ...]:
    """Return the ignored paths that a user means: the default and what is given, or that alone.

    >>> effective(None), effective(["metadata.labels"]), effective(["none", "metadata.labels"])
    (('auto',), ('auto', 'metadata.labels'), ('metadata.labels',))
    """
    given = tuple(ignore or ())
    if NONE in given:
        return tuple(each for each in given if each != NONE)
    return given if AUTO in given else (AUTO, *given)


class IgnoredPaths:
    """Decides which changes of values are changes of ignored paths only.

    `ignore` is as in `compare`, `read` how values are read. Values that `redaction` covers are not
    looked at. Cheap where a value of Kubernetes has new heartbeats only: it is not decoded.

    >>> paths = IgnoredPaths(["status.seen"])
    >>> before, after = b'{"status": {"seen": 1}, "a": 1}', b'{"status": {"seen": 2}, "a": 1}'
    >>> paths.ignores(before, after), paths.ignores(before, b'{"a": 1}')
    (True, False)

    Raises `InvalidOptionError` for an ignored path that cannot be read.
    """

    def __init__(
        self, ignore: Sequence[str], read: Read = decode, redaction: Redaction | None = None
    ) -> None:
        self._ignore, self._read, self._redaction = ignore, read, redaction
        self._of_all = bool(set(ignore) - {AUTO})
        if self._of_all:
            Patterns.parse(ignore)  # raises before anything is read
        self._has_preset = not {AUTO, "kubernetes"}.isdisjoint(ignore)

    def shows(self, key: str) -> bool:
        """Return whether the values of a key are not redacted."""
        return self._redaction is None or not self._redaction.covers(key)

    def may_ignore(self, value: bytes) -> bool:
        """Return whether paths of a value may be ignored; a look at its bytes."""
        return self._of_all or (self._has_preset and looks_like_kubernetes(value))

    def ignores(self, before: bytes | None, after: bytes | None) -> bool:
        """Return whether two values differ, and only in ignored paths; None is an absent key."""
        if before is None or after is None or before == after:
            return False
        if self._read is decode and self._has_preset:
            left = remainder(before)
            if left is not None and left == remainder(after):
                return True
        found = compare(self._read(before), self._read(after), ignore=self._ignore)
        return found.state == "ignored"


def looks_like_kubernetes(value: bytes) -> bool:
    """Return whether a value may be an object of Kubernetes, from its bytes alone."""
    return value.startswith(kubernetes.PREFIX) or (
        b"apiVersion" in value and b"metadata" in value and b"kind" in value
    )


def left_out(count: int, noun: str) -> str:
    """Return the message that so many are not shown because only ignored paths differ."""
    were = "was" if count == 1 else "were"
    return (
        f"{counted(count, noun)} with only ignored paths {were} left out: --ignore none shows "
        f"{'it' if count == 1 else 'them'}"
    )


# --- what remains of a value without heartbeats, found without decoding it ---

_NOISE = Patterns.parse(["kubernetes"])


@lru_cache(maxsize=REMAINDERS_MAX)
def remainder(value: bytes) -> Hashable | None:
    """Return what is left of an object of Kubernetes without the paths of `KUBERNETES_NOISE`.

    Two values whose remainders are equal differ in these paths only. None of a value that is not
    such an object, or is too large. Cost: a walk over the fields of the objects that have such
    paths, some ten microseconds for a Lease.
    """
    if len(value) > REMAINDER_BYTES_MAX:
        return None
    if value.startswith(kubernetes.PREFIX):
        return kubernetes.remainder(value, _NOISE)
    if not value.startswith(b"{") or not looks_like_kubernetes(value):
        return None
    try:
        tree = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not is_kubernetes(tree):
        return None
    _drop(tree, _NOISE)
    return repr(tree)  # unlike the trees, it distinguishes 1, 1.0 and true


def _drop(tree: Any, ignored: Patterns) -> None:
    if isinstance(tree, list):
        for item in tree:
            _drop(item, ignored.below(None))
    elif isinstance(tree, dict):
        for step in tuple(tree):
            if (below := ignored.below(step)).covers:
                del tree[step]
            elif below:
                _drop(tree[step], below)
