"""Random programs on each engine, against a model that keeps every state whole.

The model is a list of dictionaries, one for each revision, and shares no code with the library
(only the nouns of the contract, which carry no behaviour).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from conformance_driver import ALL, FIRST, Driver, take
from etcd_server import etcd_version
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapkv.engine.contract import Compare, Delete, Put, Range, Target, Txn
from snapkv.errors import CompactedError, FutureRevisionError, LeaseNotFoundError

pytestmark = pytest.mark.slow

KEYS = [b"\0", b"\0\xff", b"a", b"a\0", b"a\0\x01", b"a\x01", b"a\xff", b"ab", b"b", b"\xff\xff"]
OPERATORS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}

Row = tuple[bytes, int, int, int, int]  # value, created, modified, version, lease


def inside(key: bytes, start: bytes, end: bytes) -> bool:
    if end == b"":
        return key == start
    return start <= key if end == b"\0" else start <= key < end


class Ended(Exception):
    """A put names a lease that is not alive."""


@dataclass
class Model:
    """states[i] is what the engine held at revision `base` + i.

    Without `key_leases` the engine returns none with `keys_only`, as etcd from 3.7 on.
    """

    base: int
    key_leases: bool = True
    states: list[dict[bytes, Row]] = field(default_factory=lambda: [{}])
    events: dict[int, dict[bytes, Row | None]] = field(default_factory=dict)
    compacted: int = 0
    granted: list[int] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)

    @property
    def head(self) -> int:
        return self.base + len(self.states) - 1

    def at(self, revision: int) -> dict[bytes, Row]:
        return self.states[(revision or self.head) - self.base]

    def select(self, state: dict[bytes, Row], wanted: Range) -> tuple[list[Any], int, bool]:
        keys = sorted(k for k in state if inside(k, wanted.key, wanted.range_end))
        shown = [] if wanted.count_only else keys
        if wanted.limit:
            shown = shown[: wanted.limit]
        rows: list[tuple[Any, ...]] = [(k, *state[k]) for k in shown]
        if wanted.keys_only:
            rows = [(k, b"", *row, lease * self.key_leases) for k, _, *row, lease in rows]
        return rows, len(keys), not wanted.count_only and len(shown) < len(keys)

    def run(self, txn: Txn) -> tuple[int, Any]:
        """Return (revision, answer as nested tuples); raises `Ended`."""
        before = self.states[-1]
        after, changed = dict(before), {}
        answer = self._run(txn, before, after, changed)
        return self._installed(after, changed), answer

    def revoke(self, lease: int) -> int:
        """Return the revision."""
        self.alive.discard(lease)
        mine = [key for key, row in self.states[-1].items() if row[4] == lease]
        after = {key: row for key, row in self.states[-1].items() if key not in mine}
        return self._installed(after, dict.fromkeys(mine))

    def _installed(self, after: dict, changed: dict) -> int:
        if changed:
            self.states.append(after)
            self.events[self.head] = changed
        return self.head

    def _run(self, txn: Txn, before: dict, after: dict, changed: dict) -> Any:
        good = all(self._holds(compare, before) for compare in txn.compare)
        answers: list[Any] = []
        for op in txn.success if good else txn.failure:
            if isinstance(op, Txn):
                answers.append(self._run(op, before, after, changed))
            elif isinstance(op, Range):
                answers.append(self.select(after, op))
            elif isinstance(op, Delete):
                gone = [k for k in after if inside(k, op.key, op.range_end)]
                for key in gone:
                    del after[key]
                    changed[key] = None
                answers.append(len(gone))
            else:
                if op.lease and op.lease not in self.alive:
                    raise Ended(op.lease)
                old = after.get(op.key)
                new = self.head + 1
                created, version = (old[1], old[3]) if old else (new, 0)
                after[op.key] = changed[op.key] = (
                    op.value,
                    created,
                    new,
                    version + 1,
                    op.lease,
                )
                answers.append((op.key, *old) if old and op.prev_kv else None)
        return good, answers

    @staticmethod
    def _holds(compare: Compare, state: dict[bytes, Row]) -> bool:
        value, created, modified, version, _ = state.get(compare.key, (None, 0, 0, 0, 0))
        if compare.target is Target.VALUE:
            return value is not None and OPERATORS[compare.op](value, compare.operand)
        left = {Target.CREATE: created, Target.MOD: modified, Target.VERSION: version}
        return bool(OPERATORS[compare.op](left[compare.target], compare.operand))


def plain(result: Any) -> Any:
    """Return an engine's answer as nested tuples, like the model's."""
    names = type(result).__name__
    if names == "TxnResult":
        return result.succeeded, [plain(each) for each in result.results]
    if names == "RangeResult":
        kvs = [tuple(kv) for kv in result.kvs]
        return kvs, result.count, result.more
    if names == "DeleteResult":
        return result.deleted
    prev = result.prev
    return None if prev is None else tuple(prev)


# --- random programs -----------------------------------------------------------------------

keys = st.sampled_from(KEYS)
ends = st.one_of(st.just(b""), st.just(b"\0"), keys, st.sampled_from([b"a\0\0", b"c"]))
values = st.binary(max_size=3)
leases = st.one_of(st.just(0), st.integers(0, 3))  # the n-th that was granted; 0: none
ranges = st.builds(
    Range,
    keys,
    ends,
    revision=st.just(0),
    limit=st.integers(0, 4),
    keys_only=st.booleans(),
    count_only=st.booleans(),
)
compares = st.one_of(
    st.builds(Compare, keys, st.just(Target.VALUE), st.sampled_from(["=", "!=", "<", ">"]), values),
    st.builds(
        Compare,
        keys,
        st.sampled_from([Target.CREATE, Target.MOD, Target.VERSION]),
        st.sampled_from(["=", "!=", "<", ">"]),
        st.integers(0, 12),
    ),
)


@st.composite
def transactions(draw: Any) -> Txn:
    """Transactions that break no rule: no key is put twice, or put and deleted."""
    free = set(draw(st.lists(keys, max_size=6, unique=True)))
    taken: set[bytes] = set(free)

    def ops(depth: int) -> tuple:
        made: list[Any] = []
        for kind in draw(st.lists(st.sampled_from("pppddrn"), max_size=4 - depth)):
            if kind == "p" and free:
                key = draw(st.sampled_from(sorted(free)))
                free.discard(key)
                made.append(Put(key, draw(values), draw(st.booleans()), draw(leases)))
            elif kind == "d":
                delete = Delete(draw(keys), draw(ends))
                if not any(inside(key, delete.key, delete.range_end) for key in taken):
                    made.append(delete)
            elif kind == "r":
                made.append(draw(ranges))
            elif kind == "n" and depth < 2:
                made.append(nested(depth + 1))
        return tuple(made)

    def nested(depth: int) -> Txn:
        guards = tuple(draw(st.lists(compares, max_size=2)))
        return Txn(guards, ops(depth), ops(depth))

    return nested(0)


steps = st.one_of(
    transactions(),
    transactions(),
    transactions(),
    st.tuples(st.just("read"), st.lists(st.tuples(ranges, st.integers(0, 14)), max_size=4)),
    st.tuples(st.just("grant")),
    st.tuples(st.just("revoke"), st.integers(1, 3)),
    st.tuples(st.just("compact"), st.integers(0, 14), st.sampled_from([None, None, 0, 1])),
)


@pytest.mark.new_engine
def test_random_programs(make: Callable[[], Driver], request: pytest.FixtureRequest) -> None:
    """On etcd a quarter of them, as each takes ten times as long there."""
    engine = request.node.callspec.params["make"]
    examples = settings.default.max_examples // (4 if engine == "etcd" else 1)
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]

    @settings(max_examples=examples, suppress_health_check=slow)
    @given(program=st.lists(steps, min_size=1, max_size=14), start=st.integers(0, 14))
    def run(program: list[Any], start: int) -> None:
        db = make()
        try:
            play_program(db, program, start)
        finally:
            db.finish()

    run()


def play_program(db: Driver, program: list[Any], start: int) -> None:
    model = Model(db.head(), key_leases=not db.engine.remote or etcd_version() < (3, 7, 0))
    play(db, model, ("grant",))
    play(db, model, ("grant",))
    for step in program:
        play(db, model, step)
    for revision in range(max(model.base, model.compacted), model.head + 1):
        compare_state(db, model, revision)
    compare_watch(db, model, max(start + model.base, model.compacted, 1))


def play(db: Driver, model: Model, step: Any) -> None:
    if isinstance(step, Txn):
        play_txn(db, model, named(step, model.granted))
    elif step[0] == "grant":
        model.granted.append(db.grant())
        model.alive.add(model.granted[-1])
    elif step[0] == "revoke":
        lease = nth(model.granted, step[1])
        db.revoke(lease or NEVER_GRANTED)
        assert db.head() == model.revoke(lease or NEVER_GRANTED)
    elif step[0] == "read":
        play_read(
            db, model, [wanted._replace(revision=r and r + model.base - 1) for wanted, r in step[1]]
        )
    else:
        play_compact(db, model, step[1] + model.base - 1, step[2])


NEVER_GRANTED = 987_654_321


def nth(granted: list[int], number: int) -> int:
    """Return the n-th lease, 0 when there are not so many."""
    return granted[number - 1] if 0 < number <= len(granted) else 0


def named(txn: Txn, granted: list[int]) -> Txn:
    """Return a transaction with the ids of leases in place of their numbers."""

    def ops(given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            named(op, granted)
            if isinstance(op, Txn)
            else op._replace(lease=nth(granted, op.lease))
            if isinstance(op, Put)
            else op
            for op in given
        )

    return Txn(txn.compare, ops(txn.success), ops(txn.failure))


def play_txn(db: Driver, model: Model, txn: Txn) -> None:
    head = model.head
    try:
        expected = model.run(txn)
    except Ended as e:
        ended = e.args[0]
    else:
        result = db.run(txn)
        assert (result.header.revision, plain(result)) == expected
        return
    error = db.refused(txn)
    assert isinstance(error, LeaseNotFoundError)
    leases = {op.lease for op in puts_of(txn)} - {0}
    assert ended in leases
    assert error.lease in leases, "etcd does not tell which of several"
    assert db.head() == head


def puts_of(txn: Txn) -> Iterator[Put]:
    """Yield all puts of a transaction, whichever branch they are in."""
    for op in (*txn.success, *txn.failure):
        if isinstance(op, Txn):
            yield from puts_of(op)
        elif isinstance(op, Put):
            yield op


def refusal(model: Model, revision: int) -> type[Exception] | None:
    if revision > model.head:
        return FutureRevisionError
    return CompactedError if revision < model.compacted else None


def play_read(db: Driver, model: Model, wanted: list[Range]) -> None:
    errors = {e for each in wanted if each.revision and (e := refusal(model, each.revision))}
    if errors:
        with pytest.raises(tuple(errors)):
            db.engine.read(wanted)
        for each in wanted:
            if each.revision and (error := refusal(model, each.revision)):
                with pytest.raises(error):
                    db.engine.get(each.key, each.revision)
        return
    wanted = [each for each in wanted if each.revision == 0 or each.revision >= model.base]
    answer = db.engine.read(wanted)
    assert answer.header.revision == model.head
    expected = [model.select(model.at(each.revision), each) for each in wanted]
    assert [plain(result) for result in answer.results] == expected


def play_compact(db: Driver, model: Model, revision: int, batches: int | None) -> None:
    if revision < 1:
        return
    if error := refusal(model, revision):
        with pytest.raises(error):
            db.engine.compact(revision, batches=batches)
        return
    db.engine.compact(revision, batches=batches)
    model.compacted = revision
    assert db.engine.check() == []


def compare_state(db: Driver, model: Model, revision: int) -> None:
    everything = Range(FIRST, ALL, revision)
    expected = model.select(model.at(revision), everything)
    assert plain(db.engine.read([everything]).results[0]) == expected
    scanned = [kv for page in db.engine.scan(FIRST, ALL, revision=revision) for kv in page]
    assert [tuple(kv) for kv in scanned] == expected[0]
    for keys_only in (False, True):
        pages = list(db.engine.pairs(FIRST, ALL, revision=revision, keys_only=keys_only))
        values = [value for page in pages for value in page.values]
        assert [key for page in pages for key in page.keys] == [kv.key for kv in scanned]
        assert values == ([] if keys_only else [kv.value for kv in scanned])
    pieces = db.engine.pieces(FIRST, ALL, revision=revision, rows=2)
    parts = [db.range(piece.key, piece.range_end, revision=revision).kvs for piece in pieces]
    assert [tuple(kv) for part in parts for kv in part] == expected[0]
    for key in KEYS:
        point = Range(key, b"", revision)
        found = db.engine.read([point]).results[0]
        assert plain(found) == model.select(model.at(revision), point)
        got = db.engine.get(key, revision)
        assert got.header.revision == model.head
        assert [tuple(kv) for kv in (got.kv,) if kv is not None] == [tuple(kv) for kv in found.kvs]


def compare_watch(db: Driver, model: Model, start: int) -> None:
    if start > model.head:
        return
    found = [
        (
            batch.revision,
            {e.kv.key: None if e.is_delete else tuple(e.kv[1:]) for e in batch.events},
        )
        for batch in take(db.watch(start), model.head)
    ]
    assert found == [item for item in sorted(model.events.items()) if item[0] >= start]
