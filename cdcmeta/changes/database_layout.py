"""Keys and values of a database, in FoundationDB's tuple encoding.

| key | value |
|---|---|
| `("db",)` | the database, a msgpack map: id, ends of its incarnations, revs_limit |
| `("claim",)` | nothing; exists while the database is copied to this store |
| `("changes", incarnation, stamp)` | RFC 003: `(0, id, position, hash, branches, not_deleted)` |
| `("revisions", id)` | the winner: `(0, incarnation, stamp, branches, *leaf, ancestors)` |
| `("revisions", id, *leaf)` | every other leaf: `(0, ancestors)` |
| `("docs", id, position, hash)` | a leaf's body, JSON |
| `("deleted", id)` | nothing; documents whose winner is deleted, to count them |
| `("local", id)` | a `_local` document, a msgpack pair: how often written, JSON |

`*leaf` is not_deleted, position, hash, in the order that decides; `ancestors` are 16 bytes each.
The winner's key never moves, and every edit rewrites it, because guards check keys, not ranges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from cdcmeta.changes.revisions import HASH_BYTES, Leaf, Revision, Tree
from cdcmeta.changes.sequence import STAMP_BYTES, Sequence
from snapkv.errors import CorruptStoreError, FormatError
from snapkv.tuples import Versionstamp, pack, range_of, unpack

REGISTRY = "changes"
"""The space whose keys are the names of databases."""
FORMAT = 0
DATABASE = pack(("db",))
CLAIM = pack(("claim",))
"""The key that exists while a database is copied to this store; its revision identifies the copying
call."""
ROWS, REVISIONS, DOCS, DELETED, LOCAL = "changes", "revisions", "docs", "deleted", "local"
ROW_PREFIX = pack((ROWS,))
WINNER_PREFIX = pack((REVISIONS,))
DELETED_PREFIX = pack((DELETED,))
LOCAL_PREFIX = pack((LOCAL,))
_BODY_PREFIX = pack((DOCS,))
_FIRST = pack((0,))
_USUAL_ROW = re.compile(
    rb"\x14\x02([^\x00]*)\x00\x15([^\x00])\x01((?:[^\x00]|\x00\xff){16})\x00\x15([^\x00])"
    rb"([\x26\x27])",
    re.DOTALL,
)
"""The form in which `pack` encodes most rows: their ids have no zero bytes, their numbers are
small."""
_USUAL_WINNER = re.compile(
    rb"\x14\x14\x33(.{12})\x15([^\x00])([\x26\x27])\x15([^\x00])\x01"
    rb"((?:[^\x00]|\x00\xff){16})\x00\x01.*\x00",
    re.DOTALL,
)
"""The same for most winners, in a database's first incarnation."""


class ChangeRow(NamedTuple):
    """A row of the index: a document's last edit, as in RFC 003."""

    sequence: Sequence
    id: str
    revision: Revision
    branches: int
    not_deleted: bool


class Winner(NamedTuple):
    """The value of a document's own key: the winning leaf, and its row's sequence."""

    sequence: Sequence
    branches: int
    leaf: Leaf

    def row(self, id: str) -> ChangeRow:
        """Return its row of the index."""
        return ChangeRow(
            self.sequence, id, self.leaf.revision, self.branches, self.leaf.not_deleted
        )


@dataclass(frozen=True, slots=True)
class DatabaseRecord:
    """The record of a database; `eras` holds each incarnation's last timestamp, oldest first.

    The incarnation is the number of ended eras. `moved` is True once it was moved elsewhere.
    """

    uuid: bytes
    eras: tuple[int, ...] = ()
    revs_limit: int = 1000
    moved: bool = False

    @property
    def incarnation(self) -> int:
        """The number of its relocations."""
        return len(self.eras)

    def sequence_at(self, timestamp: int) -> Sequence:
        """Return the place of a time, in the incarnation of that time."""
        era = next((n for n, end in enumerate(self.eras) if timestamp < end), len(self.eras))
        return Sequence.behind(timestamp, era)

    def encode(self) -> bytes:
        """Return the record's bytes."""
        fields = {"format": FORMAT, "uuid": self.uuid, "eras": list(self.eras)}
        limits = {"revs_limit": self.revs_limit, "moved": self.moved}
        return msgpack.packb(fields | limits)  # type: ignore[no-any-return]

    @classmethod
    def decode(cls, raw: bytes) -> DatabaseRecord:
        """Return the record of some bytes. Raises `CorruptStoreError`, `FormatError`."""
        try:
            fields = msgpack.unpackb(raw)
            if fields["format"] != FORMAT:
                raise FormatError("the database", fields["format"], FORMAT)
            eras = tuple(fields["eras"])
            return cls(fields["uuid"], eras, fields["revs_limit"], fields["moved"])
        except FormatError:
            raise
        except (ValueError, KeyError, TypeError) as e:
            raise CorruptStoreError(f"the database's record cannot be read: {e!r}") from e


