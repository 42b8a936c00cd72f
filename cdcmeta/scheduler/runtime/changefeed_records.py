"""The records of changefeeds, in a space of a store: keys and JSON values.

| key | value | written by |
|---|---|---|
| `feed/<id>` | a changefeed; its revision is the changefeed's epoch | operators |
| `checkpoint/<id>` | how far it is: `Watermarks`, and the changefeed's `created` | the owner |
| `place/<id>/<table>` | the capture that replicates a table, and why | the owner |
| `ask/<id>/<what>/<table>` | a request: `move`, `rebalance` | operators; the owner removes it |
| `drain/<capture>` | a capture that is to be drained | operators; the owner removes it |
| `evicted/<session>` | a capture that may still write for a while | the owner |
| `report/<capture>` | what a capture's tables do, and their errors | the capture |

The owner's writes are guarded by its election, a capture's report by its session. Ids and names of
captures are short; tables are any text. A table begins at the changefeed's checkpoint, unless an
update has put it in: then the record of the changefeed says where (`begins`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

from cdcmeta.argument_checks import checked_database_name
from cdcmeta.errors import InvalidArgumentError, InvalidNameError
from cdcmeta.scheduler.core.watermarks import Watermarks
from cdcmeta.scheduler.executors.contracts import NAME_IN_URL, WHOLE
from snapkv import SessionInfo
from snapkv.errors import CorruptStoreError
from snapkv.times import TIMESTAMP_MAX

RUNNING, PAUSED = "running", "paused"
STATES = (RUNNING, PAUSED)
FEED, CHECKPOINT, PLACE, ASK = b"feed/", b"checkpoint/", b"place/", b"ask/"
DRAIN, EVICTED, REPORT = b"drain/", b"evicted/", b"report/"
TABLES_MAX = 200_000
RANGES_MAX = 1_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Begin(NamedTuple):
    """Where a table begins that an update has put into a changefeed."""

    checkpoint: int
    state_at: int = 0
    """The timestamp of the state that comes first; 0 without one."""


@dataclass(frozen=True, slots=True)
class Changefeed:
    """What is replicated from where to where.

    The tables are `prefixes` of keys, none the beginning of another, or `databases`, or `ranges`
    equal parts of a CDC `log`. Changes after `start` are replicated; with `with_state`, the tables
    as of `start` come first. `epoch` is the revision of the record, and `created` the first one,
    which it keeps until it is removed; both are 0 in one that is not stored.

    `begins` has the tables that an update has put in, while they are behind the checkpoint, and
    `stopped` up to where those are in the sink that were taken out.
    """

    id: str
    source: str
    sink: str
    prefixes: tuple[str, ...]
    start: int
    source_name: str = "default"
    sink_name: str = "default"
    with_state: bool = False
    databases: tuple[str, ...] = ()
    log: str | None = None
    ranges: int = 0
    state: str = RUNNING
    epoch: int = 0
    created: int = 0
    begins: Mapping[str, Begin] = field(default_factory=dict, hash=False)
    stopped: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def sink_key(self) -> tuple[str, str]:
        """What the sink is known by."""
        return self.sink, self.sink_name

    def tables(self) -> tuple[str, ...]:
        """Return the names of its tables."""
        if self.log is not None:
            return tuple(f"{self.log}:{number}/{self.ranges}" for number in range(self.ranges))
        return self.databases or tuple(prefix or WHOLE for prefix in self.prefixes)

    @property
    def first_checkpoint(self) -> int:
        """The checkpoint before anything is replicated."""
        if self.with_state and self.log is not None:
            return 1  # a log has its rows: they are read as the commits that wrote them
        return max(1, self.start - 1 if self.with_state else self.start)

    @property
    def state_at(self) -> int:
        """The timestamp of the state that comes first; 0 without one."""
        return self.start if self.with_state and self.log is None else 0

    def encode(self) -> bytes:
        """Return the record."""
        kept = asdict(self)
        del kept["epoch"], kept["created"], kept["id"]
        for name in ("begins", "stopped"):
            if not kept[name]:
                del kept[name]
        return encoded(kept)

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
        self._check_tables()

    def _check_tables(self) -> None:
        if sum(map(bool, (self.prefixes, self.databases, self.log is not None))) != 1:
            raise InvalidArgumentError(
                "the tables of a changefeed are prefixes, databases, or the ranges of one log: "
                "give one of them"
            )
        if self.prefixes:
            check_prefixes(self.prefixes)
        elif self.sink.startswith("record+"):
            raise InvalidArgumentError(
                f"the sink {self.sink} records keys with their times: give it prefixes as tables"
            )
        if self.log is not None:
            check_ranges(self.log, self.ranges)
        if self.databases:
            check_databases(self.databases, self.sink)


class StoredCheckpoint(NamedTuple):
    """The stored progress of a changefeed."""

    watermarks: Watermarks
    created: int | None
    """`Changefeed.created`; None in a record of an earlier version."""
    epoch: int | None
    """The `Changefeed.epoch` whose tables have all passed it; None if it has no `begins`."""

    def is_of(self, feed: Changefeed) -> bool:
        """Return whether it is this changefeed's: an owner may write a removed one's late."""
        return self.created in (None, feed.created)


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
        return encoded({"capture": list(self)})

    @classmethod
    def decode(cls, raw: bytes) -> Registration | None:
        """Return the registration in a session's value, None in one of another kind."""
        try:
            cluster, label, address, ttl_s = json.loads(raw)["capture"]
            return cls(str(cluster), str(label), str(address), float(ttl_s))
        except (ValueError, KeyError, TypeError):
            return None


