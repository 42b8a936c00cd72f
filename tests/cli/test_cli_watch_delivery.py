"""watch --exec, --webhook and --state: each commit comes, in order, over kills and errors."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli_runner import PROCESS_TIMEOUT_S, Cli
from cli_terminal import following

import snapkv
from snapkv.base.waiting import monotonic, pause
from snapkv.cli import watch_command

pytestmark = pytest.mark.slow

FROM_START = ["watch", "--since", "0"]
UNTIL_QUIET = [*FROM_START, "--timeout", "200ms"]


def wait_until(holds: Callable[[], object]) -> None:
    deadline = monotonic() + PROCESS_TIMEOUT_S
    while not holds():
        assert monotonic() < deadline, "the condition did not come to hold"
        pause(0.01)


def commits(cli: Cli, count: int) -> list[int]:
    """Make commits; return the revisions of all, oldest first."""
    with snapkv.open(cli.url) as store:
        for number in range(count):
            store.save(f"key/{number}", b"%d" % number, note=f"number {number}")
        return [each.revision for each in store.commits()]


def revisions(text: str) -> list[int]:
    return [json.loads(line)["revision"] for line in text.splitlines() if line.endswith("}")]


def distinct(found: list[int]) -> list[int]:
    return list(dict.fromkeys(found))


class Hook:
    """A server on loopback that answers with the next of some statuses, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.posted, self.paths = list(statuses), list[Any](), list[str]()
        self.released = threading.Event()
        self.url = ""