# --- keys ---


def space_of(name: str) -> str:
    """Return the name of a database's space."""
    return f"{REGISTRY}/{name}"


def row_key(sequence: Sequence) -> bytes:
    """Return the key of a row."""
    return ROW_PREFIX + pack(sequence)


def key_after(sequence: Sequence) -> bytes:
    """Return the first key after a row."""
    return row_key(sequence) + b"\x00"


def winner_key(id: str) -> bytes:
    """Return the key of a document's winner."""
    return WINNER_PREFIX + pack((id,))


def leaves_range(id: str) -> tuple[bytes, bytes]:
    """Return the range of the leaves other than the winner."""
    return range_of((REVISIONS, id))


def body_key(id: str, revision: Revision) -> bytes:
    """Return the key of a leaf's body."""
    position, hash = revision
    # the usual case, in a third of the time
    if position < 256 and b"\0" not in hash and "\0" not in id:
        return b"%b\x02%b\x00\x15%c\x01%b\x00" % (_BODY_PREFIX, id.encode(), position, hash)
    return _BODY_PREFIX + pack((id, position, hash))


def named_by_body(key: bytes) -> tuple[str, Revision] | None:
    """Return the document and the revision whose body has this key; None for other keys."""
    if not key.startswith(_BODY_PREFIX):
        return None
    _, id, position, hash = unpack(key)
    return id, Revision(position, hash)


def local_key(id: str) -> bytes:
    """Return the key of a local document."""
    return pack((LOCAL, id))


def local_id(key: bytes) -> str:
    """Return the id of a local document, by its key."""
    id: str = unpack(key)[1]
    return id


def local_value(count: int, body: bytes) -> bytes:
    """Return the value of a local document that was written so often."""
    return msgpack.packb((count, body))  # type: ignore[no-any-return]


def local_of(raw: bytes) -> tuple[int, bytes]:
    """Return how often a local document was written, and its body."""
    count, body = msgpack.unpackb(raw)
    return count, body


def sequence_of(key: bytes) -> Sequence:
    """Return the sequence of a row's key. Raises `ValueError`."""
    packed = key[len(ROW_PREFIX) : -1 - STAMP_BYTES]
    incarnation = 0 if packed == _FIRST else unpack(packed)[0]
    return Sequence(incarnation, Versionstamp.from_bytes(key[-STAMP_BYTES:]))


# --- documents ---


def stored(key: bytes, id: str, tree: Tree, sequence: Sequence) -> dict[bytes, bytes]:
    """Return the keys and values of a document's revisions and of its row.

    `key` is its winner's key, which the caller has already.
    """
    winner = tree.winner
    branches, (position, hash) = len(tree.leaves), winner.revision
    ancestors = b"".join(winner.ancestors)
    head = (FORMAT, *sequence, branches, winner.not_deleted, position, hash, ancestors)
    found = _other_leaves(id, tree)
    found[key] = pack(head)
    found[row_key(sequence)] = pack((FORMAT, id, position, hash, branches, winner.not_deleted))
    return found


def keys_before(key: bytes, id: str, tree: Tree, sequence: Sequence) -> dict[bytes, bytes | None]:
    """Return the same keys, with the values that an edit may keep, and None for the rest."""
    return {key: None, row_key(sequence): None} | _other_leaves(id, tree)


