"""The records of changefeeds, in a space of a store: keys and JSON values.

| key | value | written by |
|---|---|---|
| `feed/<id>` | a changefeed; its revision is the changefeed's epoch | operators |
| `checkpoint/<id>` | how far it is: `Watermarks` | the owner |
| `place/<id>/<table>` | the capture that replicates a table, and why | the owner |
| `ask/<id>/<what>/<table>` | a request: `move`, `rebalance` | operators; the owner removes it |
| `drain/<capture>` | a capture that is to be drained | operators; the owner removes it |
| `evicted/<session>` | a capture that may still write for a while | the owner |
| `report/<capture>` | what a capture's tables do, and their errors | the capture |

The owner's writes are guarded by its election, a capture's report by its session. Ids and names of
captures are short; tables are any text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core.watermarks import Watermarks
from snapkv.errors import CorruptStoreError
from snapkv.times import TIMESTAMP_MAX

RUNNING, PAUSED, FAILED = "running", "paused", "failed"
STATES = (RUNNING, PAUSED, FAILED)
WHOLE = "*"
"""The name of a table that is the whole store: tables have names."""
FEED, CHECKPOINT, PLACE, ASK = b"feed/", b"checkpoint/", b"place/", b"ask/"
DRAIN, EVICTED, REPORT = b"drain/", b"evicted/", b"report/"
TABLES_MAX = 200_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Changefeed:
    """What is replicated from where to where.

    `prefixes` are the tables; none is the beginning of another. Changes after `start` are
    replicated; with `with_state`, the keys as of `start` come first. `epoch` is the revision of the
    record, 0 in one that is not stored.
    """

    id: str
    source: str
    sink: str
    prefixes: tuple[str, ...]
    start: int
    source_name: str = "default"
    sink_name: str = "default"
    with_state: bool = False
    state: str = RUNNING
    error: str | None = None
    epoch: int = 0

    def tables(self) -> dict[str, str]:
        """Return the prefix of each table, by the table's name."""
        return {prefix or WHOLE: prefix for prefix in self.prefixes}

    @property
    def first_checkpoint(self) -> int:
        """The checkpoint before anything is replicated."""
        return max(1, self.start - 1 if self.with_state else self.start)

    def encode(self) -> bytes:
        """Return the record."""
        kept = asdict(self)
        del kept["epoch"], kept["id"]
        return _encoded(kept)

    def check(self) -> None:
        """Raise `InvalidArgumentError` for values that no changefeed has."""
        check_name("a changefeed", self.id)
        for what, text in (("source", self.source), ("sink", self.sink)):
            if not isinstance(text, str) or not text:
                raise InvalidArgumentError(f"the {what} of a changefeed is a URL, not {text!r}")
        if self.sink.startswith("couch+") and "@" in self.sink:
            raise InvalidArgumentError(
                "the login of a CouchDB is not in its URL: give each capture CDCMETA_SINK_USER and "
                "CDCMETA_SINK_PASSWORD"
            )
        if (self.source, self.source_name) == (self.sink, self.sink_name):
            raise InvalidArgumentError(f"source and sink are the same store: {self.source}")
        if type(self.start) is not int or not 0 <= self.start <= TIMESTAMP_MAX:
            raise InvalidArgumentError(f"start is a timestamp, not {self.start!r}")
        if self.state not in STATES:
            raise InvalidArgumentError(f"a state is one of {', '.join(STATES)}: {self.state!r}")
        check_prefixes(self.prefixes)


class Placement(NamedTuple):
    """Which capture replicates a table, None for none, and why."""

    table: str
    capture: str | None
    why: str
    ts: int = 0
    """The timestamp of the commit that wrote it."""


class Registration(NamedTuple):
    """The value of a capture's session."""

    cluster: str
    label: str
    address: str
    ttl_s: float

    def encode(self) -> bytes:
        """Return the value."""
        return _encoded({"capture": list(self)})

    @classmethod
    def decode(cls, raw: bytes) -> Registration | None:
        """Return the registration in a session's value, None in one of another kind."""
        try:
            cluster, label, address, ttl_s = json.loads(raw)["capture"]
            return cls(str(cluster), str(label), str(address), float(ttl_s))
        except (ValueError, KeyError, TypeError):
            return None


