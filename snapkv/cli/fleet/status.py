"""The command fleet status: whether each member answers, and up to when it is final."""

from __future__ import annotations

from snapkv.cli.fleet.notices import duration_text, lag_s
from snapkv.cli.fleet.options import FleetOptions, of_fleet
from snapkv.cli.formats import Json, time_json
from snapkv.cli.options import StoreOptions, takes
from snapkv.cli.output import Output
from snapkv.cli.terminal import Part
from snapkv.clock import SystemClock
from snapkv.fleet.member import Member
from snapkv.fleet.status import FleetStatus, MemberStatus, status_of
from snapkv.times import TIMESTAMP_MAX, pack

_STYLES = {"live": "green", "archive": "green", "behind": "yellow", "missing": "red"}
STATE_WIDTH = 7


@takes("no_pager", "raw", store=False)
@of_fleet("file", "members", "timeout")
def status(options: StoreOptions, chosen: FleetOptions) -> None:
    """Print each member: state, up to when it is final, how long ago that is, where it is, why not.

    And the newest times that are final on all members, and on 99% of them.
    """
    headings = ("MEMBER", "STATE", "FINAL", "LAG", "WHERE", "ERROR")
    with options.long_output(*headings) as out, chosen.opened() as opened:
        found = status_of(opened.members, pack(SystemClock().now_ms()))
        width = 0 if out.format == "table" else max(map(len, [*opened.members.by_name, "(all)"]))
        for each in found.members:
            _write_member(out, each, width)
        _write_resolved(out, found, width)


def _write_member(out: Output, each: MemberStatus, width: int) -> None:
    member, known = each.member, each.final or None
    late = None if known is None else lag_s(known)
    out.record(
        {
            "member": member.name,
            "state": each.state,
            "final": time_json(known),
            "lag_s": None if late is None else round(late, 3),
            **_place_json(member),
            "error": each.error,
        },
        member.name.ljust(width),
        (each.state.ljust(STATE_WIDTH if width else 0), _STYLES.get(each.state, "dim")),
        out.time(known),
        "-" if late is None else duration_text(late),
        _place_text(member),
        None if each.error is None else (each.error, "red"),
    )


def _place_json(member: Member) -> Json:
    return {
        "url": member.url,
        "name": member.store_name,
        "prefix": member.prefix,
        "archive": member.archive,
        "joined": time_json(member.joined or None),
        "left": time_json(None if member.left == TIMESTAMP_MAX else member.left),
    }


def _place_text(member: Member) -> str:
    """Return where a member is, for people."""
    parts = [member.url]
    if member.prefix is not None:
        parts.append(f"keys {member.prefix!r}")
    if member.archive is not None:
        parts.append(f"archive {member.archive}")
    return ", ".join(parts)


def _write_resolved(out: Output, found: FleetStatus, width: int) -> None:
    if out.structured:
        resolved = {
            of: {**time_json(each), "lag_s": None if each is None else round(lag_s(each), 3)}
            for of, each in found.resolved.items()
        }
        out.record({"resolved": resolved})
        return
    for of, newest in found.resolved.items():
        state: Part = ("final", "bold") if width == 0 else ("final".ljust(STATE_WIDTH), "bold")
        late = "-" if newest is None else duration_text(lag_s(newest))
        out.record({}, f"({of})".ljust(width), state, out.time(newest), late)