def _other_leaves(id: str, tree: Tree) -> dict[bytes, bytes]:
    found = {
        pack((REVISIONS, id, *leaf.rank)): pack((FORMAT, b"".join(leaf.ancestors)))
        for leaf in tree.leaves[1:]
    }
    if not tree.winner.not_deleted:
        found[pack((DELETED, id))] = b""
    return found


def row_of(key: bytes, value: bytes) -> ChangeRow:
    """Return the row of a key and a value. Raises `CorruptStoreError`."""
    try:
        if usual := _USUAL_ROW.fullmatch(value):  # the usual case, in a third of the time
            name, (position,), hash, (branches,), not_deleted = usual.groups()
            return ChangeRow(
                sequence_of(key),
                name.decode(),
                Revision(position, _unescaped(hash)),
                branches,
                not_deleted == b"\x27",
            )
        format, id, position, hash, branches, not_deleted = unpack(value)
        _check_format(format)
        return ChangeRow(sequence_of(key), id, Revision(position, hash), branches, not_deleted)
    except (ValueError, TypeError) as e:
        raise CorruptStoreError(f"the row {key.hex()} cannot be read: {e}") from e


def winner_of(raw: bytes) -> Winner:
    """Return the winner of a value. Raises `CorruptStoreError`."""
    try:
        format, incarnation, stamp, branches, not_deleted, position, hash, path = unpack(raw)
        _check_format(format)
        assert isinstance(stamp, Versionstamp)
        leaf = Leaf(not_deleted, Revision(position, hash), _hashes(path))
        return Winner(Sequence(incarnation, stamp), branches, leaf)
    except (ValueError, TypeError, AssertionError) as e:
        raise CorruptStoreError(f"a document's winner cannot be read: {e}") from e


def rows_of_winners(items: Iterable[tuple[bytes, bytes]]) -> Iterator[ChangeRow]:
    """Yield the rows of the winners, from the keys and values of all revisions."""
    start = len(WINNER_PREFIX) + 1
    for key, value in items:
        usual = _USUAL_WINNER.fullmatch(value)
        # not another leaf's key, and no zero in the id
        if usual and key.find(0, start) == len(key) - 1:
            stamp, (branches,), not_deleted, (position,), hash = usual.groups()
            yield ChangeRow(
                Sequence(0, Versionstamp.from_bytes(stamp)),
                key[start:-1].decode(),
                Revision(position, _unescaped(hash)),
                branches,
                not_deleted == b"\x27",
            )
            continue
        elements = unpack(key)
        if len(elements) == 2:
            yield winner_of(value).row(elements[1])


def revs_of_winners(items: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, str]]:
    """Yield the id and the revision of each document that is not deleted, as `rows_of_winners`."""
    start = len(WINNER_PREFIX) + 1
    for key, value in items:
        usual = _USUAL_WINNER.fullmatch(value)
        if usual and key.find(0, start) == len(key) - 1:
            _, _, not_deleted, (position,), hash = usual.groups()
            if not_deleted == b"\x27":
                yield key[start:-1].decode(), f"{position}-{_unescaped(hash).hex()}"
            continue
        for row in rows_of_winners([(key, value)]):
            if row.not_deleted:
                yield row.id, str(row.revision)


def leaf_of(key: bytes, value: bytes) -> Leaf:
    """Return a leaf other than the winner. Raises `CorruptStoreError`."""
    try:
        _, _, not_deleted, position, hash = unpack(key)
        format, path = unpack(value)
        _check_format(format)
        return Leaf(not_deleted, Revision(position, hash), _hashes(path))
    except (ValueError, TypeError) as e:
        raise CorruptStoreError(f"the revision {key.hex()} cannot be read: {e}") from e


def _unescaped(packed: bytes) -> bytes:
    return packed if len(packed) == HASH_BYTES else packed.replace(b"\0\xff", b"\0")


def _hashes(path: bytes) -> tuple[bytes, ...]:
    return tuple(path[at : at + HASH_BYTES] for at in range(0, len(path), HASH_BYTES))


def _check_format(format: Any) -> None:
    if format != FORMAT:
        raise ValueError(f"format {format}, not {FORMAT}")
