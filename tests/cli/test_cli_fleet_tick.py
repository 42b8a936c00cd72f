"""The command fleet tick: one time for all members, regularly, whatever some of them do."""

import json
import signal
from collections.abc import Mapping

import pytest
from cli_fleet import Sites
from cli_runner import PROCESS_TIMEOUT_S, Cli
from cli_terminal import following, terminal

import snapkv
from snapkv.cli.fleet import tick_members
from snapkv.cli.fleet.tick_members import REFUSED_ROUNDS, Rounds
from snapkv.clock import SystemClock
from snapkv.fleet.tick_rounds import TICK_TIMEOUT_S, Round

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000


@pytest.fixture
def sites(cli: Cli) -> Sites:
    """Two stores that do not exist yet; a busy machine may take its time for a round."""
    cli.patch.setattr(tick_members, "ROUND_S_MIN", TICK_TIMEOUT_S)
    made = Sites(cli)
    made.describe(eu="lmdb:./eu", us="lmdb:./us")
    return made


def commits(sites: Sites, site: str) -> list[snapkv.Commit]:
    with snapkv.open(f"lmdb:{sites.cli.place / site}", create=False) as store:
        return list(store.commits())


def ahead(sites: Sites, site: str, ms: int) -> int:
    """Commit with a clock that is ahead; return the timestamp."""
    clock = snapkv.ManualClock(SystemClock().now_ms() + ms)
    url = f"lmdb:{sites.cli.place / site}"
    with snapkv.open(url, clock=clock, max_clock_skew=ms) as store:
        return store.save("a", b"1")


def test_one_round(sites: Sites) -> None:
    cli = sites.cli
    answer = cli.ok("fleet", "tick", "--json", "--writer", "ticker@mon")
    (told,) = answer.json
    assert told["ticked"] == ["eu", "us"]
    assert (told["refused"], told["failed"], answer.err) == ({}, {}, "")
    assert told["spread_s"] > 0
    for site in ("eu", "us"):
        (commit,) = commits(sites, site)
        assert (str(commit.ts), commit.writer) == (told["timestamp"], "ticker@mon")
    line = cli.ok("fleet", "tick").lines[0]
    assert "  2 of 2 members  within " in line
    assert cli.ok("fleet", "tick", "--quiet").out == ""
    assert len(commits(sites, "us")) == 3
    assert cli.ok("fleet", "tick", "--members", "eu", "--json").json[0]["ticked"] == ["eu"]
    assert cli.ok("fleet", "tick", "-o", "table").lines[0].split() == ["TIME", "TICKED", "SPREAD"]


def test_rounds_until_their_count(sites: Sites) -> None:
    cli = sites.cli
    rounds = cli.ok("fleet", "tick", "--every", "100ms", "-n", "4", "--json").json
    assert [each["ticked"] for each in rounds] == [["eu", "us"]] * 4
    stamps = [each["timestamp"] for each in rounds]
    assert [str(commit.ts) for commit in commits(sites, "eu")] == stamps
    assert [str(commit.ts) for commit in commits(sites, "us")] == stamps
    answer = cli.ok("fleet", "tick", "--every", "100ms", "-n", "2")
    assert answer.out == ""
    assert answer.err.startswith("snapkv: 2 rounds, the newest at ")
    assert " on 2 of 2 members, within " in answer.err
    assert cli.ok("fleet", "tick", "--every", "100ms", "-n", "1", "-q", "--json").out == ""
    assert cli.ok("fleet", "log").out == "", "rounds are ticks"
    assert len(cli.ok("fleet", "log", "--ticks", "--json").json) == 2 * 7


def test_moments_show_rounds(cli: Cli) -> None:
    """Observed members, here keys of other stores beside the ticking ones, are shown within one."""
    cli.patch.setattr(tick_members, "ROUND_S_MIN", TICK_TIMEOUT_S)
    made = Sites(cli)
    for site in ("eu", "us"):
        with snapkv.open(f"lmdb:{cli.place / site}", name="app") as store:
            store.save("image", b"v1")
    prefix = 'prefix = "app/data/"'
    made.describe(**{site: f'url = "lmdb:./{site}", {prefix}' for site in ("eu", "us")})
    alone = cli("fleet", "ls")
    assert (alone.code, "is not final" in alone.err or "no moment" in alone.err) == (7, True)
    first, second, _ = cli.ok("fleet", "tick", "--every", "100ms", "-n", "3", "--json").json
    shown = cli.ok("fleet", "get", "app/data/image")
    assert shown.lines == ['eu  "v1"', 'us  "v1"']
    assert shown.err.startswith(f"snapkv: shown at the round {second['time']}, within ")
    at_first = cli.ok("fleet", "ls", "--at", first["timestamp"])
    assert at_first.err.startswith(f"snapkv: shown at the round {first['time']}, within ")
    for site in ("eu", "us"):  # by tickers of their own
        cli.ok("tick", "--store", f"lmdb:./{site}")
    cli.ok("fleet", "tick")
    late = cli.ok("fleet", "ls", "--behind", "stale")
    assert late.lines == ["eu  app/data/image", "us  app/data/image"]


def test_members_without_a_common_round_are_said_to_be_so(cli: Cli) -> None:
    made = Sites(cli)
    prefix = 'prefix = "app/data/"'
    made.describe(**{site: f'url = "lmdb:./{site}", {prefix}' for site in ("eu", "us")})
    for site in ("eu", "us"):
        cli.ok("tick", "--store", f"lmdb:./{site}")
    ticked = cli.ok("tick", "--store", "lmdb:./eu", "--json").json[0]["timestamp"]
    cli.ok("tick", "--store", "lmdb:./us")
    answer = cli.ok("fleet", "ls", "--at", ticked)
    assert "no round of ticks is known at that time" in answer.err


