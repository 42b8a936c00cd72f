"""Checks of all rules of the stored bytes, in one read transaction and bounded memory."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Generator, Iterator
from typing import NamedTuple

from snapkv.engine.lmdb import client, records
from snapkv.engine.lmdb.environment import Environment, Transaction
from snapkv.engine.lmdb.leases import Leases
from snapkv.engine.lmdb.records import (
    HEADER,
    HEADER_BYTES,
    LEASE_BYTES,
    LEASED,
    REMOVED,
    STEM_END,
    SUFFIX_BYTES,
)
from snapkv.errors import SnapKVError

PROBLEMS_MAX = 100


def check(env: Environment) -> list[str]:
    """Return broken rules as texts, at most `PROBLEMS_MAX`."""
    problems: list[str] = []
    try:
        with Transaction(env) as txn:
            for problem in _problems(txn):
                problems.append(problem)
                if len(problems) == PROBLEMS_MAX:
                    break
    except SnapKVError as e:
        problems.append(f"reading failed: {e}")
    return problems


def _problems(txn: Transaction) -> Iterator[str]:
    revision, compacted, freed = txn.state[:3]
    # freeing trails compaction, compaction trails the newest revision
    if not freed <= compacted <= revision or revision < 1:
        yield f"state: revision {revision}, compacted {compacted}, freed {freed}"
    logged = yield from _log_problems(txn)
    written = yield from _record_problems(txn)
    # each change of the log has its record (checked there): so equal numbers mean each record
    # has its change
    if logged != written:
        yield f"the log has {logged} changes after revision {freed}, the records have {written}"
    yield from _lease_problems(txn)


def _log_problems(txn: Transaction) -> Generator[str, None, int]:
    """Return the number of changes after the freed revision."""
    state, changes = txn.state, 0
    expected: int | None = None
    found = txn.cursor()
    for raw, entry in txn.txn.cursor(txn.databases.log).iternext():
        at = records.from_be64(raw)
        # one entry for each revision, none missing
        if expected is not None and at != expected:
            yield f"log: revision {at} where {expected} should be"
        expected = at + 1
        # entries below the compacted revision are gone once freeing came past them
        if at < state.freed:
            yield f"log: entry of {at}, freed up to {state.freed}"
        keys = []
        for key, removed in records.decode_changes(entry):
            keys.append(key)
            if at > state.freed:
                changes += 1
                yield from _change_problems(found, key, at, removed)
        # keys ascend, none twice, none of them missing
        if not keys or any(a >= b for a, b in itertools.pairwise(keys)):
            yield f"log: keys of {at} are not ascending"
    # the log reaches from the compacted revision to the newest
    if (expected or max(state.compacted, 1) + 1) != state.revision + 1:
        yield f"log: ends before {expected}, the newest revision is {state.revision}"
    return changes


def _change_problems(found: client.Cursor, key: bytes, at: int, removed: bool) -> Iterator[str]:
    if not found.set_key(records.stem_of(key) + records.suffix_of(at)):
        yield f"{key!r}: the log has revision {at}, but no record exists"
    elif records.is_removal(found.value()) != removed:
        yield f"{key!r}: log and record of {at} disagree about a removal"


class _Version(NamedTuple):
    stem: bytes
    revision: int
    created: int
    version: int
    removed: bool


def _record_problems(txn: Transaction) -> Generator[str, None, int]:
    """Return the number of records after the freed revision."""
    state, written = txn.state, 0
    leases, leased = Leases(txn), 0
    newer: _Version | None = None
    for raw, value in txn.cursor().iternext():
        stem, suffix = raw[:-SUFFIX_BYTES], raw[-SUFFIX_BYTES:]
        # a record's key is a stem and a revision, its value begins with a header
        if len(raw) > client.MAX_KEY_BYTES or not stem.endswith(STEM_END):
            yield f"record {raw!r} has an invalid key"
            continue
        try:
            created, version, flags = HEADER.unpack_from(value)
        except struct.error:
            yield f"record {raw!r} is too short"
            continue
        this = _Version(stem, records.revision_of(suffix), created, version, bool(flags & REMOVED))
        written += this.revision > state.freed
        lease = yield from _leased(raw, value, flags)
        if lease and (newer is None or newer.stem != stem):
            leased += 1
            # a leased key is listed by its lease
            if not leases.holds(lease, records.key_of(stem)):
                yield f"{records.key_of(stem)!r}: lease {lease:x} does not list it"
        yield from _version_problems(this, state.revision)
        if newer is not None and newer.stem == stem:
            yield from _pair_problems(this, newer, state.freed)
        elif this.revision <= state.freed and this.removed:
            yield f"{records.key_of(stem)!r}: a removal at {this.revision} was not freed"
        newer = this
    # and its lease lists nothing else
    if leased != (listed := sum(1 for _ in leases.held())):
        yield f"leases list {listed} keys, {leased} have a lease"
    return written


def _leased(raw: bytes, value: bytes, flags: int) -> Generator[str, None, int]:
    """Return the lease of a record, 0 for none."""
    if not flags & LEASED:
        return 0
    # a lease's id follows the header, and a removal has none
    if flags & REMOVED or len(value) < HEADER_BYTES + LEASE_BYTES:
        yield f"record {raw!r} cannot have a lease"
        return 0
    return records.lease_of(value)


def _lease_problems(txn: Transaction) -> Iterator[str]:
    state, leases = txn.state, Leases(txn)
    # leases are in format 2 only
    found, _ = records.decode_format(txn.txn.get(records.FORMAT_KEY, db=txn.databases.meta))
    if (found == records.FORMAT) != (state.boot == 0):
        yield f"format {found}, the leases are of boot {state.boot:x}"
    # each lease has one entry at its due time, and no entry is without a lease
    turns = 0
    for due, lease in leases.by_due():
        turns += 1
        record = leases.find(lease)
        if record is None or record.due != due:
            yield f"lease {lease:x} is listed as due at {due}, its record is {record}"
        if turns == 1 and due != state.due:
            yield f"state: the next lease is due at {state.due}, it should be {due}"
    if turns == 0 and state.due:
        yield f"state: a lease is due at {state.due}, but no lease exists"
    if turns != (alive := sum(1 for _ in leases.each())):
        yield f"{alive} leases, {turns} due times"
    # keys are listed by leases that are alive
    for lease, _ in itertools.groupby(leases.held(), key=lambda pair: pair[0]):
        if leases.find(lease) is None:
            yield f"lease {lease:x} has ended but still lists keys"


def _version_problems(this: _Version, newest: int) -> Iterator[str]:
    name = f"{records.key_of(this.stem)!r}@{this.revision}"
    # no record is from the future, none from before the first commit
    if not 2 <= this.revision <= newest:
        yield f"{name}: the newest revision is {newest}"
    # a removal has neither version nor creation
    if this.removed and (this.version or this.created):
        yield f"{name}: a removal with version {this.version}"
    # the first version is the one of the creation, later ones come later
    if not this.removed and (
        this.version < 1 or (this.version == 1) != (this.created == this.revision)
    ):
        yield f"{name}: version {this.version}, created at {this.created}"


def _pair_problems(this: _Version, newer: _Version, freed: int) -> Iterator[str]:
    name = f"{records.key_of(this.stem)!r}@{newer.revision}"
    # versions count the puts since the creation
    expected = (1, newer.revision) if this.removed else (this.version + 1, this.created)
    if not newer.removed and (newer.version, newer.created) != expected:
        yield f"{name}: version {newer.version} of {newer.created}, it should be {expected}"
    # only an existing key can be removed
    if newer.removed and this.removed:
        yield f"{name}: removed twice"
    # what was superseded at or below the freed revision is gone; so is a removal there
    if newer.revision <= freed:
        yield f"{name}: {this.revision} was superseded and not freed"
    if this.removed and this.revision <= freed:
        yield f"{name}: a removal at {this.revision} was not freed"
