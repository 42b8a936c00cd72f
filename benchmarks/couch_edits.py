"""What does an edit of a document cost, beside one load and one commit of the same keys?"""

import snapkv
from benchmarks.harness import Rival, Row, measure, report
from benchmarks.servers import DURABLE, server_facts
from cdcmeta import ChangesDB

DOCS, BULK = 1_000, 500
ROUNDS, WARMUP = 1_000, 50


def main() -> None:
    """Update documents of about 300 bytes one by one, and 500 at once."""
    tables = {}
    for name, opened in DURABLE.items():
        with opened() as store:
            db = ChangesDB(store, "bench").create()
            tables[f"one update, {name}"] = _updates(store, db)
            tables[f"{BULK} inserts, {name} (per document)"] = _bulks(db, name)
    notes = (
        f"{server_facts()} The floor does by hand what the edit does: load the winner's key, then "
        "commit the same puts and removals under the same two guards, with values of the same "
        "size. It plans nothing, and builds no JSON. lmdb is durable."
    )
    report("couch_edits", "What does an edit of a document cost?", tables, notes)


def document(number: int, version: int) -> dict[str, object]:
    columns = [{"name": f"column_{n}", "type": "bigint", "v": version} for n in range(6)]
    return {"_id": f"table/{number:05d}", "columns": columns, "version": version}


def _updates(store: snapkv.SnapshotKV, db: ChangesDB) -> list[Row]:
    revs = {each.id: each.rev for each in db.bulk(document(n, 0) for n in range(DOCS))}
    docs = [document(i % DOCS, i + 1) for i in range(ROUNDS + WARMUP)]  # the floor builds none

    def update(i: int) -> None:
        doc = docs[i]
        revs[doc["_id"]] = db.put(doc, rev=revs[doc["_id"]]).rev

    bare = store.space("bare")
    body = bytes(330)  # of the same size as the document's JSON
    bare.commit(puts={b"db": bytes(60)})
    record = bare.entry(b"db").revision
    for n in range(DOCS):
        bare.commit(puts={_key(b"winner", n): bytes(60), _key(b"body", n): body})

    def by_hand(i: int) -> None:
        n = i % DOCS
        head = bare.entry(_key(b"winner", n))
        guards = [snapkv.AtRevision(_key(b"winner", n), head.revision)]
        guards.append(snapkv.AtRevision(b"db", record))
        puts = {_key(b"winner", n): bytes(76), _key(b"row%d" % i, n): bytes(50)}
        puts[_key(b"body%d" % i, n)] = body
        gone = [_key(b"row%d" % (i - DOCS), n), _key(b"body%d" % (i - DOCS), n)]
        bare.commit(puts=puts, deletes=gone, guards=guards)

    rivals = [Rival("one load and one commit (floor)", by_hand), Rival("put", update)]
    return measure(rivals, rounds=ROUNDS, warmup=WARMUP)


def _key(kind: bytes, number: int) -> bytes:
    return b"%s/table/%05d/%s" % (kind, number, bytes(20))


def _bulks(db: ChangesDB, name: str) -> list[Row]:
    def singles(i: int) -> None:
        for n in range(BULK):
            db.put(document(n, i) | {"_id": f"s{i}/{n}"})

    def bulk(i: int) -> None:
        found = db.bulk(document(n, i) | {"_id": f"b{i}/{n}"} for n in range(BULK))
        assert all(each.ok for each in found)

    rivals = [Rival(f"{BULK} times put (floor)", singles), Rival("bulk", bulk)]
    rows = measure(rivals, rounds=8, warmup=1)
    return [row.per(BULK) for row in rows]