def test_a_member_that_is_ahead_does_not_stop_the_others(sites: Sites) -> None:
    newest = ahead(sites, "us", HOUR_MS)
    rounds = sites.cli.ok("fleet", "tick", "--every", "100ms", "-n", "5", "--json")
    assert [each["ticked"] for each in rounds.json] == [["eu"]] * 5
    assert int(rounds.json[-1]["refused"]["us"]["timestamp"]) >= newest
    warning, line = rounds.err.splitlines()
    assert warning.startswith("snapkv: warning: the newest commit of lmdb:")
    assert line.startswith("snapkv: us: its time is ")
    with pytest.warns(snapkv.ClockWarning):
        assert len(commits(sites, "us")) == 1, "it refused all rounds"


def test_a_member_that_is_a_little_ahead_takes_part_in_the_next_round(sites: Sites) -> None:
    """It is followed; on a machine that takes seconds for this, the clock itself reaches it."""
    newest = ahead(sites, "us", 4_500)
    *_, last = sites.cli.ok("fleet", "tick", "--every", "100ms", "-n", "3", "--json").json
    assert last["ticked"] == ["eu", "us"]
    assert int(last["timestamp"]) > newest


def test_a_member_that_refuses_one_round_is_named(sites: Sites) -> None:
    """Far ahead, so that no clock reaches it meanwhile."""
    ahead(sites, "us", HOUR_MS)
    one = sites.cli.ok("fleet", "tick", "--json")
    assert (one.json[0]["ticked"], list(one.json[0]["refused"])) == (["eu"], ["us"])
    assert one.err.splitlines()[-1] == "snapkv: 1 member had a newer time already: us"


def test_a_member_that_fails_does_not_stop_the_others(sites: Sites) -> None:
    (sites.cli.place / "us").write_text("a file, where a directory should be")
    one = sites.cli("fleet", "tick", "--json")
    assert (one.code, one.json[0]["ticked"]) == (7, ["eu"])
    assert one.err.startswith("snapkv: us: ")
    assert list(one.json[0]["failed"]) == ["us"]
    several = sites.cli.ok("fleet", "tick", "--every", "100ms", "-n", "3", "--json")
    assert [each["ticked"] for each in several.json] == [["eu"]] * 3
    (line,) = several.err.splitlines()
    assert line.endswith("; it goes on trying")


@pytest.mark.long_after(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_round(sites: Sites, number: signal.Signals) -> None:
    cli = sites.cli
    for every in ("1s", "1h"):
        with following(cli, "fleet", "tick", "--every", every, "--json") as (process, output):
            first = json.loads(output.readline())
            process.send_signal(number)
            assert process.wait(PROCESS_TIMEOUT_S) == 0
            told = [first, *map(json.loads, output.read().splitlines())]
            assert process.stderr is not None
            assert process.stderr.read() == b""
        assert all(each["ticked"] == ["eu", "us"] for each in told)
        for site in ("eu", "us"):
            written = [str(commit.ts) for commit in commits(sites, site)]
            assert written[-len(told) :] == [each["timestamp"] for each in told]


def test_a_terminal_sees_how_it_goes(sites: Sites) -> None:
    with terminal(sites.cli, "fleet", "tick", "--every", "100ms") as screen:
        screen.wait_for("ticking every 100ms: 3 rounds, the newest at 2")
        screen.process.send_signal(signal.SIGINT)
    assert screen.process.returncode == 0


def told_of(
    capsys: pytest.CaptureFixture[str], *rounds: tuple[Mapping[str, int], Mapping[str, str]]
) -> list[str]:
    """Return what is said of rounds of given refused and failed members."""
    state = Rounds()
    for number, (refused, failed) in enumerate(rounds, 1):
        state.add(Round(snapkv.pack(number), 0.001, (), refused, failed))
    return capsys.readouterr().err.splitlines()


def test_a_series_of_failures_is_told_at_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    bad = {"us": "no answer"}
    assert told_of(capsys, ({}, {}), ({}, bad), ({}, {"us": "later"}), ({}, {}), ({}, bad)) == [
        "snapkv: us: no answer; it goes on trying",
        "snapkv: us ticks again, after 2 rounds that failed",
        "snapkv: us: no answer; it goes on trying",
    ]


def test_some_refusals_say_nothing_and_many_do(capsys: pytest.CaptureFixture[str]) -> None:
    newest = {"us": snapkv.pack(7)}
    few = [(newest, {})] * (REFUSED_ROUNDS - 1)
    assert told_of(capsys, *few, ({}, {}), *few, ({}, {})) == []
    lines = told_of(capsys, *few, (newest, {}), (newest, {}), ({}, {}))
    assert lines == [
        "snapkv: us: its time is 1970-01-01T00:00:00.007Z, newer than the rounds: another ticker, "
        "or a clock that is ahead",
        f"snapkv: us takes part in the rounds again, after {REFUSED_ROUNDS + 1} without it",
    ]


def test_many_failures_at_once_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    failed = {f"x{n:02}": "no answer" for n in range(14)}
    lines = told_of(capsys, ({}, failed))
    assert len(lines) == 11
    assert lines[-1] == "snapkv: and 4 members more"
