"""The whole tour: what it does, in which order, and what it shows."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

import snapkv
from snapkv.base.waiting import perf_counter
from snapkv.cli.exits import AdvisedError, Exit
from snapkv.cli.formats import counted
from snapkv.cli.git_import import shown_oid
from snapkv.cli.terminal import console as console_of
from snapkv.cli.tour.examiner import AskedDate
from snapkv.cli.tour.show import say_left_out, say_verdict
from snapkv.clock import SystemClock
from system.everything.captures import Fleet
from system.everything.clone_sparked import NoSpark, Started, started
from system.everything.clones import PATH_BYTES_MAX, History, clones_of
from system.everything.etcd import LocalEtcd, etcd_program
from system.everything.filling import Filler
from system.everything.making import make_clones
from system.everything.place import CAPTURES, STORE, Place, emptied
from system.everything.replication import ARCHIVE, Replication, Story
from system.everything.report import (
    CHANGES,
    ONE_CLONE,
    PLACES,
    REPLICAS,
    STATES,
    VIEWS,
    Answer,
    Report,
    pair_text,
)

from . import asking, clone_exam, duck, page, replicas, sparked

PLAIN_WIDTH = 100
"""The columns of a line without a terminal."""


def plain_console() -> Console:
    """Return the console of a tour."""
    stream = sys.stdout
    return console_of(stream, None if stream.isatty() else PLAIN_WIDTH, highlight=False)


def section(console: Console, title: str, table: Table) -> None:
    """Print a table under its title."""
    console.print()
    say(console, "bold", title)
    console.print(table)


def plain_table(*headings: str) -> Table:
    """Return a table without lines; columns whose heading ends with `>` are flush right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for heading in headings:
        right = heading.endswith(">")
        table.add_column(
            heading.removesuffix(">"), justify="right" if right else "left", no_wrap=True
        )
    return table


def say(console: Console, style: str, text: str) -> None:
    """Print a line, which a pipe gets as it is, however long."""
    console.print(Text(text, style), soft_wrap=True)


def verdict_text(equal: bool) -> Text:
    """Return whether an answer is equal to git's, in a word."""
    return Text("equal", "green") if equal else Text("DIFFERS", "bold red")


