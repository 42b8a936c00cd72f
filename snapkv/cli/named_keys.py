"""The keys and prefixes that a command line names, and why one of them does not exist."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from snapkv.base.text import common_head, quoted
from snapkv.errors import KeyNotFoundError, SnapKVError
from snapkv.layout import outermost
from snapkv.model import Commit
from snapkv.reading.log import log
from snapkv.store.open import Keys
from snapkv.times import When, format_time

SEARCH_S = 2.0
"""The longest that an error waits until it is known what removed a key, in seconds."""


def prefixes_in(*given: list[str] | None, key: Callable[[str], str] = str) -> tuple[str, ...]:
    """Return the prefixes that a command line gives, in order; ("",), all keys, if it gives none.

    `key` returns the prefix of a name. A prefix that begins with another one is left out.

    >>> prefixes_in(["b/", "a/x"], ["a/"]), prefixes_in(None)
    (('a/', 'b/'), ('',))
    """
    if not any(given):
        return ("",)
    return outermost([key(each) for some in given for each in some or ()])


def common(prefixes: tuple[str, ...]) -> str:
    """Return the longest prefix that all of the `prefixes_in` a line have."""
    return prefixes[0][: common_head(prefixes[0], prefixes[-1])]


@contextmanager
def explained(kv: Keys, key: str, when: When | None = None) -> Iterator[None]:
    """Let the error that a key does not exist, now or at a time, say why."""
    try:
        yield
    except KeyNotFoundError as e:
        why = why_absent(kv, key, when)
        raise KeyNotFoundError(
            key, e.timestamp, reason=f"{KeyNotFoundError(key, e.timestamp)}{why}"
        ) from None


def why_absent(kv: Keys, name: str, when: When | None, *, is_prefix: bool = False) -> str:
    """Return why a key, or each key with a prefix, is absent; "" if that is not known."""
    with suppress(SnapKVError):  # it only adds to an error
        if (removed := _newest(kv, name, when, is_prefix, SEARCH_S)) is not None:
            by = "" if removed.writer is None else f" by {removed.writer}"
            note = "" if removed.note is None else f", {quoted(removed.note)}"
            before = f"rev:{removed.revision - 1} has it"
            return f": removed at {format_time(removed.ts)}{by}{note}; {before}"
        is_folder = name.endswith("/") and _newest(kv, name, when, True, SEARCH_S) is not None
        if not is_prefix and (is_folder or kv.at(when).count(name)):
            return f"; keys begin so: ls, log and diff take --prefix {shlex.quote(name)}"
    return ""


def check_existed(kv: Keys, keys: Sequence[str], prefixes: Sequence[str]) -> None:
    """Raise `KeyNotFoundError` for a key, or a prefix, of which the history has no commit."""
    head = kv.at()
    for key in keys:
        if key not in head and _newest(kv, key, None, False) is None:
            reason = f"no commit changed a key {key!r}{why_absent(kv, key, None)}"
            raise KeyNotFoundError(key, reason=reason)
    for each in filter(None, prefixes):
        if not head.count(each) and _newest(kv, each, None, True) is None:
            reason = f"no commit changed a key that begins with {each!r}"
            raise KeyNotFoundError(each, reason=reason)


def _newest(
    kv: Keys, name: str, until: When | None, is_prefix: bool, timeout: float | None = None
) -> Commit | None:
    keys, prefixes = ((), (name,)) if is_prefix else ((name,), ())
    found = log(kv, until=until, keys=keys, prefixes=prefixes, wanted=1, timeout=timeout)
    newest = next(found, None)
    return None if newest is None else newest.commit