class Registered(NamedTuple):
    """A capture that is registered, or that may still write: its session, and what it says."""

    session: SessionInfo
    said: Registration

    @property
    def name(self) -> str:
        """The name of the capture."""
        return capture_name(self.said.label, self.session.id)


def registered(sessions: Iterable[SessionInfo], cluster: str) -> dict[str, Registered]:
    """Return the captures of a cluster by name."""
    said = ((session, Registration.decode(session.value)) for session in sessions)
    found = [Registered(each, own) for each, own in said if own and own.cluster == cluster]
    return {each.name: each for each in found}


def space_of(cluster: str) -> str:
    """Return the name of a cluster's space."""
    return f"scheduler/{cluster}"


def capture_name(label: str, session: int) -> str:
    """Return the name of a capture: no two processes, and no two registrations of one, share it."""
    return f"{label}-{session:x}"


def label_of(name: str) -> str:
    """Return the label in the name of a capture."""
    return name.rpartition("-")[0] or name


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


def check_ranges(log: str, ranges: int) -> None:
    """Raise `InvalidArgumentError` for a log without a name, and for too many ranges."""
    if not isinstance(log, str) or not log:
        raise InvalidArgumentError(f"a log has a name, not {log!r}")
    if type(ranges) is not int or not 1 <= ranges <= RANGES_MAX:
        raise InvalidArgumentError(f"give 1 to {RANGES_MAX:,} ranges of a log, not {ranges!r}")


def check_databases(names: tuple[str, ...], sink: str) -> None:
    """Raise `InvalidArgumentError` for names that no databases have, and for a sink of only one."""
    if not isinstance(names, tuple) or len(names) > TABLES_MAX or len(set(names)) < len(names):
        raise InvalidArgumentError(f"give up to {TABLES_MAX:,} databases, each once")
    for name in names:
        try:
            checked_database_name(name)
        except InvalidNameError as e:
            raise InvalidArgumentError(f"a database: {e}") from e
    if sink.startswith("couch+") and len(names) > 1 and NAME_IN_URL not in sink:
        raise InvalidArgumentError(
            f"the sink of several databases has a {NAME_IN_URL!r} for the name of each, such as "
            f"couch+http://HOST:5984/copy-{NAME_IN_URL}, not {sink!r}"
        )


def feed_of(key: bytes, raw: bytes, revision: int, created: int) -> Changefeed:
    """Return a changefeed from its record, and the record's last and first revision.

    Raises `CorruptStoreError`.
    """
    known = {each.name for each in fields(Changefeed)}
    try:
        found = {name: value for name, value in decoded(raw).items() if name in known}
        for name in ("prefixes", "databases"):
            found[name] = tuple(found.get(name, ()))
        begins = found.get("begins", {})
        found["begins"] = {table: Begin(*map(int, begin)) for table, begin in begins.items()}
        id = key.removeprefix(FEED).decode()
        feed = Changefeed(id, **found, epoch=revision, created=created)
        feed.check()
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise CorruptStoreError(f"{key!r} is not a changefeed: {e}") from e
    return feed


