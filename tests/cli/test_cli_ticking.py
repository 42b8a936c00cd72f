"""The ticker: regular, patient, ended by a signal; in processes of its own where that counts."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from cli_runner import PROCESS_TIMEOUT_S, Cli, without_advice
from cli_terminal import following, terminal
from etcd_server import EtcdProxy, EtcdServer, eventually

import snapkv
from snapkv.cli import tick_command
from snapkv.cli.tick_command import RegularTicker, Stop
from snapkv.errors import ClockSkewError, EngineUnavailableError, ReadOnlyError

pytestmark = pytest.mark.slow

IMPATIENT = [
    *(sys.executable, "-c"),
    "import functools, sys\n"
    "from snapkv.cli import __main__ as program, store_options\n"
    "from snapkv.engine.etcd import cluster_client\n"
    "cluster_client.READ_TIMEOUT_S = 1.0\n"
    "store_options.open_store = functools.partial(store_options.open_store, commit_timeout=1.0)\n"
    "sys.exit(program.main())",
]
"""The command line, with one second for what may take a dozen when no server answers."""


def error_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the next line of the error stream that is not about the server itself.

    Its version may be an old one, and on a busy machine it may not show its clock in time.
    """
    assert process.stderr is not None
    lines = (line for line in process.stderr if b"shows no clock by HTTP" not in line)
    return next((line for line in lines if without_advice(line)), b"")


def ticks(cli: Cli) -> list[snapkv.Commit]:
    with snapkv.open(cli.url) as store:
        return list(store.commits())


def test_tick_beats_until_its_count(any_cli: Cli) -> None:
    cli = any_cli
    assert len(cli.ok("tick", "--json").json) == 1
    assert len(cli.ok("tick", "--every", "100ms", "-n", "3", "--json").json) == 3
    assert cli.ok("tick", "--every", "100ms", "-n", "2").out == ""
    assert cli.ok("tick", "--every", "100ms", "-n", "1", "--quiet", "--json").out == ""
    assert len(cli.ok("log", "--ticks").lines) == 7
    assert cli.ok("tick", "--every", "100ms", "-n", "0").err == ""
    assert len(cli.ok("log", "--ticks").lines) == 7


@pytest.mark.parametrize(
    "words",
    [["-n", "2"], ["--every", "0s"], ["--every", "99ms"], ["--every", "often"], ["--every", "-1s"]],
    ids=" ".join,
)
def test_a_period_that_makes_no_sense_makes_no_store(cli: Cli, words: list[str]) -> None:
    answer = cli("tick", *words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert not (cli.place / "meta").exists()


class Virtual(Stop):
    """Time that passes only by waiting, and by ticks that take some."""

    now = 1_000.0

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@pytest.mark.parametrize(
    ("takes_s", "beats"),
    [
        ([0.1, 0.9, 0.0, 0.3], [0, 1, 2, 3]),  # however long one takes: the next is in time
        ([1.2, 0.1, 0.1, 0.1], [0, 2, 3, 4]),  # one was missed, and is not caught up on
        ([0.0, 5.5, 0.0, 0.0], [0, 1, 7, 8]),
        ([1.0, 1.0, 1.0, 0.0], [0, 2, 4, 6]),
    ],
)
def test_ticks_keep_to_their_times(
    monkeypatch: pytest.MonkeyPatch, takes_s: list[float], beats: list[int]
) -> None:
    stop, began, durations = Virtual(), [], iter(takes_s)

    class Store:
        def tick(self) -> snapkv.Commit:
            began.append(stop.now)
            stop.now += next(durations)
            return snapkv.Commit(1, 0, 1, "ticker")

    monkeypatch.setattr(tick_command, "monotonic", lambda: stop.now)
    store = cast(snapkv.SnapshotKV, Store())
    RegularTicker(lambda: store, lambda ticker, commit: None).run(1.0, 4, stop)
    assert began == [1_000.0 + beat for beat in beats]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_tick(any_cli: Cli, number: signal.Signals) -> None:
    cli = any_cli
    for every in ("100ms", "1h"):
        with following(cli, "tick", "--every", every, "--json") as (process, output):
            first = json.loads(output.readline())  # at once, though it is a pipe
            process.send_signal(number)
            assert process.wait(PROCESS_TIMEOUT_S) == 0
            told = [first, *map(json.loads, output.read().splitlines())]
            assert error_line(process) == b""
        written = [str(commit.ts) for commit in ticks(cli)]
        assert written[-len(told) :] == [tick["timestamp"] for tick in told]


@pytest.fixture
def proxied(make_cli: Callable[[str], Cli], etcd: EtcdServer) -> Iterator[tuple[Cli, EtcdProxy]]:
    """A command line whose words to its server can be stopped on the way."""
    with EtcdProxy(etcd) as proxy:
        yield make_cli(proxy.url), proxy


def test_a_signal_while_a_tick_is_in_flight_waits_for_it(
    proxied: tuple[Cli, EtcdProxy], etcd: EtcdServer
) -> None:
    cli, proxy = proxied
    with following(cli, "tick", "--every", "100ms", "--json", "--writer", "slow") as (
        process,
        output,
    ):
        told = [output.readline()]
        answer = proxy.delay_answer(b"slow")
        answer.wait_triggered()
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        answer.release()
        assert process.wait(PROCESS_TIMEOUT_S) == 0
        told += output.readlines()
    with snapkv.open(etcd.url) as store:
        written = [str(commit.ts) for commit in store.commits()]
    assert written == [json.loads(line)["timestamp"] for line in told]


def test_a_second_signal_ends_it_at_once(proxied: tuple[Cli, EtcdProxy]) -> None:
    cli, proxy = proxied
    with following(cli, "tick", "--every", "100ms", "--json", "--writer", "slow") as (
        process,
        output,
    ):
        assert output.readline()
        proxy.delay_answer(b"slow").wait_triggered()
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROCESS_TIMEOUT_S) == -signal.SIGTERM


