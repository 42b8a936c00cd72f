"""The commands generations, streams and upgrade: show and maintain a log of generations."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

import snapkv
from cdcmeta.cli.server_commands import JsonOption, NameOption, open_served_store, time_meant
from cdcmeta.errors import ExpiryIncompleteError, GenerationNotFoundError, InvalidArgumentError
from snapkv.cli.command_kit import STORE_VARIABLE, App, Json, argument, json_line, option, time_json
from snapkv.times import dated, duration_ms, revision_of

if TYPE_CHECKING:  # they need NumPy, so a command imports them only when it runs
    from cdcmeta.generations import Generation, GenerationLog, Sharding, TokenRange
    from cdcmeta.generations.generation_log import Expired

generations = App(help="CDC generations: list, make, repair, expire.", no_args_is_help=True)
streams = App(help="The streams of CDC generations.", no_args_is_help=True)

StoreOption = Annotated[
    str, option("--store URL", "The store: lmdb:./meta or etcd://HOST:PORT.", envvar=STORE_VARIABLE)
]
LogOption = Annotated[str, option("--log", "The name of the log of generations.")]
TimeArgument = Annotated[str, argument("TIME", "2026-01-31 14:05, yesterday, 1h ago, a timestamp.")]
DelayOption = Annotated[
    float | None, option("--propagation-delay", "Seconds that news need to reach every process.")
]
TimeoutOption = Annotated[
    float, option("--timeout", "Seconds to wait for members and other processes.")
]


@generations.command("list")
def list_(
    store: StoreOption,
    name: NameOption = "default",
    log: LogOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Show all generations, the newest last, and a pending switch."""
    with _open_log(store, name, log) as generation_log:
        found, now = generation_log.generations(), generation_log.timestamp_of("-0s")
        for each, later in zip_longest(found, found[1:]):
            _print(each, later, now, as_json)
        switch = generation_log.pending()
    if switch is not None:
        typer.echo(f"a switch is {switch.phase}: {switch.ranges:,} ranges", err=True)


