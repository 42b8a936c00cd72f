"""Options that many commands share, and opening the store that they name."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

from snapkv.base.files import check_mode
from snapkv.cli.command_output import FORMATS, Output
from snapkv.cli.commands import argument, option
from snapkv.cli.exits import CommandError
from snapkv.cli.formats import ZONE_VARIABLE, ZONES, counted
from snapkv.cli.pager import paged
from snapkv.cli.terminal import patience, report_warning
from snapkv.store.location import DEFAULT_NAME, Location
from snapkv.store.open import STORE_VARIABLE, Keys, open_to_read
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV
from snapkv.timeline import RING_SLOTS
from snapkv.times import duration_ms

if TYPE_CHECKING:
    from snapkv.rendering.audit_log import AuditLog

WRITER_VARIABLE = "SNAPKV_WRITER"
MODE_DIGITS_MAX = 5
ONE_SLOT = 1
"""The slots of the ring of a command that looks up one or two times."""


StoreOption = Annotated[
    str | None,
    option(
        "--store URL",
        "The store, as in lmdb:./meta or etcd://HOST:PORT; else the environment's "
        f"{STORE_VARIABLE}.",
    ),
]
NameOption = Annotated[
    str | None, option("--name NAME", f"The store's name in that place; else {DEFAULT_NAME!r}.")
]
JsonOption = Annotated[
    bool, option("--json", "Answer in JSON, one document on each line: -o json.")
]
OutputOption = Annotated[
    str | None,
    option(
        "--output -o FORMAT",
        f"How to answer: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}; else {FORMATS[0]}.",
        autocompletion=lambda: list(FORMATS),
    ),
]
NoPagerOption = Annotated[bool, option("--no-pager", "Use no pager on a terminal.")]
RawOption = Annotated[
    bool,
    option(
        "--raw",
        "Show times as timestamps, which name one commit exactly, and keys as they are stored.",
    ),
]
LocalOption = Annotated[
    bool, option("--local", f"Show local times, or times of the zone in {ZONE_VARIABLE}.")
]
AtOption = Annotated[
    str | None, option("--at TIME", "The moment to read: 14:05, yesterday, 1h ago.")
]
NoteOption = Annotated[str | None, option("--note TEXT", "Why, for the commit log.")]
MetaOption = Annotated[
    list[str] | None,
    option("--meta NAME=TEXT", "A fact for the commit log, as request=r-17; repeatable."),
]
WriterOption = Annotated[
    str | None,
    option(
        "--writer TEXT",
        f"The writer in the commit log; else {WRITER_VARIABLE}, else user@host.",
        envvar=WRITER_VARIABLE,
        show_envvar=False,
    ),
]
ObserveOption = Annotated[
    list[str] | None,
    option(
        "--observe PREFIX",
        "Instead of the store's keys: keys of other programs, at its ticks; repeatable.",
    ),
]
ExceptOption = Annotated[
    list[str] | None,
    option(
        "--except PREFIX",
        "With --observe, or --kubernetes of record: without keys that begin so; repeatable.",
    ),
]
YesOption = Annotated[bool, option("--yes -y", "Do it without asking.")]
ForceForkOption = Annotated[
    bool,
    option("--force-fork", "Write to a record, too: it becomes a store of its own, for ever."),
]
ArchiveOption = Annotated[
    str | None,
    option(
        "--archive URL",
        "The store's archive, which has what was compacted: a folder or s3://BUCKET/PATH.",
    ),
]
AuditOption = Annotated[
    list[str] | None,
    option(
        "--audit FILE",
        "The audit log of a Kubernetes API server, also .gz: show its users; repeatable.",
    ),
]
TimeoutOption = Annotated[
    str | None,
    option(
        "--timeout DURATION",
        "Fail (code 7) when opening or reading takes longer than this, such as 500ms or 5s.",
    ),
]
ModeOption = Annotated[
    str | None,
    option(
        "--mode OCTAL",
        "Permissions of the new files, such as 640; else only their owner has access.",
    ),
]
SinceOption = Annotated[str | None, option("--since TIME", "Only what came after this.")]
UntilOption = Annotated[str | None, option("--until TIME", "Only what came up to this.")]
OldestFirst = Annotated[bool, option("--oldest-first", "Turn the order around.")]
KeyArgument = Annotated[str, argument("KEY")]
PrefixesArgument = Annotated[
    list[str] | None, argument("PREFIX", "Only keys that begin so, exact to the byte.")
]
PrefixesOption = Annotated[
    list[str] | None, option("--prefix PREFIX", "Only keys that begin so; repeatable.")
]
IgnoreCaseOption = Annotated[
    bool, option("--ignore-case -i", "Ignore case, of values that of ASCII letters.")
]
PatchOption = Annotated[bool, option("--patch -p", "Print what each commit changed, as diff does.")]
CountOption = Annotated[int | None, option("-n --count N", "At most N.", min=0)]


def file_mode(text: str | None) -> int | None:
    """Return the permissions of files on the command line, in octal; None for none."""
    if text is None:
        return None
    digits = text.removeprefix("0o")
    if not 0 < len(digits) <= MODE_DIGITS_MAX or not set(digits) <= set("01234567"):
        raise CommandError(f"--mode takes the digits of chmod, such as 640, not {text!r}")
    return check_mode(int(digits, 8))


def facts_of(meta: Sequence[str] | None) -> dict[str, str] | None:
    """Return the facts of --meta; None without any."""
    found: dict[str, str] = {}
    for text in meta or ():
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise CommandError(f"--meta takes NAME=TEXT, not {text!r}")
        if name in found:
            raise CommandError(f"--meta takes each name once, not {name!r} twice")
        found[name] = value
    return found or None


def seconds(duration: str | None) -> float | None:
    """Return the seconds of a duration on the command line; None for none."""
    return None if duration is None else duration_ms(duration) / 1_000


@contextmanager
def warnings_shown(*, again: bool = False) -> Iterator[None]:
    """Show the block's warnings, a line each, if it succeeds; with `again` drop them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in () if again else caught:
        report_warning(str(warning.message))


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options that many commands share, in the order in which their help lists them."""

    note: NoteOption = None
    meta: MetaOption = None
    writer: WriterOption = None
    force_fork: ForceForkOption = False
    observe: ObserveOption = None
    exclude: ExceptOption = None
    archive: ArchiveOption = None
    audit: AuditOption = None
    timeout: TimeoutOption = None
    store: StoreOption = None
    name: NameOption = None
    output_format: OutputOption = None
    as_json: JsonOption = False
    no_pager: NoPagerOption = False
    raw: RawOption = False
    local: LocalOption = False

    def __post_init__(self) -> None:
        ZONES.choose(local=self.local)
        if self.output_format not in (None, *FORMATS):
            raise CommandError(
                f"--output takes {', '.join(FORMATS)}, not {self.output_format!r}: choose one"
            )
        if self.as_json and self.output_format not in (None, "json"):
            raise CommandError(f"--json and --output {self.output_format}: give one of the two")

    @property
    def facts(self) -> dict[str, str] | None:
        """The facts of --meta; None without any."""
        return facts_of(self.meta)

    @property
    def said(self) -> dict[str, Any]:
        """What a commit says of itself: the arguments of a call that writes."""
        return {"note": self.note, "meta": self.facts}

    @property
    def output(self) -> Output:
        """Where the command's answer goes."""
        return Output("json" if self.as_json else self.output_format or FORMATS[0], self.raw)

    @property
    def structured(self) -> bool:
        """Whether the answer is for programs: JSON or YAML."""
        return self.output.structured

    def audit_log(self, keys: Sequence[str] | None = None) -> AuditLog | None:
        """Read the audit log, all of it or what it has of some keys; None without one."""
        if not self.audit:
            return None
        from snapkv.rendering.audit_log import AuditLog

        found = AuditLog(self.audit, keys)
        if found.broken:
            lines = counted(found.broken, "line")
            report_warning(f"{lines} of the audit log cannot be read and are left out")
        return found

    @contextmanager
    def long_output(self, *headings: str) -> Iterator[Output]:
        """Yield the output of a command that may print much: on a terminal, through a pager.

        `headings` are a table's headings. Enter it before the store is opened: when the block ends,
        it waits for the reader of the pager.
        """
        with paged(wanted=not self.no_pager), self.output.headed(*headings) as output:
            output.remark = ZONES.remark
            yield output

    @contextmanager
    def open_store(
        self, *, create: bool = False, silent: bool = False, asks: bool = False, **more: Any
    ) -> Iterator[SnapshotKV]:
        """Open the store, and close it in the end.

        If opening takes long, a line on the error stream names the store, unless `silent`. A
        command that `asks` fails before that if it may not write. `more` are options of
        `snapkv.open`.
        """
        url = self.url
        with warnings_shown(), nullcontext() if silent else patience(url):
            store = open_store(
                url,
                name=self.store_name,
                writer=self.writer,
                create=create,
                read_timeout=seconds(self.timeout),
                archive=self.archive,
                force_fork=self.force_fork,
                **more,
            )
        if create and url.startswith("memory:"):
            report_warning(f"a store in {url} is gone when this command ends; try lmdb:./meta")
        with store:
            if asks:
                store._core.check_own()
            yield store

    @contextmanager
    def readable(self, *, ring_slots: int = RING_SLOTS) -> Iterator[Keys]:
        """Open the store, or with --observe the keys under these prefixes, for reading.

        A command that looks up one or two times gives `ONE_SLOT`: otherwise its first lookup of a
        past time reads the newest `RING_SLOTS` commits.
        """
        if self.observe and self.archive is not None:
            raise CommandError(
                "--observe reads what the engine has; for an archive of such keys give "
                f"--store archive:{self.archive}, without --observe and --archive"
            )
        location = self.location
        with warnings_shown(), patience(location.url):
            timeout = seconds(self.timeout)
            keys = open_to_read(location, ring_slots=ring_slots, read_timeout=timeout)
        with keys:
            yield keys

    @property
    def url(self) -> str:
        """The store's URL, which the command needs."""
        if not self.store:
            raise CommandError(f"which store? Give --store lmdb:PATH or set {STORE_VARIABLE}")
        return self.store

    @property
    def store_name(self) -> str:
        """The store's name in that place."""
        return DEFAULT_NAME if self.name is None else self.name

    @property
    def location(self) -> Location:
        """Where the keys are that the command reads."""
        return Location(
            self.url,
            self.store_name,
            self.observed,
            self.archive,
            exclude=tuple(self.exclude or ()),
        )

    @property
    def observed(self) -> str | tuple[str, ...] | None:
        """The prefix of --observe, or several."""
        if self.exclude and not self.observe:
            raise CommandError("--except leaves keys out of what --observe names: give --observe")
        given = tuple(self.observe or ())
        return given[0] if len(given) == 1 else given or None


