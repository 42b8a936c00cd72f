"""The writes of a store: each is one commit, which may name its writer, a note and a meta."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from snapkv.committer import listed, pairs
from snapkv.errors import InvalidOptionError, InvalidTypeError
from snapkv.model import Build, Commit, Guard, Ops, Scalar, Stamp, Updated
from snapkv.reading.view import View
from snapkv.store.core import Core
from snapkv.store.restoring import restored
from snapkv.store.updating import TRIES, Trying, Update, of_value
from snapkv.times import When

# --- additions: keys and values that depend on the timestamp of their commit ---

Addition = Callable[[int], tuple[str, bytes]]
"""Takes the timestamp of its commit; returns a key and a value."""


def building(ops: Ops, additions: tuple[Addition, ...]) -> Build:
    """Return operations as a function of the stamp that calls the additions."""
    if not additions:
        return lambda _: ops

    def build(stamp: Stamp) -> Ops:
        added = [_added(addition, stamp.ts) for addition in additions]
        puts = [*pairs(ops.puts), *added]
        return replace(ops, puts=puts)  # type: ignore[arg-type]

    return build


def _added(addition: Addition, ts: int) -> tuple[str, bytes]:
    if not callable(addition):
        raise InvalidTypeError(f"an addition is a function, not {type(addition).__name__}")
    pair = addition(ts)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InvalidTypeError(f"an addition returns (key, value), not {pair!r}")
    return pair


# --- writes ---


class Writes(View[str]):
    """The text keys of a store, to read and to write.

    Each write takes `note`, `writer` and `meta`, which `commit` explains.
    """

    _core: Core

    def save(
        self,
        key: str,
        value: bytes,
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Save one key; return the commit's timestamp. One round trip."""
        puts = ((key, value),)  # of any key
        ops = Ops(puts, note=note, writer=writer, meta=meta)  # type: ignore[arg-type]
        return self._core.commit(lambda stamp: ops, None).ts

    def remove(
        self,
        key: str,
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Remove one key, which may be absent; return the commit's timestamp. One round trip."""
        return self.commit(deletes=[key], note=note, writer=writer, meta=meta).ts

    def multi_save(
        self,
        kvs: Mapping[str, bytes],
        additions: Iterable[Addition] = (),
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Save several keys in one commit; return its timestamp.

        Each addition is called with that timestamp and returns one more (key, value) to save.
        """
        return self.commit(puts=kvs, additions=additions, note=note, writer=writer, meta=meta).ts

    def multi_save_and_remove_with_prefix(
        self,
        saves: Mapping[str, bytes],
        removals: Iterable[str],
        additions: Iterable[Addition] = (),
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Remove everything under some prefixes and save keys, in one commit; return its timestamp.

        Removals come first: "remove a/, save a/new" leaves a/new alone under a/.
        """
        return self.commit(
            puts=saves,
            delete_prefixes=removals,
            additions=additions,
            note=note,
            writer=writer,
            meta=meta,
        ).ts

    def commit(
        self,
        build: Build | None = None,
        *,
        puts: Mapping[str, bytes] = {},
        deletes: Iterable[str] = (),
        delete_prefixes: Iterable[str] = (),
        guards: Iterable[Guard] = (),
        additions: Iterable[Addition] = (),
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Commit operations, or those that `build(stamp)` returns for the commit's own stamp.

        `build` must be pure: it is called again for every new timestamp. If it raises, nothing is
        written. Removals come before saves: a key that is removed and saved is saved. To save a key
        twice is an error. `timeout` (seconds, 60 at most) bounds the wait.

        The commit log keeps `note` (4 KiB at most), `writer` (256 bytes), which takes the place of
        the store's writer for this commit, and `meta`: 64 facts at most, each a name with a text,
        a number, a bool or None, together 4 KiB in msgpack. Nothing checks whether they are true.

        One round trip. Commits of several threads share it if these three are equal, so a meta that
        differs from call to call makes each call a transaction of its own.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     commit = store.commit(puts={"a": b"1"}, guards=[snapkv.Absent("a")], note="new")
        ...     ts = store.save("a", b"2", writer="alice", meta={"request": "r-17", "ticket": 4})
        ...     [(version.writer, version.meta) for version in store.history("a")][1]
        ('alice', Meta({'request': 'r-17', 'ticket': 4}))

        Raises `ConflictError` if a guard fails, `CommitTooLargeError`, `InvalidKeyError`,
        `InvalidTypeError`, `InvalidOptionError` (of `timeout`, `writer`, `meta`),
        `CommitTimeoutError` (it did not happen), `CommitUnknownError`
        (`resolve` finds it out), `StoreRecreatedError`,
        `ClockSkewError`, `NoSpaceError`, `ReadOnlyError`, `EngineBusyError` (another process kept
        the write lock; it did not happen), `EngineUnavailableError` (nothing was sent; it did not
        happen), `AccessDeniedError`.
        """
        said = any(each is not None for each in (note, writer, meta))
        if build is None:
            build = building(
                Ops(
                    list(pairs(puts)),  # type: ignore[arg-type]
                    listed(deletes, "deletes"),
                    listed(delete_prefixes, "delete_prefixes"),
                    listed(guards, "guards"),
                    note,
                    writer=writer,
                    meta=meta,
                ),
                tuple(listed(additions, "additions")),
            )
        elif not callable(build):
            raise InvalidTypeError(
                f"commit takes a function, not {type(build).__name__}; values: commit(puts=...)"
            )
        elif puts or deletes or delete_prefixes or guards or additions or said:
            raise InvalidOptionError("give a function or keywords, not both")
        return self._core.commit(build, timeout)

    def update(
        self,
        key: str,
        fn: Callable[[bytes | None], bytes | None],
        *,
        guards: Iterable[Guard] = (),
        tries: int = TRIES,
        timeout: float | None = None,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> Updated[bytes]:
        """Change one key: commit `fn(value)`, unless another writer changed the key meanwhile.

        `fn` gets the value now, None if the key is absent, and returns the new one; None removes
        the key, the same value commits nothing. If another writer came first, the key is read
        again after a short wait, and `fn` is called again. `tries` bounds the calls of
        `fn`, and `timeout` the seconds of all of them together (None: the store's
        `commit_timeout`). `guards` are further ones, such as that of a leader: if one of these
        fails, the update is not tried again. `note`, `writer` and `meta` are as for `commit`.

        Two round trips for each try.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     for _ in range(3):
        ...         done = store.update("visits", lambda value: b"%d" % (int(value or 0) + 1))
        ...     done.value, done.commit.ts == store.resolved(), done.tries
        (b'3', True, 1)

        Raises `ConflictError` (`tries` or the time are used up, or one of `guards` failed), what
        `fn` raises, `ReadTimeoutError` and `CommitTimeoutError` (the time ended within a try; in
        all of these cases nothing was written), `CommitUnknownError` (never tried again:
        `resolve` finds it out), and as `commit`.
        """
        trying = Trying(
            guards=guards, tries=tries, timeout=timeout, note=note, writer=writer, meta=meta
        )
        change = of_value(fn)
        return Update(self._core, self, self.commit, key, change, trying).run()

    def restore(
        self,
        when: When,
        prefix: str = "",
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
        before_first: bool = False,
        timeout: float | None = None,
    ) -> Commit:
        """Make the present equal a past moment, in one commit; return it.

        `store.diff(None, when, prefix)` shows what it would do. It restores text keys only: keys in
        spaces belong to the layers that wrote them. Only differences are written; if other writers
        keep committing first, everything is. A moment before the first commit needs
        `before_first=True`, because it removes every key (with the prefix).

        `timeout` (seconds) bounds all of it, reads and commits together, of which a commit gets 60
        at most. Without it `read_timeout` bounds each read, and `commit_timeout` each commit.

        Raises `InvalidTimeError`, `KeyNotFoundError` (a KeyError: no key has the prefix, now or
        then), `CompactedError`, `CommitTooLargeError`, `ReadTimeoutError` (nothing was written),
        and as `commit`.
        """
        said = Ops(note=note, writer=writer, meta=meta)
        return restored(self, self._core, when, prefix, said, before_first, timeout)
