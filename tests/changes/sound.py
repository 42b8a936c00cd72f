"""What must hold of every stored database, read key by key past the library."""

from cdcmeta import ChangesDB
from cdcmeta.changes import database_layout as layout
from snapkv.errors import StoreClosedError
from snapkv.tuples import unpack


def assert_database_sound(db: ChangesDB) -> None:
    """Check that index, revisions, bodies and tombstones say the same, and nothing more."""
    try:
        if not db.exists():
            return
    except StoreClosedError:
        return
    found: dict[str, dict[tuple, bytes]] = {}
    for key, value in db.state().snapshot.items():
        kind, *rest = unpack(key)
        found.setdefault(kind, {})[tuple(rest)] = value
    rows = {row.id: row for row in (layout.row_of(key, value) for key, value in _rows(db))}
    assert len(rows) == len(found.get("changes", {})), "each document has one row"
    winners = {key[0]: value for key, value in found.get("revisions", {}).items() if len(key) == 1}
    assert winners.keys() == rows.keys()
    bodies, tombs = set(found.get("docs", {})), {key[0] for key in found.get("deleted", {})}
    state = db.state()
    leaves = set()
    for id, raw in winners.items():
        winner = layout.winner_of(raw)
        tree = state.tree(id, winner)
        row = rows[id]
        assert row.sequence == winner.sequence
        assert (row.revision, row.not_deleted) == (tree.winner.revision, tree.winner.not_deleted)
        assert row.branches == len(tree.leaves) == winner.branches
        assert (id in tombs) == (not row.not_deleted)
        leaves |= {(id, *leaf.revision) for leaf in tree.leaves}
    assert bodies == leaves, "a body for each leaf, and for nothing else"


def _rows(db: ChangesDB):
    return db.state().snapshot.items(layout.ROW_PREFIX)
