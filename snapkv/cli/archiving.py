"""The commands of an archive: status, verify, restore, publish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from snapkv.base.clocks import SystemClock
from snapkv.cli.command_output import Output
from snapkv.cli.commands import App, argument, option
from snapkv.cli.exits import CommandError
from snapkv.cli.formats import Json, counted, key_text, time_json, time_text
from snapkv.cli.store_options import StoreOptions, seconds, takes
from snapkv.cli.terminal import progress_bar, report, working
from snapkv.copying import record
from snapkv.errors import CompactedError
from snapkv.layout import Selection
from snapkv.store.open import open as open_store
from snapkv.times import pack, physical_ms

if TYPE_CHECKING:
    from snapkv.archive.folder import Files
    from snapkv.archive.rows import PublishedTable

archive = App(
    name="archive",
    add_completion=False,
    help="Look after an archive: the files in which record keeps history.",
)

NOTE_CHARS = 1_000
UrlArgument = Annotated[str, argument("ARCHIVE", "A folder, or s3://BUCKET/PATH.")]


@archive.command()
@takes()
def status(options: StoreOptions, url: UrlArgument) -> None:
    """Print what the archive holds: since when, up to when, gaps, files, bytes.

    With --store it also prints how many seconds the archive is behind that store: the age of the
    oldest commit that it lacks. The archive must be of that store.
    """
    from snapkv.archive import open_files
    from snapkv.archive.manifest import archive_status

    files = open_files(url)
    found = archive_status(files)
    facts: Json = {
        "url": found.url,
        "store": found.name,
        "store_id": found.store_id,
        **_observed(found.observed),
        "since": time_json(found.since),
        "since_revision": found.since_revision,
        "resolved": time_json(found.resolved),
        "resolved_revision": found.resolved_revision,
        "gaps": [
            {
                "revisions": [gap.low, gap.high],
                "after": time_json(gap.after),
                "before": time_json(gap.before),
            }
            for gap in found.gaps
        ],
        "files": found.files,
        "rows": found.rows,
        "bytes": found.bytes,
        "written": time_json(pack(int(found.written * 1_000))),
    }
    if options.store is not None:
        facts["lag_s"] = _lag_s(options, files, found.resolved)
    options.output.facts(facts, _lines(facts))


def _observed(observed: Selection | None) -> Json:
    """Return the prefixes whose keys an archive has; of a store, no prefix."""
    if observed is None or observed.is_one:
        only = None if observed is None else observed.only
        return {"prefix": None if only is None else only.decode(errors="backslashreplace")}
    shown = [[each.decode(errors="backslashreplace") for each in some] for some in observed]
    return dict(zip(("prefixes", "except"), shown, strict=True))


def _lag_s(options: StoreOptions, files: Files, resolved: int) -> float:
    """Return the age in seconds of the oldest commit that the archive of this store lacks."""
    from snapkv.archive.engine import ArchiveEngine
    from snapkv.archive.live_and_archive import JoinedEngine

    with options.open_store() as store:
        reader = store.reader
        created = reader.timeline.tracker.creation.revision
        joined = JoinedEngine(reader.engine, ArchiveEngine(files))
        joined.check_source(reader.layout, reader.format, created)
        try:
            first = next(iter(store.commits(since=resolved)), None)
        except CompactedError:
            oldest = resolved
        else:
            if first is None:
                return 0.0
            oldest = first.ts
    return max(0.0, (SystemClock().now_ms() - physical_ms(oldest)) / 1_000)


def _lines(facts: Json) -> list[tuple[str, str]]:
    lines = []
    for fact, value in facts.items():
        if fact == "gaps":
            times = ((gap["after"]["time"], gap["before"]["time"]) for gap in value)
            lines += [("gap", f"{after} to {before}") for after, before in times]
        elif isinstance(value, dict) and "time" in value:
            start = fact == "since" and value["timestamp"] == "0"
            lines.append((fact, "the beginning" if start else str(value["time"])))
        elif isinstance(value, dict):
            lines.append((fact, ", ".join(f"{each:,} {kind}" for kind, each in value.items())))
        elif value is not None:
            lines.append((fact, key_text(str(value))))
    return lines


@archive.command()
@takes(store=False)
def verify(options: StoreOptions, url: UrlArgument) -> None:
    """Read every file again, and check checksums, order, tiling, the log and each base.

    Prints the problems, and ends with code 1 if there are any.
    """
    from snapkv.archive import open_files
    from snapkv.archive.verify import verify as verified

    with progress_bar("verifying") as move:
        found = verified(open_files(url), move)
    fields: Json = {"files": found.files, "rows": found.rows, "bytes": found.size}
    checked = f"{counted(found.files, 'file')}, {counted(found.rows, 'row')}"
    options.output.problems(fields, found.problems, checked)


@archive.command()
@takes(store=False)
def restore(
    options: StoreOptions,
    url: UrlArgument,
    into: Annotated[str | None, option("--into STORE", "A new store, as in lmdb:./meta.")] = None,
    timeout: Annotated[
        str | None, option("--timeout DURATION", "Wait this long for another recorder.")
    ] = None,
) -> None:
    """Make a store from the archive, with its whole history: times, writers and notes are kept.

    To bring back one moment into the store that was archived, use restore TIME --archive ARCHIVE.
    """
    if into is None:
        raise CommandError("restore needs --into STORE, as in lmdb:./meta")
    recorder = record(f"archive:{url}", into=into)
    if not recorder.options.is_store:
        raise CommandError(f"--into {into!r} is not a store, as in lmdb:./meta")
    with working("restoring"):
        newest = recorder.catch_up(timeout=seconds(timeout))
        with open_store(into, force_fork=True) as made:  # else it would reject commits as a record
            made.commit(note=f"restored from {url}"[:NOTE_CHARS])
    done = recorder.status
    fields = {**time_json(newest), "commits": done.commits, "changes": done.changes}
    options.output.record(fields, (time_text(newest), "cyan"))
    if not options.structured:
        report(f"{counted(done.commits, 'commit')} and {counted(done.changes, 'change')} in {into}")


@archive.command()
@takes(store=False)
def publish(
    options: StoreOptions,
    url: UrlArgument,
    delta: Annotated[bool, option("--delta", "For readers of Delta Lake.")] = False,
    iceberg: Annotated[bool, option("--iceberg", "For readers of Iceberg.")] = False,
) -> None:
    """Make the archive's files readable as tables: changes and commits. No file is copied.

    Prints what a reader opens: for Delta Lake the folder of a table, for Iceberg its metadata. The
    tables show the archive as it is now: publish again when more was recorded.
    """
    if not delta and not iceberg:
        raise CommandError("publish needs --delta, --iceberg, or both")
    out = options.output.headed("FORMAT", "TABLE", "URL", "CONTENT")
    if delta:
        from snapkv.archive.delta_lake import publish_delta

        _show_tables(out, "delta", publish_delta(url))
    if iceberg:
        from snapkv.archive.iceberg import publish_iceberg

        _show_tables(out, "iceberg", publish_iceberg(url))


def _show_tables(out: Output, kind: str, tables: Iterable[PublishedTable]) -> None:
    for table in tables:
        out.record(
            {"format": kind, **table._asdict()},
            kind if out.format == "table" else None,
            (table.name.ljust(8), "cyan"),
            key_text(table.url),
            f"{counted(table.rows, 'row')} in {counted(table.files, 'file')}",
        )
