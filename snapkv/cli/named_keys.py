"""The keys and prefixes that a command line names, and why one of them does not exist."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from snapkv.base.text import common_head, quoted
from snapkv.errors import ConflictError, KeyNotFoundError, SnapKVError
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
def explained(kv: Keys, key: str | None = None, when: When | None = None) -> Iterator[None]:
    """Let the error that a key, or any with a prefix, does not exist say why; `key` renames it."""
    try:
        yield
    except KeyNotFoundError as e:
        error = e if key is None else KeyNotFoundError(key, e.timestamp)
        is_prefix = error.reason.startswith("no key begins")
        why = why_absent(kv, str(error.key), when, is_prefix=is_prefix)
        raise KeyNotFoundError(error.key, e.timestamp, reason=f"{error}{why}") from None


def why_absent(kv: Keys, name: str, when: When | None, *, is_prefix: bool = False) -> str:
    """Return why a key, or each key with a prefix, is absent; "" if that is not known."""
    with suppress(SnapKVError):  # it only adds to an error
        if (removed := _newest(kv, name, when, is_prefix, SEARCH_S)) is not None:
            return f": removed {_origin(removed)}; rev:{removed.revision - 1} has it"
        is_folder = name.endswith("/") and _newest(kv, name, when, True, SEARCH_S) is not None
        if not is_prefix and (is_folder or kv.at(when).count(name)):
            takers = "ls, log, diff, rm and restore"
            return f"; keys begin so: {takers} take --prefix {shlex.quote(name)}"
    return ""


@contextmanager
def conflict_explained(kv: Keys) -> Iterator[None]:
    """Let the error of a guard say which commit changed its key."""
    try:
        yield
    except ConflictError as e:
        guard, found = e.failed[0]
        why = why_absent(kv, guard.key, None)
        with suppress(SnapKVError):
            if found and (newest := _newest(kv, guard.key, None, False, SEARCH_S)) is not None:
                why = f": written {_origin(newest)}; see snapkv show rev:{newest.revision}"
        raise ConflictError(e.failed, f"{e}{why}") from None


def _origin(commit: Commit) -> str:
    by = "" if commit.writer is None else f" by {commit.writer}"
    note = "" if commit.note is None else f", {quoted(commit.note)}"
    return f"at {format_time(commit.ts)}{by}{note}"


def check_existed(kv: Keys, keys: Sequence[str], prefixes: Sequence[str]) -> None:
    """Raise `KeyNotFoundError` for a key, or a prefix, of which the history has no commit."""
    head = kv.at()
    for key in keys:
        if key not in head and _newest(kv, key, None, False) is None:
            reason = f"no commit changed a key {key!r}{why_absent(kv, key, None)}"
            raise KeyNotFoundError(key, reason=reason)
    for each in filter(None, prefixes):
        if not head.count(each) and _newest(kv, each, None, True) is None:
            raise KeyNotFoundError(each, reason=f"no commit changed a key beginning with {each!r}")


def _newest(
    kv: Keys, name: str, until: When | None, is_prefix: bool, timeout: float | None = None
) -> Commit | None:
    keys, prefixes = ((), (name,)) if is_prefix else ((name,), ())
    found = log(kv, until=until, keys=keys, prefixes=prefixes, wanted=1, timeout=timeout)
    newest = next(found, None)
    return None if newest is None else newest.commit
