"""The command fleet watch: the changes of all members in one order, as they become final."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from snapkv.base.waiting import monotonic
from snapkv.cli.command_output import COMMIT_HEADINGS, Output
from snapkv.cli.commands import option
from snapkv.cli.difference_output import Renderer, RenderingOptions, renders
from snapkv.cli.fleet.chosen_fleet import FleetOptions, OpenFleet, listed, of_fleet, report_names
from snapkv.cli.formats import ZONES, Json, time_json
from snapkv.cli.moments import moment
from snapkv.cli.named_keys import common, prefixes_in
from snapkv.cli.store_options import (
    CountOption,
    PatchOption,
    PrefixesArgument,
    PrefixesOption,
    StoreOptions,
    seconds,
    takes,
)
from snapkv.cli.terminal import report
from snapkv.cli.tick_command import Stop
from snapkv.cli.watch_command import (
    IdleOption,
    WatchSinceOption,
    changes_json,
    keep_in,
    kept_in,
    without_ignored,
    write_changes,
)
from snapkv.errors import CompactedError, HistoryGapError, InvalidOptionError
from snapkv.fleet.fleet_watch import FleetChanges, FleetWatch, Late
from snapkv.fleet.member_link import SILENT
from snapkv.fleet.token import decoded
from snapkv.model import Change, Changes
from snapkv.reading.log import values_before

LOOK_S = 0.25
"""The longest that a watch waits before it checks whether a signal has ended it, in seconds."""
HELD_BACK_S = 5.0
"""The time without an item, in seconds, after which the members are named for which changes
wait."""


@takes("raw", store=False)
@of_fleet("file", "members", "behind")
@renders()
def watch(
    options: StoreOptions,
    chosen: FleetOptions,
    rendering: RenderingOptions,
    given: PrefixesArgument = None,
    prefix: PrefixesOption = None,
    since_: WatchSinceOption = None,
    count: CountOption = None,
    patch: PatchOption = False,
    timeout: IdleOption = None,
    resume: Annotated[
        Path | None, option("--resume FILE", "Go on where this file says, and keep it up to date.")
    ] = None,
) -> None:
    """Print what all members change, a whole timestamp at a time, until Ctrl-C or SIGTERM.

    A time is printed when all members are final at it, so a member that is away stops it. With
    --behind leave-out the watch goes on, and what that member changed comes as "late". In the end
    the error stream has the --since with which the next watch goes on. With --resume FILE nothing
    is missing: the file has the place of each member after the last item that was printed.
    """
    idle_s, policy = seconds(timeout), chosen.policy("stale")
    renderer = Renderer(rendering, brief=not patch)
    out = options.output.headed(*COMMIT_HEADINGS, *renderer.headings)
    with Stop() as stop, kept_in(resume) as kept, chosen.open_members(out) as open_fleet:
        token = _token_in(kept, resume) if kept else None
        after = None if token is not None else moment(since_, "since")
        out.remark = ZONES.remark
        prefixes = prefixes_in(given, prefix)
        shows = _Shows(out, renderer, open_fleet, patch, prefixes)
        behind: Literal["leave out", "error"] = "leave out" if policy == "leave out" else "error"
        if token is not None:
            _check_members(resume, token, open_fleet)
        under = common(prefixes) or None
        with open_fleet.fleet.watch(under, after, behind=behind, resume=token) as changes:
            items = _until(changes, stop, idle_s)
            for _ in islice(filter(None, map(shows, items)), count):
                sys.stdout.flush()
                keep_in(resume, changes.token)
            keep_in(resume, changes.token)  # how far it is without an item
            renderer.report_ignored()
            report(f"snapkv: the next watch goes on with --since {_resumes_at(changes)}")


def _token_in(token: str, path: Path | None) -> str:
    """Return what a watch has kept in a file; raise if it is something else."""
    try:
        decoded(token)
    except InvalidOptionError as e:
        raise typer.BadParameter(
            f"{path} does not say where a watch goes on; give another file, or delete it: {e}"
        ) from e
    return token


def _check_members(path: Path | None, token: str, open_fleet: OpenFleet) -> None:
    """Raise if a file names members that are not open; print members that it does not name."""
    kept, chosen = decoded(token).places.keys(), set(open_fleet.fleet.members)
    if unknown := sorted(kept - chosen):
        raise typer.BadParameter(
            f"{path} follows {listed(unknown)}, which the fleet does not have or --members leaves "
            "out: choose these, too, or give another file"
        )
    report_names(
        sorted(chosen - kept), f"not followed, as {path} does not name them; give another file"
    )


def _until(changes: FleetWatch, stop: Stop, idle_s: float | None) -> Iterator[FleetChanges | Late]:
    """Yield items until the end; name members that hold it back: that looks like quiet."""
    heard, named = monotonic(), tuple[str, ...]()
    while not stop.wanted:
        found = changes.next(LOOK_S if idle_s is None else min(LOOK_S, idle_s))
        if found is not None:
            yield found
            heard = monotonic()
            continue
        waited_s = monotonic() - heard
        ends = idle_s is not None and changes.has_caught_up and waited_s >= idle_s
        if (ends or waited_s >= HELD_BACK_S) and (waits_for := changes.waits_for) != named:
            report_names(waits_for, "not final yet, while changes wait for it")
            named = waits_for
        if ends:
            return


def _resumes_at(changes: FleetWatch) -> int:
    """Return the time after which nothing was missed; members that were left out hold it back."""
    timestamp, places, *_ = decoded(changes.token)
    behind = (place.timestamp for place in places.values() if place.state == "behind")
    return min([timestamp, *behind])


class _Shows:
    """Writes items of a watch, and says when members are left out and take part again."""

    def __init__(
        self,
        out: Output,
        renderer: Renderer,
        open_fleet: OpenFleet,
        patch: bool,
        prefixes: tuple[str, ...],
    ) -> None:
        self._out, self._renderer, self._open_fleet, self._patch = out, renderer, open_fleet, patch
        self._prefixes = prefixes
        self._missing: tuple[str, ...] = ()

    def __call__(self, found: FleetChanges | Late) -> bool:
        """Write an item; return whether it has more than ignored commits."""
        if isinstance(found, Late):
            return self._late(found)
        new = [name for name in found.missing if name not in self._missing]
        report_names(new, "left out, as it holds the watch back; what it changes comes late")
        back = [name for name in self._missing if name not in found.missing]
        report_names(back, "caught up")
        self._missing = found.missing
        shown = {name: self._shown(name, changes) for name, changes in found.members.items()}
        kept = {name: changes for name, changes in shown.items() if changes is not None}
        if not self._out.structured:
            for name, changes in kept.items():
                self._write(name, name, changes)
        elif kept or not shown:
            members = [self._json(name, changes) for name, changes in kept.items()]
            fields = {**time_json(found.timestamp), "members": members}
            self._out.record({**fields, "missing": list(found.missing)})
        return bool(kept or not shown)

    def _late(self, found: Late) -> bool:
        shown = [self._shown(found.member, changes) for changes in found.changes]
        kept = [changes for changes in shown if changes is not None]
        if not self._out.structured:
            for changes in kept:
                self._write(found.member, f"{found.member} (late)", changes)
        elif kept or not shown:
            span = {"since": time_json(found.since), "until": time_json(found.until)}
            commits = [
                {**time_json(changes.commit.ts), **self._json(found.member, changes)}
                for changes in kept
            ]
            self._out.record({"late": found.member, **span, "commits": commits})
        return bool(kept or not shown)

    def _shown(self, name: str, found: Changes[str]) -> Changes[str] | None:
        return without_ignored(self._renderer, found, partial(self._before, name), self._prefixes)

    def _json(self, name: str, found: Changes[str]) -> Json:
        writes = self._open_fleet.fleet.member(name).prefix is not None
        before = self._before(name, found.changes) if self._patch else None
        said = changes_json(self._renderer, found, before, writes=writes)
        fields = {field: said[field] for field in said if field not in ("timestamp", "time")}
        return {"member": name, **fields}

    def _write(self, name: str, shown: str, found: Changes[str]) -> None:
        self._out.member = shown
        write_changes(self._out, self._renderer, found, partial(self._before, name))

    def _before(self, name: str, changes: Sequence[Change[str]]) -> list[bytes | None] | None:
        """Return the values before changes; None if these were compacted, or the member is away."""
        each = self._open_fleet.members.by_name[name]
        with suppress(CompactedError, HistoryGapError, *SILENT):
            try:
                return each.ask(lambda reads: values_before(reads, changes))
            except CompactedError:
                if (kept := each.archive_or_none()) is not None:
                    return values_before(kept, changes)
        return None
