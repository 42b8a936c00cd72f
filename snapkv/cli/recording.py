"""The command record: keep the history of a store, or of keys of other programs, elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any

from snapkv.base.clocks import SystemClock
from snapkv.cli.command_output import Output
from snapkv.cli.commands import option
from snapkv.cli.exits import CommandError, message_of, sigterm_as_interrupt
from snapkv.cli.formats import Json, counted, time_json, time_text
from snapkv.cli.server_options import MetricsOption, metrics_served
from snapkv.cli.store_options import StoreOptions, grouped, takes, warnings_shown
from snapkv.cli.terminal import report, report_error, report_warning, status_line
from snapkv.cli.tick_command import Stop
from snapkv.copying import record as recorder_of
from snapkv.copying.record_options import RecordStatus
from snapkv.store.open import STORE_VARIABLE

IntoOption = Annotated[
    str | None,
    option(
        "--into PLACE",
        "Where history is kept: a folder or s3://BUCKET/PATH (an archive), or lmdb:PATH or "
        "etcd://HOST:PORT (another store).",
    ),
]


RedactOption = Annotated[
    list[str] | None,
    option(
        "--redact PREFIX",
        "With --observe: of values of keys that begin so, record only size and digest.",
    ),
]
RedactKeyOption = Annotated[
    str | None,
    option(
        "--redact-key FILE",
        "With --redact or --kubernetes: the file with the key of the digests, made if it does not "
        "exist. Keep it where readers of the record cannot read it.",
    ),
]
PLAIN_SECRETS = (
    "the record has Secrets of Kubernetes in plain text, as the API server stores them: all "
    "readers of the record can read them. To record only digests, record into a new place with "
    "--redact /registry/secrets/ --redact-key FILE"
)


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """The options of `record` for a cluster whose API is recorded."""

    kubernetes: Annotated[
        bool,
        option("--kubernetes", "Record a cluster's objects through its API, instead of a store."),
    ] = False
    context: Annotated[
        str | None, option("--context NAME", "The context of the kubeconfig; else the current one.")
    ] = None
    in_cluster: Annotated[
        bool, option("--in-cluster", "In a pod: its own cluster, as its service account.")
    ] = False
    secrets: Annotated[
        bool, option("--secrets", "Record the values of secrets; else digests of them.")
    ] = False

    def url(self, options: StoreOptions) -> str:
        """Return the URL of what is recorded."""
        if not self.kubernetes:
            if self.context is not None or self.in_cluster or self.secrets:
                raise CommandError("--context, --in-cluster and --secrets need --kubernetes")
            return options.url
        if self.context is not None and self.in_cluster:
            raise CommandError("--context and --in-cluster: give one of the two")
        if options.observe is not None or options.store != os.environ.get(STORE_VARIABLE):
            raise CommandError(
                "--kubernetes records a cluster, --store and --observe something else: give one of "
                "the two"
            )
        return f"kubernetes:{'//in-cluster' if self.in_cluster else self.context or ''}"


@takes("observe", "raw")
@grouped(ApiOptions, "cluster", None)
def record(
    options: StoreOptions,
    cluster: ApiOptions,
    into: IntoOption = None,
    into_name: Annotated[str | None, option("--into-name NAME", "The name of that store.")] = None,
    every: Annotated[
        str, option("--every DURATION", "With --observe: record the time this often.")
    ] = "1s",
    flush: Annotated[
        str, option("--flush DURATION", "Of an archive: write files this often, at most.")
    ] = "60s",
    keep: Annotated[
        str | None, option("--keep DURATION", "Drop history older than this; else none.")
    ] = None,
    once: Annotated[
        bool, option("--once", "Record what exists now, print its time, and end.")
    ] = False,
    forget: Annotated[
        bool,
        option("--forget", "Record nothing: let compaction no longer wait for this recording."),
    ] = False,
    redact: RedactOption = None,
    redact_key: RedactKeyOption = None,
    quiet: Annotated[bool, option("--quiet -q", "Print no progress.")] = False,
    metrics: MetricsOption = None,
) -> None:
    """Copy each commit to another place, where compaction of the store cannot reach it.

    The copy has the same times, writers and notes. Runs until Ctrl-C or SIGTERM, and continues
    after failures and restarts where it stopped. One recorder works at a time; another one waits.
    With --observe or --kubernetes it copies what other programs write, with the times at which it
    saw it. --json prints a line each second.
    """
    if into is None:
        raise CommandError("record needs --into FOLDER, s3://BUCKET/PATH, lmdb:PATH or etcd://...")
    settings: dict[str, Any] = {"every": every, "flush": flush, "keep": keep}
    observed = None if cluster.kubernetes else options.observed
    settings |= {"observe": observed, "exclude": options.exclude or (), "secrets": cluster.secrets}
    settings |= {"name": options.store_name, "redact": redact or (), "redact_key": redact_key}
    settings |= {} if into_name is None else {"into_name": into_name}
    with ExitStack() as stack:
        # these two end by themselves: a signal interrupts them
        stop = stack.enter_context(sigterm_as_interrupt() if once or forget else Stop())
        shown = stack.enter_context(status_line(shown=not (quiet or options.structured)))
        shows = RecorderProgress(options.output, shown, quiet or once)
        settings["hooks"], _ = stack.enter_context(metrics_served(metrics))
        recorder = recorder_of(cluster.url(options), into=into, report=shows, **settings)
        if forget:
            with options.open_store() as store:
                store.forget_recording(recorder.options.place)
            return
        with warnings_shown():
            if stop is None:
                newest = recorder.catch_up(timeout=None)
            else:
                recorder.run(stop)
                newest = recorder.status.recorded
    fields = {**time_json(newest), "revision": recorder.status.recorded_revision}
    if once:
        options.output.record(fields, options.output.time(newest))
    elif newest and not options.structured:
        report(f"snapkv: recorded up to {time_text(newest, raw=options.raw)}")


class RecorderProgress:
    """Shows what a recorder reports: a changing line, and a line for each change of its state."""

    def __init__(self, output: Output, shown: Callable[[str], None], quiet: bool) -> None:
        self._output, self._shown, self._quiet = output, shown, quiet
        self._state, self._gaps, self._warned = "starting", 0, False
        self._unread: set[str] = set()

    def __call__(self, status: RecordStatus) -> None:
        """Show a status."""
        for gap in status.gaps[self._gaps :]:
            report(f"snapkv: {gap}")
        self._gaps = len(status.gaps)
        if status.has_secrets and not self._warned:
            self._warned = True
            report_warning(PLAIN_SECRETS)
        new = [(why, name) for name, why in status.unread.items() if name not in self._unread]
        for why, names in groupby(sorted(new), key=itemgetter(0)):
            report(f"snapkv: not recorded: {', '.join(name for _, name in names)}: {why}")
        self._unread.update(status.unread)
        changed, self._state = status.state != self._state, status.state
        if changed:
            self._report_state(status)
        if self._quiet:
            return
        if self._output.structured:
            self._output.record(status_json(status), flush=True)
        else:
            self._shown(status_text(status))

    def _report_state(self, status: RecordStatus) -> None:
        if status.state == "waiting":
            assert status.error is not None
            report_error(f"{message_of(status.error)}; it goes on trying")
        elif status.state == "standby":
            report("snapkv: another recorder writes there; waiting until it ends")
        elif not (self._quiet or self._output.structured):
            known = time_text(status.recorded) if status.recorded else "the beginning"
            report(f"snapkv: recording, from {known} on")


def status_text(status: RecordStatus) -> str:
    """Return one line about a recorder."""
    parts = [
        f"{status.state}: {counted(status.commits, 'commit')}",
        counted(status.changes, "change"),
        f"recorded up to {time_text(status.recorded)}",
    ]
    lag = status.lag_s(SystemClock().now_ms())
    if lag:
        parts.append(f"{lag:.0f} s and {status.bytes:,} bytes behind")
    return ", ".join(parts)


def status_json(status: RecordStatus) -> Json:
    """Return what a recorder reports for JSON."""
    return asdict(replace(status, error=None)) | {
        "recorded": time_json(status.recorded or None),
        "seen": time_json(status.seen or None),
        "lag_s": round(status.lag_s(SystemClock().now_ms()), 3),
        "error": None if status.error is None else message_of(status.error),
    }