@contextmanager
def hook(*statuses: int) -> Iterator[Hook]:
    """Serve; a status of 0 means that no answer comes before the end."""
    served = Hook(*statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            served.posted.append(json.loads(body))
            served.paths.append(f"{self.path} {self.headers['Content-Type']}")
            status = served.statuses.pop(0) if served.statuses else 200
            if status == 0:
                served.released.wait(PROCESS_TIMEOUT_S)
                return
            self.send_response(status)
            if status == 302:
                self.send_header("Location", served.url + "elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}/in?token=s3cret"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield served
        finally:
            served.released.set()
            server.shutdown()
            thread.join(PROCESS_TIMEOUT_S)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that tests in this process can afford."""
    monkeypatch.setattr(watch_command, "WAIT_S", 0.001)


# --- a command ---


def test_a_command_gets_the_json_that_watch_prints(any_cli: Cli) -> None:
    commits(any_cli, 3)
    for more in ([], ["--patch"], ["--prefix", "key/1", "--prefix", "key/2"]):
        printed = any_cli.ok(*UNTIL_QUIET, *more, "--json")
        assert any_cli.ok(*UNTIL_QUIET, *more, "--exec", "cat > got.$$").out == ""
        got = sorted(any_cli.place.glob("got.*"), key=lambda path: path.stat().st_mtime_ns)
        assert [json.loads(path.read_text()) for path in got] == printed.json
        assert printed.json[-1]["changes"][0]["key"] == "key/2"
        for path in got:
            path.unlink()


def test_a_command_is_run_by_the_shell_and_may_leave_its_input(cli: Cli) -> None:
    """A value that no pipe holds at once: what the command does not read is no error."""
    cli.ok("put", "large", "x" * 1_000_000)
    answer = cli.ok(*UNTIL_QUIET, "--exec", "echo $((40 + 2)) | tr 4 5 > got; exec <&-")
    assert (answer.out, answer.err) == ("", "")
    assert (cli.place / "got").read_text() == "52\n"


def test_commands_run_one_at_a_time(cli: Cli) -> None:
    made = commits(cli, 3)
    line = "mkdir alone && cat >> got && rmdir alone"
    assert cli.ok(*UNTIL_QUIET, "--exec", line).err == ""
    assert revisions((cli.place / "got").read_text()) == made


def test_a_command_that_fails_is_tried_again_then_ends_the_watch(cli: Cli, hasty: None) -> None:
    first, second, third = commits(cli, 3)
    fails = f"cat >> got; ! tail -n 1 got | grep -q '\"revision\": {second},' || exit 3"
    state = ["--state", "position"]
    answer = cli(*UNTIL_QUIET, *state, "--exec", fails)
    assert answer.code == 7
    end = answer.err.splitlines()[-1]
    assert end == f"snapkv: revision {second} is not delivered: the command ended with code 3"
    assert answer.err.count("snapkv: warning: ") == watch_command.TRIES - 1
    tries = [second] * watch_command.TRIES
    assert revisions((cli.place / "got").read_text()) == [first, *tries]

    cli.ok(*UNTIL_QUIET, *state, "--exec", "cat >> rest")
    assert revisions((cli.place / "rest").read_text()) == [second, third]


def test_the_wait_between_tries_grows(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(watch_command, "pause", waits.append)
    commits(cli, 1)
    assert cli(*UNTIL_QUIET, "--exec", "false").code == 7
    assert waits == [0.5 * 2**tried for tried in range(watch_command.TRIES - 1)]


# --- a webhook ---


def test_a_webhook_gets_each_commit_once_and_in_order(cli: Cli) -> None:
    commits(cli, 3)
    printed = cli.ok(*UNTIL_QUIET, "--json").json
    with hook() as served:
        done = cli.ok(*UNTIL_QUIET, "--webhook", served.url)
    assert (done.out, done.err) == ("", "")
    assert served.posted == printed
    assert set(served.paths) == {"/in?token=s3cret application/json"}


@pytest.mark.parametrize("status", [503, 429])
def test_a_server_that_is_busy_twice_gets_the_commit_again(cli: Cli, status: int) -> None:
    first, second = commits(cli, 2)
    with hook(status, status) as served:
        done = cli.process(*UNTIL_QUIET, "--webhook", served.url, "--state", "position")
    assert done.code == 0
    assert [each["revision"] for each in served.posted] == [first, first, first, second]
    assert done.err.count(f"answers {status}; next of ") == 2
    assert "s3cret" not in done.err


@pytest.mark.parametrize("status", [302, 400, 404])
def test_an_answer_that_will_not_change_ends_the_watch_at_once(cli: Cli, status: int) -> None:
    (first,) = commits(cli, 1)
    with hook(status) as served:
        done = cli(*UNTIL_QUIET, "--webhook", served.url)
        host = served.url.split("/")[2]
    assert done.code == 2
    assert done.err == f"snapkv: revision {first} is not delivered: {host} answers {status}\n"
    assert len(served.posted) == 1, "a redirect is not followed"


def test_a_slow_server_costs_a_bounded_wait(
    cli: Cli, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_command, "ANSWER_S", 0.2)
    first, second = commits(cli, 2)
    with hook(0) as served:
        answer = cli(*UNTIL_QUIET, "--webhook", served.url)
        assert answer.code == 0
        assert "timed out; next of 6 tries" in answer.err
        assert [each["revision"] for each in served.posted] == [first, first, second]


def test_a_server_that_is_away_ends_the_watch_in_the_end(cli: Cli, hasty: None) -> None:
    commits(cli, 1)
    with hook() as served:
        url = served.url
    answer = cli(*UNTIL_QUIET, "--webhook", url, "--state", "position")
    assert answer.code == 7
    assert "Connection refused" in answer.err
    assert "s3cret" not in answer.err


# --- kills, and how a watch goes on ---


def test_kills_lose_nothing(any_cli: Cli) -> None:
    """Killed right after a delivery, before or after the position is written."""
    kills = 3
    made = commits(any_cli, 3 * kills)
    got = any_cli.place / "got"
    words = [*FROM_START, "--state", "position", "--exec", f"cat >> {got}"]
    got.touch()
    for _ in range(kills):
        before = got.stat().st_size
        with following(any_cli, *words) as (process, _):
            wait_until(partial(has_grown, got, before))
            process.kill()
    any_cli.ok(*UNTIL_QUIET, *words[3:])
    found = revisions(got.read_text())
    assert distinct(found) == made, "each at least once, in order"
    assert found == sorted(found), "only the same commit comes again"


def test_a_commit_comes_again_if_the_kill_is_before_its_position(cli: Cli) -> None:
    """The command kills the watch itself, after it has taken the second commit."""
    first, second, third = commits(cli, 3)
    line = "cat >> got; [ $(wc -l < got) != 2 ] || kill -9 $PPID"
    words = ["--state", "position", "--exec", line]
    assert cli.process(*UNTIL_QUIET, *words).code == -signal.SIGKILL
    assert cli.process(*UNTIL_QUIET, *words).code == 0
    assert revisions((cli.place / "got").read_text()) == [first, second, second, third]


def test_a_watch_that_is_killed_before_a_commit_misses_none(cli: Cli) -> None:
    """Without --since it begins after now: that is written before it waits."""
    commits(cli, 1)
    position = cli.place / "position"
    with following(cli, "watch", "--state", str(position), "--exec", "cat") as (process, _):
        wait_until(position.exists)
        process.kill()
    cli.ok("put", "while/away", "1")
    (item,) = cli.ok("watch", "--state", str(position), "--timeout", "200ms", "--json").json
    assert [each["key"] for each in item["changes"]] == ["while/away"]


def test_what_is_printed_has_a_position_too(cli: Cli) -> None:
    made = commits(cli, 3)
    words = [*UNTIL_QUIET, "--state", "position", "--json", "-n", "2"]
    assert [each["revision"] for _ in range(3) for each in cli.ok(*words).json] == made


def test_a_quiet_prefix_does_not_fall_behind_compaction(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_command, "QUIET_S", 0.05)
    cli.ok("put", "rare/a", "1")
    words = ["--prefix", "rare/", "--state", "position", "--exec", "cat"]
    cli.ok(*UNTIL_QUIET, *words)
    position = cli.place / "position"
    before = position.read_text()
    cli.ok("put", "busy", "1")
    run = threading.Thread(target=cli.ok, args=("watch", "-n", "1", *words))
    run.start()
    try:
        wait_until(lambda: position.read_text() != before)
    finally:
        with snapkv.open(cli.url) as store:
            store.save("rare/b", b"2")
        run.join(PROCESS_TIMEOUT_S)
    assert not run.is_alive()


@pytest.mark.parametrize("text", ["", "{}", "00ff 1", "00ff 12\nmore"])
def test_a_damaged_state_is_an_error_before_anything_runs(cli: Cli, text: str) -> None:
    commits(cli, 1)
    (cli.place / "position").write_text(text)
    answer = cli(*UNTIL_QUIET, "--state", "position", "--exec", "touch ran")
    assert answer.code == 2
    assert "position is not the state of a watch: delete it, or give another" in answer.err
    assert not (cli.place / "ran").exists()
    assert (cli.place / "position").read_text() == text


def test_the_state_of_another_store_is_an_error_before_anything_runs(cli: Cli) -> None:
    commits(cli, 1)
    cli.ok(*UNTIL_QUIET, "--state", "position")
    cli.patch.setenv("SNAPKV_STORE", "lmdb:./other")
    cli.ok("put", "a", "1")
    answer = cli(*UNTIL_QUIET, "--state", "position", "--exec", "touch ran")
    assert answer.code == 5
    assert "position is of a commit that the store lacks: give another file" in answer.err
    assert not (cli.place / "ran").exists()


def test_a_state_after_what_a_restored_store_has_is_an_error(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    cli.ok("backup", str(cli.place / "copy"))
    cli.ok("put", "a", "2")
    cli.ok(*UNTIL_QUIET, "--state", "position")
    cli.patch.setenv("SNAPKV_STORE", f"lmdb:{cli.place / 'copy'}")
    cli.ok("put", "a", "3")
    answer = cli(*UNTIL_QUIET, "--state", "position", "--exec", "touch ran")
    assert answer.code == 5
    assert not (cli.place / "ran").exists()


def test_a_state_in_a_missing_folder_is_an_error_before_anything_runs(cli: Cli) -> None:
    commits(cli, 1)
    answer = cli(*UNTIL_QUIET, "--state", "no/position", "--exec", "touch ran")
    assert answer.code == 2
    assert "no/position" in answer.err
    assert not (cli.place / "ran").exists()


# --- the end ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("while_", ["a command runs", "it waits to try again", "it is quiet"])
def test_signals_end_a_watch_at_once(cli: Cli, number: int, while_: str) -> None:
    commits(cli, 1)
    place = cli.place
    line = {
        "a command runs": "sleep 1000 & echo $! > child; wait",
        "it waits to try again": "echo >> child; exit 1",
        "it is quiet": "echo > child",
    }[while_]
    with following(cli, *FROM_START, "--state", "position", "--exec", line) as (process, _):
        assert process.stderr is not None
        child = place / "child"
        wait_until(lambda: child.exists() and child.read_text().endswith("\n"))
        position = (place / "position").read_text()
        if while_ == "it waits to try again":
            assert b"next of" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(PROCESS_TIMEOUT_S) == 130
        assert b"Traceback" not in process.stderr.read()
    if while_ == "a command runs":
        wait_until(lambda: not is_running(int(child.read_text())))
        assert (place / "position").read_text() == position


@pytest.mark.parametrize("leader", ["waits", "ends at once"])
def test_a_command_that_ignores_sigterm_is_killed(cli: Cli, leader: str) -> None:
    commits(cli, 1)
    child = cli.place / "child"
    deaf = "(trap '' TERM; while :; do sleep 0.1; done) & echo $! > child; wait"
    line = f"trap '' TERM; {deaf}" if leader == "waits" else deaf
    with following(cli, *FROM_START, "--state", "position", "--exec", line) as (process, _):
        wait_until(lambda: child.exists() and child.read_text().endswith("\n"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROCESS_TIMEOUT_S) == 130
    pid = int(child.read_text())
    try:
        wait_until(lambda: not is_running(pid))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_kills_the_watch_as_it_starts_ends_too(
    cli: Cli, number: signal.Signals
) -> None:
    """The signal comes when the command runs and the watch does not know its process yet."""
    commits(cli, 1)
    line = f"echo $$ > child; kill -{number.name[3:]} $PPID; exec sleep 1000"
    for _ in range(3):
        assert cli.process(*FROM_START, "--exec", line).code == 130
        pid = int((cli.place / "child").read_text())
        try:
            wait_until(lambda pid=pid: not is_running(pid))
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_two_watches_do_not_share_a_state(cli: Cli) -> None:
    (made,) = commits(cli, 1)
    (cli.place / "link").symlink_to("position")
    with following(cli, *FROM_START, "--state", "position", "--exec", "cat >> got") as (process, _):
        wait_until((cli.place / "got").exists)
        for name in ("position", "link"):
            answer = cli(*UNTIL_QUIET, "--state", name, "--exec", "touch ran")
            said = f"another watch keeps its position in {name}: end it, or give another file"
            assert (answer.code, said in answer.err) == (7, True)
        process.kill()
    cli.ok(*UNTIL_QUIET, "--state", "link", "--exec", "cat >> got")
    assert distinct(revisions((cli.place / "got").read_text())) == [made]


def has_grown(path: Path, size: int) -> bool:
    return path.stat().st_size > size


def is_running(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret@127.0.0.1/x",
        "http://127.0.0.1:9/s3cret token",
        "http://127.0.0.1:9/s3crét",
        "http://[::1/s3cret",
        "http:///s3cret",
        "http://127.0.0.1:s3cret/",
        "ftp://127.0.0.1/s3cret",
    ],
)
def test_a_webhook_that_cannot_be_is_rejected_before_the_watch(cli: Cli, url: str) -> None:
    answer = cli(*UNTIL_QUIET, "--webhook", url)
    assert (answer.code, answer.out) == (2, "")
    assert "--webhook takes http://HOST:PORT/PATH" in answer.err
    assert "s3cr" not in answer.err


@pytest.mark.parametrize("more", [[""], ["cat", "--webhook", "http://127.0.0.1/"]])
def test_a_command_is_given_and_alone(cli: Cli, more: list[str]) -> None:
    answer = cli(*UNTIL_QUIET, "--exec", *more)
    assert (answer.code, answer.out) == (2, "")
    assert "--exec takes a command, and goes without --webhook" in answer.err


def test_a_state_from_a_quiet_time_is_continued(cli: Cli) -> None:
    commits(cli, 1)
    state = str(cli.place / "state")
    cli.ok("watch", "--state", state, "--since", "now", "--timeout", "50ms")
    cli.ok("watch", "--state", f"{state}2", "--since", "1ms ago", "--timeout", "50ms")
    (newest,) = commits(cli, 1)[-1:]
    for each in (state, f"{state}2"):
        found = cli.ok("watch", "--state", each, "--timeout", "200ms", "--json").out
        assert revisions(found) == [newest]