def run_tour(paths: Sequence[str], into: str, *, embedded: bool, spark: bool) -> int:
    """Tour the clones, print everything, and return the exit code: 1 if an answer differs.

    SIGTERM ends it as Ctrl-C does: captures and etcd end with it.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = plain_console()
    try:
        report = Tour(console, into, embedded=embedded, spark=spark).run(paths)
    except AdvisedError as e:
        sys.stderr.write(f"tour: {e.message}\n{e.advice}\n")
        return e.code
    except KeyboardInterrupt:
        sys.stderr.write("tour: interrupted; the next one begins anew\n")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return Exit.NO if report.mismatches else Exit.DONE


class Tour:
    """One tour of all parts, in a folder."""

    def __init__(self, console: Console, folder: str, *, embedded: bool, spark: bool) -> None:
        self._console, self._folder = console, folder
        self._program = None if embedded else etcd_program()
        self._spark = spark
        self._started_s = perf_counter()

    def run(self, paths: Sequence[str]) -> Report:
        """Tour the clones, or three small ones that it makes; return the answers.

        Raises `AdvisedError`, and `MissingExtraError` without the extra `archive`.
        """
        import snapkv.archive.rows  # noqa: F401, without it each capture would fail

        known = clones_of(paths, SystemClock().now_ms())  # before anything is removed
        folder = emptied(Path(self._folder))
        report = Report()
        with ExitStack() as stack:
            etcd: LocalEtcd | None = None
            if self._program is not None:
                etcd = stack.enter_context(LocalEtcd(self._program, folder))
            place = Place(folder, etcd.url if etcd else None)
            if not known:
                known = clones_of(make_clones(folder / "clones"), SystemClock().now_ms())
            history = History(known)
            self._say_clones(history, place)
            story = self._replicate(report, history, place)
            self._ask(report, history, story, place)
            self._show(report, history, story)
            if not report.mismatches:
                self._say_next(history, story, place, etcd)
        return report

    # --- the story ---

    def _replicate(self, report: Report, history: History, place: Place) -> Story:
        """Fill the store while captures replicate it, and ask it on the way."""
        clock = snapkv.ManualClock(0)
        with (
            place.open_store(clock) as store,
            place.open_captures() as captures,
            closing(asking.Stream(store)) as stream,
            Filler(store, clock, history, place.request_bytes_max) as filler,
        ):
            replication = Replication(place, filler, clock, self._say_step)
            story, asked = replication.story, list[AskedDate]()

            def before_compaction(done: int) -> None:
                after = history.steps[done].ms if done < len(history.steps) else None
                asked.extend(m for m in history.moments if after is None or m.ms < after)
                asking.ask_store(report, history, store, asked, "store")
                stream.pass_by(report, history, asked, "watch")
                pairs = [pair for pair in history.pairs() if set(pair) <= set(asked)]
                asking.ask_differences(report, history, store, pairs, "store")
                replicas.count_tables(report, story)
                replicas.ask_places(report, story.sightings, captures, "store")

            with Fleet(place, captures) as fleet:
                replication.run(fleet, before_compaction)
            replicas.count_tables(report, story, since=-1)
            replicas.ask_places(report, story.sightings[-1:], captures, "store")
            rest = [moment for moment in history.moments if moment not in asked]
            asking.ask_store(report, history, store, rest, "store")
            stream.pass_by(report, history, rest, "watch")
            stream.differences(report, history, history.pairs(), "watch")
            log, rows = filler.generations, filler.rows
            asking.ask_log(report, history, log, rows, history.moments)
        return story

    def _ask(self, report: Report, history: History, story: Story, place: Place) -> None:
        """Ask what is left when nothing is written any more: archives, replicas, and the page."""
        with (
            place.open_store(archive=str(place.recorded)) as store,
            place.open_captures(archive=str(place.recorded_captures)) as captures,
        ):
            with place.open_store() as alone:
                asking.ask_compacted(report, alone, history.moments, "store, compacted")
            asking.ask_store(report, history, store, history.moments, "archive")
            asking.ask_differences(report, history, store, history.pairs(), "archive")
            replicas.ask_places(report, story.sightings, captures, "archive")
            replicas.ask_archives(report, history, place)
            replicas.ask_replicas(report, history, place)
            self._say_step("asked the store and its archives")
            with self._optional(report, "duckdb", duck.NoDuckdb):
                duck.ask_duckdb(report, history, place, story)
            with self._optional(report, "The page", page.NoPage):
                page.ask_page(report, history, story, store, captures)
        with self._started_spark(report) as spark:
            if spark is not None:
                sparked.ask_spark(report, history, story, place, spark)
                self._say_step("asked Spark")
            for each in history.clones:
                clone_exam.ask_clone(report, each, place.folder / "exams" / each.name, spark)
        self._say_step("asked each clone alone")

    @contextmanager
    def _started_spark(self, report: Report) -> Iterator[Started | None]:
        """Start Spark; None where it is not wanted, or cannot be started, which the report says."""
        with ExitStack() as stack:
            spark = None
            if self._spark:
                try:
                    spark = stack.enter_context(started())
                except NoSpark as e:
                    report.missing.append(f"Spark: not asked, {e}")
            yield spark

    @contextmanager
    def _optional(self, report: Report, what: str, missing: type[Exception]) -> Iterator[None]:
        """Ask something that may not be installed; if it is not, keep why."""
        try:
            yield
        except missing as e:
            report.missing.append(f"{what}: not asked, {e}")
        else:
            self._say_step(f"asked {what[0].lower()}{what[1:]}" if " " in what else f"asked {what}")

    # --- what it shows ---

    def _say_step(self, text: str) -> None:
        say(self._console, "", f"{perf_counter() - self._started_s:6.1f} s  {text}")

    def _say_clones(self, history: History, place: Place) -> None:
        for each in history.clones:
            commits = counted(len(each.timeline.oids), "commit")
            head = shown_oid(each.clone.head)
            say(self._console, "bold", f"{each.name}: {each.clone.root} at {head}, {commits}")
        where = f"an etcd of the tour's own, {place.etcd}" if place.etcd else place.store_url
        self._say_step(f"{counted(len(history.steps), 'commit')} of git go into {where}")

    def _show(self, report: Report, history: History, story: Story) -> None:
        console = self._console
        names = {moment.date: f"T{n}" for n, moment in enumerate(history.moments)}
        dates = plain_table("", "date", "", "files>")
        for moment in history.moments:
            files = f"{len(history.tree(moment.ms)):,}"
            dates.add_row(names[moment.date], Text(moment.date, "cyan"), moment.label, files)
        section(console, "The dates to ask for", dates)
        for a, b in history.pairs():
            names[pair_text(a, b)] = f"{names[a.date]}-{names[b.date]}"
        names |= {each.label: each.label for each in story.sightings}
        for title in filter(report.rows, (STATES, CHANGES, PLACES)):
            section(console, title, _matrix(report, title, names))
        for title in filter(report.rows, (REPLICAS, VIEWS, ONE_CLONE)):
            table = plain_table("", "")
            table.show_header = False
            for row, answers in report.rows(title).items():
                table.add_row(row, *map(_cell, answers.values()))
            section(console, title, table)
        console.print()
        if history.left_out:
            say_left_out(history.left_out, PATH_BYTES_MAX)
        for missing in report.missing:
            say(console, "yellow", missing)
        say_verdict(report)

    def _say_next(
        self, history: History, story: Story, place: Place, etcd: LocalEtcd | None
    ) -> None:
        """Show commands that work on what the tour has left."""
        known = [moment for moment in history.moments if moment.index >= 0]
        then, now = known[len(known) // 2], known[-1]
        store = f"--store {shlex.quote(place.store_url)} --name {STORE}"
        past = f"{store} --archive {shlex.quote(str(place.recorded))}"
        captures = f"--store {shlex.quote(place.captures_url)} --name {CAPTURES}"
        one = history.clones[0]
        replica = shlex.quote(f"archive:{place.replica(one.prefix)}")
        when = snapkv.format_time(story.sightings[0].ts)
        commands = [f"{etcd.command} &"] if etcd else []
        commands += [
            f"snapkv diff {then.date} {now.date} {past}",
            f"snapkv log --store {replica}",
            f"cdcmeta generations list {store}",
            f"cdcmeta changefeed history {ARCHIVE} {one.prefix} {captures}",
        ]
        commands += [] if etcd else [f"cdcmeta changefeed status {ARCHIVE} --at {when} {captures}"]
        commands += [f"snapkv ui {past}"]
        self._console.print()
        say(self._console, "bold", "Try next:")
        for command in commands:
            say(self._console, "", f"  {command}")


def _matrix(report: Report, title: str, names: Mapping[str, str]) -> Table:
    """Return a table with a row for each way to ask, and a column for each thing asked for."""
    rows = report.rows(title)
    shown = [row for row in names if row in rows]
    table = plain_table("", *(names[row] for row in shown))
    for way in report.ways(title):
        table.add_row(way, *(_cell(rows[row].get(way)) for row in shown))
    return table


def _cell(answer: Answer | None) -> Text:
    if answer is None:
        return Text("-", "dim")
    return Text(answer.note, "dim") if answer.note else verdict_text(answer.equal)
