"""The source of an import: the keys with a prefix at one revision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from snapkv.engine.contract import Engine, KeyValue, Range
from snapkv.errors import (
    AccessDeniedError,
    CorruptStoreError,
    FormatError,
    InvalidKeyError,
)
from snapkv.layout import FIRST_KEY, NAME_BYTES_MAX, FormatRecord, StampRecord, prefix_end

FORMAT_SUFFIX = b"/sys/format"


@dataclass(frozen=True, slots=True)
class Names:
    """Names of foreign keys in the store: without `cut` bytes, and with `under` before them."""

    cut: int
    under: str

    def of(self, stored: bytes) -> str:
        """Return the new name of a key; raises `InvalidKeyError` if it cannot have one."""
        try:
            name = stored[self.cut :].decode()
        except UnicodeDecodeError as e:
            raise InvalidKeyError(f"key {stored!r} is not valid UTF-8", stored) from e
        if not self.under + name:
            raise InvalidKeyError(f"key {stored!r} has no name without its prefix", stored)
        return self.under + name


@dataclass(frozen=True, slots=True)
class Source:
    """The keys with a prefix at one revision; those below `roots` belong to snapkv stores."""

    engine: Engine
    start: bytes
    revision: int
    roots: tuple[bytes, ...]
    keys: int
    left_out: int

    def pairs(self, names: Names) -> Iterator[tuple[str, bytes]]:
        """Yield new names and values, in order."""
        first, end = self.start or FIRST_KEY, prefix_end(self.start)
        with named_denials(self.engine.url):
            for page in self.engine.scan(first, end, revision=self.revision):
                for kv in page:
                    if not kv.key.startswith(self.roots):
                        yield names.of(kv.key), kv.value


@contextmanager
def named_denials(url: str) -> Iterator[None]:
    """Name the URL in an `AccessDeniedError`: source and store may be two clusters."""
    try:
        yield
    except AccessDeniedError as e:
        raise AccessDeniedError(f"{url}: {e}") from e


def read_source(engine: Engine, start: bytes, names: Names) -> Source:
    """Read the keys below a prefix; raises `InvalidKeyError` for one that cannot be imported."""
    first, end = start or FIRST_KEY, prefix_end(start)
    answer = engine.read([Range(first, end, count_only=True)])
    revision = answer.header.revision
    _check_outside(engine, start, revision)
    found = _counted(engine.scan(first, end, revision=revision, keys_only=True), (), names)
    roots = tuple(root for root in found.roots if _is_store(engine, root, revision))
    if roots:
        found = _counted(engine.scan(first, end, revision=revision, keys_only=True), roots, names)
    if found.error is not None:
        raise found.error
    return Source(engine, start, revision, roots, found.keys, found.left_out)


@dataclass(slots=True)
class _KeyCounts:
    """Counts of a source's keys, and the possible roots of snapkv stores among them."""

    keys: int = 0
    left_out: int = 0
    roots: list[bytes] = field(default_factory=list)
    error: InvalidKeyError | None = None


def _counted(pages: Iterable[list[KeyValue]], roots: tuple[bytes, ...], names: Names) -> _KeyCounts:
    """Count all keys, leaving out those below `roots`; keep the error of the first bad one."""
    found = _KeyCounts()
    for page in pages:
        for kv in page:
            if kv.key.startswith(roots):
                found.left_out += 1
                continue
            found.keys += 1
            if kv.key.endswith(FORMAT_SUFFIX):
                found.roots.append(kv.key[: 1 - len(FORMAT_SUFFIX)])
            try:
                names.of(kv.key)
            except InvalidKeyError as e:
                found.error = found.error or e
    return found


def _is_store(engine: Engine, root: bytes, revision: int) -> bool:
    """Return whether the keys below a root belong to a snapkv store."""
    wanted = [Range(root + name, revision=revision) for name in (b"sys/format", b"sys/ts")]
    format_, ts = (result.kvs for result in engine.read(wanted).results)
    if not format_ or not ts:
        return False
    try:
        FormatRecord.decode(format_[0].value)
        StampRecord.decode(ts[0].value)
    except (CorruptStoreError, FormatError) as e:
        return isinstance(e, FormatError)
    return True


def _check_outside(engine: Engine, start: bytes, revision: int) -> None:
    """Raise `InvalidKeyError` for a prefix inside a snapkv store, which needs dump and load."""
    slashes = [at for at, byte in enumerate(start[: NAME_BYTES_MAX + 1]) if byte == ord("/")]
    for at in slashes:
        root = start[: at + 1]
        with suppress(AccessDeniedError):  # a user without the right cannot read a store there
            if _is_store(engine, root, revision):
                name = root[:-1].decode(errors="backslashreplace")
                raise InvalidKeyError(
                    f"{start!r} is inside the snapkv store {name!r}: use dump and load", start
                )
