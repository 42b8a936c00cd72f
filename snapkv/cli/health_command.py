"""The command health: does the store answer, for people and for probes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from snapkv.cli.exits import Exit
from snapkv.cli.formats import Json, time_json, time_text
from snapkv.cli.options import StoreOptions, seconds, takes
from snapkv.cli.terminal import tell_error
from snapkv.store.health import Health
from snapkv.times import duration_ms

TIMEOUT = "1s"


@takes("timeout", "raw")
def health(
    options: StoreOptions,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            metavar="DURATION",
            help="Fail (code 1) if the newest commit is older than this, such as 30s.",
        ),
    ] = None,
) -> None:
    """Check that the store answers, and print how old its newest commit is.

    For probes: code 0 if it answers, 7 if it does not within --timeout, a second by default.
    """
    age_s_max = None if max_age is None else duration_ms(max_age) / 1_000
    options = replace(options, timeout=options.timeout or TIMEOUT)
    with options.opened(silent=True) as store:
        found = store.health(timeout=seconds(options.timeout) or 0.0)
    options.output.facts(health_json(found), _rows(found, raw=options.raw))
    if not found.answers:
        tell_error(str(found.error))
        raise typer.Exit(Exit.LATER)
    if age_s_max is not None and (found.age_s is None or found.age_s > age_s_max):
        newest = "no commit" if found.age_s is None else f"the newest commit is {_age(found)}"
        tell_error(f"{newest}; at most {max_age} is allowed")
        raise typer.Exit(Exit.NO)


def health_json(found: Health) -> Json:
    """Return how a store answered, for JSON."""
    return {
        "answers": found.answers,
        "error": found.error,
        "latency_s": round(found.latency_s, 6),
        "newest": time_json(found.newest_timestamp or None),
        "age_s": found.age_s,
        "skew_s": found.skew_s,
        "earliest": time_json(found.earliest_timestamp),
        "size_bytes": found.size_bytes,
    }


def _rows(found: Health, *, raw: bool) -> list[tuple[str, str]]:
    rows = [
        ("answers", "yes" if found.answers else "no"),
        ("latency", f"{found.latency_s * 1_000:.1f} ms"),
        ("newest", f"{time_text(found.newest_timestamp, raw=raw)}, {_age(found)}"),
    ]
    if found.skew_s is not None:
        rows.append(("skew", f"{found.skew_s:+.1f} s"))
    if found.earliest_timestamp is not None:
        rows.append(("earliest", time_text(found.earliest_timestamp, raw=raw)))
    if found.size_bytes is not None:
        rows.append(("size", f"{found.size_bytes:,} bytes"))
    return rows


def _age(found: Health) -> str:
    return "no commits" if found.age_s is None else f"{found.age_s:,.1f} s old"