@generations.command(times=1)
def at(
    time: TimeArgument,
    store: StoreOption,
    name: NameOption = "default",
    log: LogOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Show the generation that operates at a time."""
    with _open_log(store, name, log) as generation_log:
        _print_one(generation_log, _operating(generation_log, time), as_json)


@generations.command(times=1)
def show(
    time: TimeArgument,
    store: StoreOption,
    name: NameOption = "default",
    log: LogOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Show the ranges of the generation that operates at a time."""
    with _open_log(store, name, log) as generation_log:
        generation = _operating(generation_log, time)
        _print_one(generation_log, generation, as_json)
        for each in generation_log.topology(generation):
            if as_json:
                typer.echo(json_line(_range_json(each)))
            else:
                typer.echo(f"({each.start:>20}, {each.end:>20}]  {len(each.streams):,} streams")


@generations.command()
def make(
    ring: Annotated[
        Path,
        argument(
            "RING",
            'A JSON file: {"tokens": {"-100": "node-1", ...}, '
            '"nodes": {"node-1": {"shards": 8, "ignore_msb": 12}, ...}}.',
        ),
    ],
    store: StoreOption,
    name: NameOption = "default",
    log: LogOption = "default",
    if_needed: Annotated[
        bool, option("--if-needed", "Only if the newest was made for another ring.")
    ] = False,
    propagation_delay: DelayOption = None,
    timeout: TimeoutOption = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Make a generation for a ring; it begins to operate some time later.

    Creates the store if it does not exist.
    """
    _library()  # what is missing to read a ring is said before what the file lacks
    found = ring_of(ring)
    more = {} if propagation_delay is None else {"propagation_delay": propagation_delay}
    with _open_log(store, name, log, create=True, **more) as generation_log:
        do = generation_log.regenerate_if_needed if if_needed else generation_log.make
        _print_one(generation_log, do(found, timeout=timeout), as_json)


@generations.command()
def repair(
    store: StoreOption,
    name: NameOption = "default",
    log: LogOption = "default",
    timeout: TimeoutOption = 120.0,
) -> None:
    """Complete an unfinished switch, or abort it after its deadline."""
    with _open_log(store, name, log) as generation_log:
        under_way = generation_log.pending()
        generation_log.repair(timeout=timeout)
        typer.echo("no switch was under way" if under_way is None else "done")


@generations.command()
def expire(
    retention: Annotated[str, argument("AGE", "An age such as 7d or 12h.")],
    store: StoreOption,
    name: NameOption = "default",
    log: LogOption = "default",
    propagation_delay: DelayOption = None,
    ttl: Annotated[
        str | None, option("--ttl AGE", "Also remove log rows older than this, even unread ones.")
    ] = None,
) -> None:
    """Mark superseded generations; remove those superseded for longer than AGE, with their rows.

    Generations that a consumer is still reading remain. A generation is superseded once its
    successor has operated for the propagation delay: use the delay that the generations were made
    with.
    """
    more = {} if propagation_delay is None else {"propagation_delay": propagation_delay}
    with _open_log(store, name, log, create=False, **more) as generation_log:
        ttl_s = None if ttl is None else duration_ms(ttl) / 1_000
        try:
            _print_expired(generation_log.expire(duration_ms(retention) / 1_000, ttl=ttl_s))
        except ExpiryIncompleteError as e:
            _print_expired(e.done)
            raise


@streams.command("of", times=1)
def of(
    time: TimeArgument, store: StoreOption, name: NameOption = "default", log: LogOption = "default"
) -> None:
    """Show the streams of the generation that operates at a time, in the order of the ring."""
    with _open_log(store, name, log) as generation_log:
        for each in generation_log.streams_of(_operating(generation_log, time)):
            typer.echo(str(each))


@streams.command("at", times=1)
def stream_at(
    time: TimeArgument,
    key: Annotated[str, typer.Argument(help="A partition key, as text.")],
    store: StoreOption,
    name: NameOption = "default",
    log: LogOption = "default",
) -> None:
    """Show the stream of a write of a key at a time."""
    token = _library().murmur3_token(os.fsencode(key))
    with _open_log(store, name, log) as generation_log:
        topology = generation_log.topology(_operating(generation_log, time))
        typer.echo(str(topology.stream_for(token)))


# --- helpers ---


def _library() -> ModuleType:
    """Return the package that needs NumPy. Raises `MissingExtraError` without NumPy."""
    return import_module("cdcmeta.generations")


@contextmanager
def _open_log(
    store: str, name: str, log: str, *, create: bool = False, **more: float
) -> Iterator[GenerationLog]:
    library = _library()
    with open_served_store(store, name, create=create) as kv:
        yield library.GenerationLog(kv, log, **more)


def _operating(log: GenerationLog, time: str) -> Generation:
    when = time_meant(time)
    if revision_of(when) is not None:
        typer.echo(f"cdcmeta: {when} = {snapkv.format_time(log.timestamp_of(when))}", err=True)
    found = log.operating_at(when)
    if found is None:
        raise GenerationNotFoundError(f"no generation operates at {dated(log.timestamp_of(when))}")
    return found


def _print_one(log: GenerationLog, generation: Generation, as_json: bool) -> None:
    _print(generation, log.next_after(generation.time), log.timestamp_of("-0s"), as_json)


def _print(generation: Generation, later: Generation | None, now: int, as_json: bool) -> None:
    state = generation.phase(now, later)
    if as_json:
        fields = {
            **time_json(generation.time),
            "id": generation.id.hex(),
            "ranges": generation.ranges,
            "streams": generation.streams,
            "state": state,
            "refines": generation.refines,
        }
        typer.echo(json_line(fields))
        return
    counts = f"{generation.ranges:,} ranges  {generation.streams:,} streams"
    note = "  its ranges are not parts of those before" if generation.refines is False else ""
    typer.echo(f"{snapkv.format_time(generation.time)}  {counts}  {state}{note}")


def _range_json(found: TokenRange) -> Json:
    """Return a range for JSON; tokens are text, as timestamps are: JSON numbers have 53 bits."""
    return {
        "start": str(found.start),
        "end": str(found.end),
        "streams": len(found.streams),
        "ignore_msb": found.ignore_msb,
    }


def _print_expired(done: Expired) -> None:
    for what, found in (("marked", done.marked), ("removed", done.removed)):
        for each in found:
            typer.echo(f"{what}  {snapkv.format_time(each.time)}")
    if done.rows:
        typer.echo(f"trimmed  {done.rows:,} log rows")


# --- the file of a ring ---


SHOWN_CHARS_MAX = 60
FIELDS = ("shards", "ignore_msb")
NODE = '{"shards": 8} or {"shards": 8, "ignore_msb": 12}'
RING = '{"tokens": {"-100": "node-1"}, "nodes": {"node-1": {"shards": 8}}}'
_TOKEN = re.compile(r"0|-?[1-9][0-9]{0,38}")


def ring_of(file: Path) -> dict[int, Sharding]:
    """Return the ring in a file. Raises `InvalidArgumentError`; `OSError` if it cannot be read."""
    content = file.read_bytes()
    try:
        ring = _parts_of(_parsed(content))
        nodes = {name: _sharding(name, node) for name, node in ring["nodes"].items()}
        return _owners(ring["tokens"], nodes)
    except (ValueError, InvalidArgumentError) as e:
        raise InvalidArgumentError(f"{file} is not a valid ring: {e}") from e


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content, object_pairs_hook=_each_once)
    except json.JSONDecodeError as e:
        raise ValueError(f"it is not JSON: {e}") from e
    except UnicodeDecodeError as e:
        raise ValueError(f"it is not UTF-8: byte {e.start} is 0x{e.object[e.start]:02x}") from e
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e


def _parts_of(ring: object) -> dict[str, dict[str, Any]]:
    if not isinstance(ring, dict):
        raise ValueError(f"it is {_shown(ring)}; write {RING}")
    for part in ("tokens", "nodes"):
        if part not in ring:
            raise ValueError(f"it has no {part!r}; write {RING}")
        if not isinstance(ring[part], dict):
            raise ValueError(f"{part!r} is {_shown(ring[part])}; write {RING}")
    return ring


def _sharding(name: str, node: object) -> Sharding:
    from cdcmeta.generations.tokens import Sharding, checked_sharding

    if not isinstance(node, dict):
        raise ValueError(f"node {_shown(name)} is {_shown(node)}; write {NODE}")
    for field in node:
        if field not in FIELDS:
            raise ValueError(
                f"node {_shown(name)} has the unknown field {_shown(field)}; write {NODE}"
            )
    if "shards" not in node:
        raise ValueError(f"node {_shown(name)} has no 'shards'; write {NODE}")
    try:
        return checked_sharding(Sharding(**node))
    except InvalidArgumentError as e:
        raise ValueError(f"node {_shown(name)}: {e}") from e


def _owners(tokens: dict[str, Any], nodes: dict[str, Sharding]) -> dict[int, Sharding]:
    from cdcmeta.generations.tokens import checked_token

    found = {}
    for text, node in tokens.items():
        # int() would also take 1_0, ٣, " 3" and 03, in which a mistake is not seen
        if _TOKEN.fullmatch(text) is None:
            raise ValueError(f"token {_shown(text)} is not an integer in digits, such as -100")
        if not isinstance(node, str) or node not in nodes:
            raise ValueError(
                f"the owner of token {_shown(text)} is {_shown(node)}, which is not in 'nodes'"
            )
        found[checked_token(int(text))] = nodes[node]
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 3] + "..."


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{_shown(twice)} occurs twice")
    return found


# --- upgrade ---


def upgrade(store: StoreOption, name: NameOption = "default", as_json: JsonOption = False) -> None:
    """Move rows of CDC logs that an older version wrote to where this version writes them.

    Stop all writers of the older version before. Everything else in a store is read as it is. An
    interrupted upgrade is continued by the next one; a store without such rows stays as it is.
    """
    trimming = import_module("cdcmeta.generations.log_rows")  # needs NumPy
    found = 0
    with open_served_store(store, name, create=False) as kv:
        for space in list(kv.spaces("cdc/")):
            moved = trimming.upgrade(kv.space(space))
            found += moved
            table = space.removeprefix("cdc/")
            if as_json:
                typer.echo(json.dumps({"table": table, "moved": moved}))
            elif moved:
                typer.echo(f"table {table}: {moved:,} log {'row' if moved == 1 else 'rows'} moved")
    if not found and not as_json:
        typer.echo("nothing to upgrade")