def test_it_outlives_an_outage(etcd_cli: Cli, etcd: EtcdServer) -> None:
    with following(etcd_cli, "tick", "--every", "100ms", "--json", program=IMPATIENT) as (
        process,
        output,
    ):
        assert output.readline()
        etcd.stop()
        began = error_line(process)
        assert began.startswith(b"snapkv: ")
        assert began.endswith(b"; it goes on trying\n")
        etcd.start()
        over = error_line(process)
        assert over.startswith(b"snapkv: ticks again, after "), over
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROCESS_TIMEOUT_S) == 0
        assert error_line(process) == b""
    with snapkv.open(etcd_cli.url) as store:
        assert store.check().problems == ()


def test_it_may_begin_before_its_server(etcd_cli: Cli, etcd: EtcdServer) -> None:
    etcd.stop()
    with following(etcd_cli, "tick", "--every", "100ms", program=IMPATIENT) as (process, _):
        assert error_line(process).endswith(b"; it goes on trying\n")
        etcd.start()
        assert error_line(process).startswith(b"snapkv: ticks again, after ")
        eventually(lambda: len(ticks(etcd_cli)) > 2, "ticks")


def test_what_passes_is_told_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real = snapkv.SnapshotKV.tick
    passing = [
        None,
        ClockSkewError("the clock is off", 9_000, 5_000),
        EngineUnavailableError("nobody answers"),
        snapkv.CommitUnknownError(1, b"n", may_still_land=True),
        None,
        None,
        snapkv.CommitTimeoutError("too slow"),
    ]

    def tick(store: snapkv.SnapshotKV) -> snapkv.Commit:
        if (error := passing.pop(0)) is not None:
            raise error
        return real(store)

    monkeypatch.setattr(snapkv.SnapshotKV, "tick", tick)
    answer = cli.ok("tick", "--every", "100ms", "-n", "7", "--json")
    assert len(answer.lines) == 3
    assert answer.err.splitlines() == [
        "snapkv: the clock is off; it goes on trying",
        "snapkv: ticks again, after 3 ticks that failed",
        "snapkv: too slow; it goes on trying",
    ]


def test_what_does_not_pass_ends_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def tick(store: snapkv.SnapshotKV) -> snapkv.Commit:
        raise ReadOnlyError("no way")

    monkeypatch.setattr(snapkv.SnapshotKV, "tick", tick)
    answer = cli("tick", "--every", "100ms")
    assert (answer.code, answer.err) == (5, "snapkv: no way\n")


def test_a_terminal_sees_how_it_goes(cli: Cli) -> None:
    with terminal(cli, "tick", "--every", "100ms") as screen:
        screen.wait_for(" ticks, the newest at 2")  # a busy machine shows few of the numbers
        screen.process.send_signal(signal.SIGINT)
    assert screen.process.returncode == 0
    with terminal(cli, "tick", "--every", "100ms", "-n", "2", "--quiet") as screen:
        pass
    assert b"ticking" not in screen.shown


def test_signals_are_given_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Stop() as stop:
        stop.wait(0)
        signal.raise_signal(signal.SIGTERM)
        assert stop.wanted
        stop.wait(60)  # returns at once
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_a_signal_that_interrupts_no_wait_ends_it() -> None:
    """As one does that comes just before the wait begins: no system call of this thread sees it."""
    with Stop() as stop:
        ending = threading.Timer(
            0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        )
        ending.start()
        began = time.monotonic()
        stop.wait(PROCESS_TIMEOUT_S)
        ending.join()
    assert stop.wanted
    assert time.monotonic() - began < PROCESS_TIMEOUT_S / 2


def test_other_signals_do_not_end_a_wait() -> None:
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        with Stop() as stop:
            signal.raise_signal(signal.SIGUSR1)
            began = time.monotonic()
            stop.wait(0.2)
            assert time.monotonic() - began >= 0.2
            assert not stop.wanted
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stop() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.wanted
    finally:
        signal.signal(signal.SIGINT, before)