def encoded_watermarks(watermarks: Watermarks, created: int, epoch: int | None = None) -> bytes:
    """Return the record of the checkpoint of a changefeed, which was created at a revision."""
    named = {} if epoch is None else {"epoch": epoch}
    return encoded({**watermarks._asdict(), "created": created, **named})


def checkpoint_of(raw: bytes) -> StoredCheckpoint:
    """Return a checkpoint from its record."""
    found = decoded(raw)
    watermarks = Watermarks(found["checkpoint"], found["resolved"], found["synced"])
    return StoredCheckpoint(watermarks, found.get("created"), found.get("epoch"))


def place_key(feed: str, table: str) -> bytes:
    """Return the key of a table's placement."""
    return PLACE + feed.encode() + b"/" + table.encode()


def encoded_place(capture: str | None, why: str) -> bytes:
    """Return the record of a placement."""
    return encoded({"capture": capture, "why": why})


def place_of(key: bytes, raw: bytes, ts: int = 0) -> Placement:
    """Return a placement from its record."""
    found = decoded(raw)
    table = key.removeprefix(PLACE).split(b"/", 1)[1].decode()
    return Placement(table, found["capture"], found["why"], ts)


def report_key(capture: str) -> bytes:
    """Return the key of a capture's report."""
    return REPORT + capture.encode()


def ask_key(feed: str, what: str, table: str = "") -> bytes:
    """Return the key of an operator's request."""
    return b"/".join([ASK + feed.encode(), what.encode(), table.encode()])


def encoded(value: Mapping[str, Any]) -> bytes:
    """Return a value as a record."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def decoded(raw: bytes) -> dict[str, Any]:
    """Return the value of a record. Raises `CorruptStoreError`."""
    try:
        found = json.loads(raw)
    except ValueError as e:
        raise CorruptStoreError(f"not a record of a changefeed: {raw[:60]!r}") from e
    if not isinstance(found, dict):
        raise CorruptStoreError(f"not a record of a changefeed: {raw[:60]!r}")
    return found


STOPPED_MAX = 10_000
"""The most tables that were taken out whose end a changefeed remembers."""


def stored_checkpoint(feed: Changefeed, found: StoredCheckpoint | None) -> int:
    """Return the stored checkpoint, or that before anything is replicated."""
    first = feed.first_checkpoint
    return max(found.watermarks.checkpoint, first) if found and found.is_of(feed) else first


def begins_of(feed: Changefeed, found: StoredCheckpoint | None) -> Mapping[str, Begin]:
    """Return where tables begin that have not passed the stored checkpoint, as far as is known."""
    is_passed = found is not None and found.is_of(feed) and found.epoch == feed.epoch
    return {} if is_passed else feed.begins


def floors_of(feed: Changefeed, found: StoredCheckpoint | None) -> dict[str, int]:
    """Return the checkpoints of the tables whose own one is before the stored one."""
    return {table: begin.checkpoint for table, begin in begins_of(feed, found).items()}


def updated(before: Changefeed, after: Changefeed, found: StoredCheckpoint | None) -> Changefeed:
    """Return `after` with where its tables begin; `found` is the checkpoint of `before`."""
    common, known = stored_checkpoint(before, found), begins_of(before, found)
    stopped = dict(before.stopped) if after.sink_key == before.sink_key else {}
    wanted, had = after.tables(), set(before.tables())
    for table in had.difference(wanted):
        at = known.get(table, Begin(common, before.state_at))
        stopped.pop(table, None)
        if at.checkpoint >= at.state_at and after.sink_key == before.sink_key:
            stopped[table] = at.checkpoint  # else its state is not complete: it begins anew
    begins = {table: known[table] for table in wanted if table in had and table in known}
    for table in wanted:
        if table not in had:  # also at the checkpoint: an owner may store a later one by now
            is_back = table in stopped
            begins[table] = Begin(stopped.pop(table)) if is_back else _first(after, common)
    latest = sorted(stopped.items(), key=lambda each: each[1])[-STOPPED_MAX:]
    return replace(after, begins=begins, stopped=dict(latest))


def _first(feed: Changefeed, common: int) -> Begin:
    """Return where a table begins that the changefeed never had."""
    if feed.state_at and common > feed.first_checkpoint:
        return Begin(common - 1, common)
    return Begin(feed.first_checkpoint, feed.state_at)