def space_of(cluster: str) -> str:
    """Return the name of a cluster's space."""
    return f"scheduler/{cluster}"


def capture_name(label: str, session: int) -> str:
    """Return the name of a capture: no two processes, and no two registrations of one, share it."""
    return f"{label}-{session:x}"


def owner_name(capture: str) -> str:
    """Return the name of a capture's owner, as the receiver of messages."""
    return capture + "#owner"


def capture_of(name: str) -> str:
    """Return the capture that a receiver of messages belongs to."""
    return name.removesuffix("#owner")


def check_name(of_what: str, name: object) -> None:
    """Raise `InvalidArgumentError` for a name that is not short and plain."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"the name of {of_what} is up to 64 letters, digits, '_', '.', '-', not {name!r}"
        )


def check_prefixes(prefixes: tuple[str, ...]) -> None:
    """Raise `InvalidArgumentError` unless the prefixes are texts that exclude each other."""
    if not isinstance(prefixes, tuple) or not 1 <= len(prefixes) <= TABLES_MAX:
        raise InvalidArgumentError(f"give 1 to {TABLES_MAX:,} prefixes")
    for prefix in prefixes:
        if not isinstance(prefix, str) or prefix == WHOLE:
            raise InvalidArgumentError(f"a prefix is a text other than {WHOLE!r}, not {prefix!r}")
    ordered = sorted(prefixes)
    for before, after in pairwise(ordered):
        if after.startswith(before):
            raise InvalidArgumentError(
                f"the prefix {after!r} begins with {before!r}: each key belongs to one table"
            )


def feed_of(key: bytes, raw: bytes, revision: int) -> Changefeed:
    """Return a changefeed from its record. Raises `CorruptStoreError`."""
    known = {each.name for each in fields(Changefeed)}
    try:
        found = {name: value for name, value in _decoded(raw).items() if name in known}
        found["prefixes"] = tuple(found["prefixes"])
        id = key.removeprefix(FEED).decode()
        feed = Changefeed(id, **found, epoch=revision)
        feed.check()
    except (ValueError, TypeError, KeyError) as e:
        raise CorruptStoreError(f"{key!r} is not a changefeed: {e}") from e
    return feed


def encoded_watermarks(watermarks: Watermarks) -> bytes:
    """Return the record of a checkpoint."""
    return _encoded(watermarks._asdict())


def watermarks_of(raw: bytes) -> Watermarks:
    """Return a checkpoint from its record."""
    found = _decoded(raw)
    return Watermarks(found["checkpoint"], found["resolved"], found["synced"])


def place_key(feed: str, table: str) -> bytes:
    """Return the key of a table's placement."""
    return PLACE + feed.encode() + b"/" + table.encode()


def encoded_place(capture: str | None, why: str) -> bytes:
    """Return the record of a placement."""
    return _encoded({"capture": capture, "why": why})


def place_of(key: bytes, raw: bytes, ts: int = 0) -> Placement:
    """Return a placement from its record."""
    found = _decoded(raw)
    table = key.removeprefix(PLACE).split(b"/", 1)[1].decode()
    return Placement(table, found["capture"], found["why"], ts)


def ask_key(feed: str, what: str, table: str = "") -> bytes:
    """Return the key of an operator's request."""
    return b"/".join([ASK + feed.encode(), what.encode(), table.encode()])


def encoded(value: Mapping[str, Any]) -> bytes:
    """Return a record that has no type of its own."""
    return _encoded(value)


def decoded(raw: bytes) -> dict[str, Any]:
    """Return such a record. Raises `CorruptStoreError`."""
    return _decoded(raw)


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError as e:
        raise CorruptStoreError(f"not a record of a changefeed: {raw[:60]!r}") from e
    if not isinstance(found, dict):
        raise CorruptStoreError(f"not a record of a changefeed: {raw[:60]!r}")
    return found