_OF_STORES = {"store", "name"}
_ALWAYS = {"output_format", "as_json", "local"}


def takes(*names: str, store: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that adds --output, --json and the shared options `names`.

    And --store and --name, unless `store` is false. The command gets them as a `StoreOptions`, its
    argument `options`.
    """
    also = {"exclude"} if "observe" in names else set[str]()
    wanted = _ALWAYS.union(names, also, _OF_STORES if store else ())
    return grouped(StoreOptions, "options", wanted)


def grouped(
    group: type[Any], argument: str, names: set[str] | None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that adds the options of a dataclass (None: all) to a command.

    The command gets them as one argument; its own parameters come first in its help. An option that
    the command declares itself takes the place of the shared one, and the command gets it twice.
    """
    parameters = inspect.signature(group, eval_str=True).parameters
    shared = [name for name in parameters if names is None or name in names]

    def decorator(command: Callable[..., None]) -> Callable[..., None]:
        found = inspect.signature(command, eval_str=True).parameters.values()
        own = [param for param in found if param.name != argument]
        own_names = {param.name for param in own}
        added = [parameters[name] for name in shared if name not in own_names]

        @wraps(command)
        def run(**values: Any) -> None:
            values[argument] = group(**{name: values[name] for name in shared})
            for param in added:
                del values[param.name]
            command(**values)

        run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        return run

    return decorator
