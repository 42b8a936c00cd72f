"""What does listing a state cost beside a bare LMDB scan and a SQLite query?"""

import tempfile
from pathlib import Path

import lmdb
import pyarrow as pa

import snapkv
from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.stores import BE64, History, fill_lmdb, fill_snapkv, fill_sqlite

PAST_KEYS, COMMITS = 50_000, 100_000
KEYS, VERSIONS = 20_000, 10
ARROW_KEYS = 1_000_000
VALUE_BYTES = 100
START_MS = 1_700_000_000_000
GROUP = 500
GROUPED = "SELECT key, value, max(ts) FROM kv WHERE ts <= ? GROUP BY key ORDER BY key"

Lists = tuple[list[str], list[bytes]]


def main() -> None:
    """List keys of many versions and of one, and read very many of them into an Arrow table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        tables = {
            f"{PAST_KEYS:,} keys of {COMMITS:,} versions, a past state": _past(path / "past"),
            **_many_versions(path / "many"),
            f"{KEYS:,} keys of one version into two lists": _one_version(path / "one"),
            f"{ARROW_KEYS:,} keys of one version into an Arrow table": _arrow(path / "arrow"),
        }
    notes = (
        "Microseconds a listing. The flat scans read another LMDB database, with one record a "
        "key, as it stands now: they know neither versions nor revisions. SQLite's query groups "
        "the versions by key. Goals: 0.9 of SQLite's, 2.5 of the scan into lists, 1.5 of the one "
        "into a table."
    )
    report("list_as_of", "What does listing a state cost?", tables, notes)


def _written(keys: int, versions: int) -> History:
    """Return a history that writes all keys in order, then all in any order, over and over."""
    rng = seeded("list_as_of")
    names = [f"catalog/table-{i:06d}" for i in range(keys)]
    writes = []
    for version in range(versions):
        order = rng.sample(names, keys) if version else names
        for i, name in enumerate(order, version * keys):
            writes.append((snapkv.pack(START_MS + i), name, rng.randbytes(VALUE_BYTES)))
    return History(names, writes)


def _past(folder: Path) -> list[Row]:
    """Ask for the state half-way through random writes, beside a walk over all versions."""
    folder.mkdir()
    history = History.make(seeded("list_as_of"), PAST_KEYS, COMMITS)
    group = 50
    timestamp = history.writes[(PAST_KEYS + COMMITS) // 2 // group * group - 1][0]
    store = fill_snapkv(folder / "snapkv", history, group)
    env = fill_lmdb(folder / "lmdb", history)
    db = fill_sqlite(folder / "sqlite.db", history)

    def by_store(_: int) -> int:
        return len(store.load_with_prefix("", timestamp)[0])

    def by_scan(_: int) -> int:
        found, last = {}, b""
        limit = BE64.pack(2**64 - 1 - timestamp)
        with env.begin() as txn:
            for key, value in txn.cursor():
                name, newer = key[:-9], key[-8:] < limit
                if name != last and not newer:
                    found[name] = value
                    last = name
        return len(found)

    def by_query(_: int) -> int:
        return len(db.execute(GROUPED, (timestamp,)).fetchall())

    assert by_store(0) == by_scan(0) == by_query(0) == PAST_KEYS
    rows = measure(
        [
            Rival("py-lmdb scan of all versions (floor)", by_scan),
            Rival("load_with_prefix", by_store),
            Rival("SQLite grouped query", by_query),
        ],
        rounds=15,
    )
    store.close()
    env.close()
    db.close()
    return rows


def _many_versions(folder: Path) -> dict[str, list[Row]]:
    """Ask for the state half-way through, which newer versions stand before, and for now."""
    folder.mkdir()
    history = _written(KEYS, VERSIONS)
    store = fill_snapkv(folder / "snapkv", history, GROUP)
    db = fill_sqlite(folder / "sqlite.db", history)
    ends = {"half-way": KEYS * VERSIONS // 2, "now": KEYS * VERSIONS}
    tables = {}
    for name, end in ends.items():
        timestamp = history.writes[end - 1][0]  # the commit has the time of its first write

        def by_store(_: int, timestamp: int = timestamp) -> Lists:
            return store.load_with_prefix("", timestamp)

        def by_query(_: int, timestamp: int = timestamp) -> list[tuple[str, bytes, int]]:
            return db.execute(GROUPED, (timestamp,)).fetchall()

        found = by_query(0)
        assert by_store(0) == ([key for key, *_ in found], [value for _, value, _ in found])
        rivals = [Rival("SQLite grouped query", by_query), Rival("load_with_prefix", by_store)]
        title = f"{KEYS:,} keys of {VERSIONS} versions, the state {name}, into lists"
        tables[title] = measure(rivals, rounds=41)
    store.close()
    db.close()
    return tables


def _one_version(folder: Path) -> list[Row]:
    folder.mkdir()
    history = _written(KEYS, 1)
    store = fill_snapkv(folder / "snapkv", history, GROUP)
    env = _flat(folder / "flat", history)

    def by_walks(_: int) -> Lists:
        with env.begin() as txn:
            cursor = txn.cursor()
            keys = [key.decode() for key in cursor.iternext(values=False)]
            cursor.first()
            return keys, list(cursor.iternext(keys=False))

    def by_loop(_: int) -> Lists:
        keys, values = [], []
        with env.begin() as txn:
            for key, value in txn.cursor():
                keys.append(key.decode())
                values.append(value)
        return keys, values

    def by_store(_: int) -> Lists:
        return store.load_with_prefix("")

    assert by_store(0) == by_walks(0) == by_loop(0)
    rows = measure(
        [
            Rival("flat scan: keys, then values (floor)", by_walks),
            Rival("flat scan: pairs in a loop", by_loop),
            Rival("load_with_prefix", by_store),
            Rival("list(snapshot.items())", lambda _: list(store.at().items())),
            Rival("list(snapshot.keys())", lambda _: list(store.at().keys())),
        ],
        rounds=101,
    )
    store.close()
    env.close()
    return rows


def _arrow(folder: Path) -> list[Row]:
    folder.mkdir()
    history = _written(ARROW_KEYS, 1)
    store = fill_snapkv(folder / "snapkv", history, 20 * GROUP)
    env = _flat(folder / "flat", history)

    def by_scan(_: int) -> pa.Table:
        with env.begin() as txn:
            cursor = txn.cursor()
            keys = list(cursor.iternext(values=False))
            cursor.first()
            values = list(cursor.iternext(keys=False))
        return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values)})

    def by_store(_: int) -> pa.Table:
        return store.at().to_arrow()

    assert by_store(0).num_rows == by_scan(0).num_rows == ARROW_KEYS
    rows = measure(
        [Rival("flat scan (floor)", by_scan), Rival("snapshot.to_arrow()", by_store)],
        rounds=11,
        warmup=1,
    )
    store.close()
    env.close()
    return rows


def _flat(path: Path, history: History) -> lmdb.Environment:
    """Write `key -> value`, without versions."""
    env = lmdb.open(str(path), map_size=4 << 30, sync=False)
    with env.begin(write=True) as txn:
        for _, key, value in history.writes:
            txn.put(key.encode(), value)
    return env
