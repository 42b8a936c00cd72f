"""`snapkv.fleet`: where a fleet is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from snapkv.base.arguments import check_seconds
from snapkv.base.files import FilePath
from snapkv.clock import Clock, HybridClock, SystemClock
from snapkv.fleet.description import members_of
from snapkv.fleet.fleet import Fleet
from snapkv.fleet.link import AWAY
from snapkv.fleet.member import Member
from snapkv.fleet.members import Members
from snapkv.fleet.open_member import Connection
from snapkv.times import TIMESTAMP_MAX

MEMBER_TIMEOUT_S = 5.0
TIMEOUT_S_MAX = 3_600.0


def fleet(
    members: FilePath | Mapping[str, Any],
    *,
    timeout: float = MEMBER_TIMEOUT_S,
    clock: Clock | None = None,
) -> Fleet:
    """Open many stores, observed prefixes and archives, for reading all of them at one time.

    `members` is a mapping of names to what they name: the URL of a store, `s3://BUCKET/PATH` (also
    `gs://`, `az://`, `archive:FOLDER`) of an archive, an open store, or a mapping with `url` and,
    as needed, `name` (of the store), `prefix` (then the member are the keys that other programs
    write below it, at that store's ticks), `archive` (which answers what the engine does not),
    `storage`, `joined` and `left` (times), and options of the engine, as of `open`. Or it is the
    path of a TOML or JSON file with a table `members` of these, a table `defaults`, and a list
    `archives` of folders or buckets, in which each archive is a member.

    `timeout` (seconds) is what each member may take for a part of a call. A member that cannot be
    reached raises when something needs it. Members are opened now, in parallel; archives
    when they are needed.

    >>> import snapkv
    >>> with snapkv.open("memory:eu-plans") as eu, snapkv.open("memory:us-plans") as us:
    ...     first, second = eu.save("schema", b"v1"), us.save("schema", b"v2")
    ...     with snapkv.fleet({"eu": "memory:eu-plans", "us": "memory:us-plans"}) as fleet:
    ...         moment = fleet.at(first, behind="stale")
    ...         moment["eu", "schema"], moment.members["us"].state
    (b'v1', 'absent')

    Raises `InvalidFileError`, `FileMissingError`, `InvalidOptionError` (two members are one store,
    too), `InvalidTypeError`, `InvalidTimeError`; and as `open`, but for a member that cannot be
    reached. Errors about one member have its name as `member`.
    """
    hybrid = HybridClock(clock or SystemClock())
    return Fleet(opened(members_of(members, hybrid.now_ms()), timeout, hybrid.wall), hybrid)


def opened(members: Sequence[Member], timeout: float, clock: Clock) -> Members:
    """Return the members that were described, open as far as they can be reached."""
    check_seconds("timeout", timeout, above=0, most=TIMEOUT_S_MAX)
    found = Members(members, timeout, clock)
    try:
        live = [
            name
            for name, each in found.by_name.items()
            if not each.member.is_archive and each.member.has(TIMESTAMP_MAX)
        ]
        found.each(live, _open)
    except BaseException:
        found.close()
        raise
    return found


def _open(connection: Connection) -> None:
    try:
        connection.ask(lambda reads: None)
    except AWAY:
        return  # it may come back
