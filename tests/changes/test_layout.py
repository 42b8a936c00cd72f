"""Rows as they are stored: written by one module, taken apart in two ways."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdcmeta import Sequence, Versionstamp
from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database_layout import ChangeRow
from cdcmeta.changes.revisions import Leaf, Revision, Tree
from snapkv.errors import CorruptStoreError
from snapkv.tuples import pack

KEY = layout.row_key(Sequence(0, Versionstamp(1 << 60, 2, 3)))
hashes = st.binary(min_size=16, max_size=16) | st.just(bytes(16)) | st.just(b"\xff" * 16)
numbers = st.integers(1, 300) | st.integers(1, 2**63 - 1)
incarnations = st.integers(0, 300) | st.integers(0, 2**32 - 1)
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(incarnations, ids, numbers, hashes, st.booleans(), st.integers(0, 2))
@example(0, "a", 255, b"h" * 16, True, 0)  # the last of the short form
@example(0, "a", 256, b"h" * 16, True, 0)
def test_a_row_is_read_as_it_was_written(incarnation, id, position, hash, not_deleted, others):
    sequence = Sequence(incarnation, Versionstamp(1 << 60, 2, 3))
    leaf = Leaf(not_deleted, Revision(position, hash))
    tree = Tree((leaf, *[Leaf(False, Revision(1, bytes([n] * 16))) for n in range(others)]))
    key = layout.row_key(sequence)
    row = layout.row_of(key, layout.stored(b"winner", id, tree, sequence)[key])
    assert row == ChangeRow(sequence, id, Revision(position, hash), 1 + others, not_deleted)
    assert [type(each) for each in row] == [Sequence, str, Revision, int, bool]


ROW = (0, "id", 1, b"h" * 16, 1, True)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        pack((1, *ROW[1:])),  # another format
        pack(ROW[:-1]),
        pack((*ROW, 0)),
        pack(ROW).replace(b"id", b"\xff\xfe"),  # no UTF-8
        pack(ROW).replace(b"\x15\x01\x01h", b"\x15\x00\x01h"),  # 0 in a longer form
        b"\x00" + pack(ROW),
    ],
)
def test_what_is_no_row_is_told(value):
    assert layout.row_of(KEY, pack(ROW)).id == "id"
    with pytest.raises(CorruptStoreError, match=KEY.hex()):
        layout.row_of(KEY, value)
