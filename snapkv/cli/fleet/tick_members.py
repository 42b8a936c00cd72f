"""The command fleet tick: all members get one time, once or regularly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import typer

from snapkv.cli.command_output import Output
from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.fleet.chosen_fleet import FleetOptions, listed, of_fleet
from snapkv.cli.formats import Json, counted, time_json, time_text
from snapkv.cli.store_options import CountOption, StoreOptions, takes, warnings_shown
from snapkv.cli.terminal import report, report_error, status_line
from snapkv.cli.tick_command import EveryOption, QuietOption, Stop, beats, period
from snapkv.errors import NAMED_MAX
from snapkv.fleet.tick_rounds import TICK_TIMEOUT_S, Round

ROUND_S_MIN = 0.5
"""The least time that a round may take, however short the period is, in seconds."""
REFUSED_ROUNDS = 3
"""The number of rounds in a row that a member rejects before it is named: one alone means
nothing."""


@takes("writer", "raw", store=False)
@of_fleet("file", "members")
def tick(
    options: StoreOptions,
    chosen: FleetOptions,
    every: EveryOption = None,
    count: CountOption = None,
    quiet: QuietOption = False,
) -> None:
    """Give all members that have an engine the same time, in a round, and print it.

    With --every it does so until Ctrl-C or SIGTERM, goes on after failures, and reports when a
    member begins to fail and when it ticks again; with --json a line for each round. A moment of
    the fleet shows a round once the next one has recorded its bounds: keep it running. Creates
    stores that do not exist.
    """
    out, period_s = options.output.headed("TIME", "TICKED", "SPREAD"), period(every)
    if period_s is None and count is not None:
        raise CommandError("--count needs --every")
    state = Rounds()
    with (
        Stop() as stop,
        chosen.open_members(connected=False) as open_fleet,
        open_fleet.fleet.ticker(writer=options.writer) as ticker,
        status_line(shown=not (quiet or options.structured)) as shown,
    ):
        if period_s is None:
            with warnings_shown():
                done = ticker.tick()
            _once(out, done, quiet)
            return
        for _ in beats(period_s, count, stop):
            # the first one connects; later ones must not wait long for a member that is away
            longest_s = TICK_TIMEOUT_S if not state.rounds else _longest_s(period_s)
            with warnings_shown():
                done = ticker.tick(timeout=longest_s)
            state.add(done, ends=stop.wanted)
            if options.structured and not quiet:
                out.record(round_json(done), flush=True)
            shown(f"ticking every {every}: {state.summary(options.raw)}")
    if not (quiet or options.structured) and state.rounds:
        report(f"snapkv: {state.summary(options.raw)}")


def _longest_s(period_s: float) -> float:
    """Return how long a round may take, so that the next one is in time.

    >>> [_longest_s(period_s) for period_s in (0.1, 1.0, 60.0)]
    [0.5, 0.8, 5.0]
    """
    return min(TICK_TIMEOUT_S, max(ROUND_S_MIN, 0.8 * period_s))


def _once(out: Output, done: Round, quiet: bool) -> None:
    """Write one round; name the members that have not got its time."""
    of = len(done.ticked) + len(done.refused) + len(done.failed)
    if not quiet:
        shown = f"{len(done.ticked):,} of {counted(of, 'member')}"
        out.record(round_json(done), out.time(done.timestamp), shown, _spread_text(done.spread))
    if done.refused:
        report(
            f"snapkv: {counted(len(done.refused), 'member')} had a newer time already: "
            f"{listed(done.refused)}"
        )
    _report_each([f"{name}: {why}" for name, why in done.failed.items()])
    if done.failed:
        raise typer.Exit(Exit.LATER)


def round_json(done: Round) -> Json:
    """Return a round for JSON."""
    return {
        **time_json(done.timestamp),
        "spread_s": round(done.spread, 6),
        "ticked": list(done.ticked),
        "refused": {name: time_json(newest) for name, newest in done.refused.items()},
        "failed": dict(done.failed),
    }


def _spread_text(spread_s: float) -> str:
    return f"within {spread_s * 1_000:,.1f} ms"


@dataclass(slots=True)
class Rounds:
    """What became of many rounds; says when a series of failures of a member begins and ends."""

    rounds: int = 0
    newest: Round | None = None
    widest_s: float = 0.0
    failed: dict[str, int] = field(default_factory=dict)
    """The number of rounds in a row that have failed, by member."""
    refused: dict[str, int] = field(default_factory=dict)

    def add(self, done: Round, *, ends: bool = False) -> None:
        """Take a round, and report what has changed; after the last one, nothing is tried again."""
        self.rounds, self.newest = self.rounds + 1, done
        self.widest_s = max(self.widest_s, done.spread)
        began, over = _series(self.failed, done.failed, 1)
        then = "" if ends else "; it goes on trying"
        _report_each([f"{name}: {done.failed[name]}{then}" for name in began])
        for name, rounds in over[:NAMED_MAX]:
            report(f"snapkv: {name} ticks again, after {counted(rounds, 'round')} that failed")
        began, over = _series(self.refused, done.refused, REFUSED_ROUNDS)
        why = "newer than the rounds: another ticker, or a clock that is ahead"
        times = {name: time_text(done.refused[name]) for name in began}
        _report_each([f"{name}: its time is {shown}, {why}" for name, shown in times.items()])
        for name, rounds in over[:NAMED_MAX]:
            if rounds >= REFUSED_ROUNDS:
                report(
                    f"snapkv: {name} takes part in the rounds again, after {rounds:,} without it"
                )

    def summary(self, raw: bool) -> str:
        """Return one line about the rounds."""
        done = self.newest
        if done is None:
            return "no rounds"
        of = len(done.ticked) + len(done.refused) + len(done.failed)
        return (
            f"{counted(self.rounds, 'round')}, the newest at {time_text(done.timestamp, raw=raw)} "
            f"on {len(done.ticked):,} of {counted(of, 'member')}, {_spread_text(done.spread)}, the "
            f"widest {_spread_text(self.widest_s)}"
        )


def _series(
    counts: dict[str, int], names: Mapping[str, object], least: int
) -> tuple[list[str], list[tuple[str, int]]]:
    """Count rounds in a row by name; return names that reach `least`, and series that ended."""
    over = [(name, counts.pop(name)) for name in [*counts] if name not in names]
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return [name for name in names if counts[name] == least], over


def _report_each(lines: list[str]) -> None:
    for line in lines[:NAMED_MAX]:
        report_error(line)
    if (more := len(lines) - NAMED_MAX) > 0:
        report_error(f"and {counted(more, 'member')} more")
