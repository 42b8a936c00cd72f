"""What needs processes of their own: pipes, terminals, signals."""

import signal
import subprocess
import sys
import time

import pytest
from cli_runner import PROCESS_TIMEOUT_S, PROGRAM, Cli, Stream
from cli_terminal import following, terminal

import snapkv
from snapkv.cli.terminal import counting

pytestmark = pytest.mark.slow

BINARY = bytes(range(256)) + b"\r\n"


def test_bytes_go_through_pipes_unchanged(cli: Cli) -> None:
    assert cli.process("put", "a", "-", stdin=BINARY).code == 0
    answer = cli.process("get", "a")
    assert (answer.code, answer.raw, answer.err) == (0, BINARY, "")
    raw = subprocess.run(
        [*PROGRAM, "put", "b", b"\xff\xfe"], env=cli.variables(), check=True, capture_output=True
    )
    assert raw.stderr == b""
    assert cli.ok("get", "b").raw == b"\xff\xfe"


def test_errors_are_one_line_on_the_error_stream(cli: Cli) -> None:
    answer = cli.process("get", "a")
    assert (answer.code, answer.raw) == (5, b"")
    assert answer.err == f"snapkv: no store at {cli.place / 'meta'}\n"


def test_a_value_on_a_terminal(cli: Cli) -> None:
    cli.ok("put", "text", "grün", "lines", "a\n\tb\n")
    cli.ok("put", "binary", "-", stdin=b"\x00\xff\x1b[31m")
    for key, shown in {
        "text": "grün\r\n".encode(),
        "lines": b"a\r\n        b\r\n",
        "binary": b"00000000  00 ff 1b 5b 33 31 6d",
    }.items():
        with terminal(cli, "get", key) as screen:
            screen.process.wait(PROCESS_TIMEOUT_S)
        assert screen.shown.replace(b"\t", b"        ").startswith(shown), screen.shown


def test_colours_are_for_terminals(cli: Cli) -> None:
    cli.ok("put", "a[red]", "1")
    with terminal(cli, "diff", "-1h") as screen:
        pass
    assert b"\x1b[32m+ a[red]" in screen.shown
    assert cli.process("diff", "-1h").out == '+ a[red]  "1"\n'
    cli.environment["NO_COLOR"] = "1"
    with terminal(cli, "diff", "-1h") as screen:
        pass
    assert b"\x1b[32m" not in screen.shown


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("words", "shown"), [(["check"], b"checking"), (["dump", "file"], b"dumping")]
)
def test_what_may_take_long_is_said_on_a_terminal(cli: Cli, words: list[str], shown: bytes) -> None:
    cli.ok("put", "a", "1", "b", "2")
    with terminal(cli, *words) as screen:
        pass
    assert shown in screen.shown
    assert cli.process(*words).err == ""


def test_it_counts_while_it_lasts(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    until = time.monotonic() + PROCESS_TIMEOUT_S
    with counting("checking", "commit") as show:
        show(1_234)
        while b"checking: 1,234 commits" not in stream.bytes.getvalue():
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.mark.parametrize(("keys", "code", "left"), [(b"y\n", 0, []), (b"\n", 1, ["a/1", "a/2"])])
def test_a_question_is_asked_and_heard(cli: Cli, keys: bytes, code: int, left: list[str]) -> None:
    cli.ok("put", "a/1", "1", "a/2", "2")
    with terminal(cli, "rm", "--prefix", "a/") as screen:
        screen.wait_for("Remove 2 keys under 'a/'? [y/N]")
        assert cli.ok("ls").lines == ["a/1", "a/2"]
        screen.press(keys)
    assert screen.process.returncode == code
    assert cli.ok("ls").lines == left


def test_restore_shows_what_it_asks_about(cli: Cli) -> None:
    then = cli.ok("put", "a", "1", "--raw").out.strip()
    cli.ok("put", "a", "2")
    with terminal(cli, "restore", then) as screen:
        screen.wait_for('"2"')
        screen.wait_for('"1"')
        screen.wait_for("remove 0 keys, add 0 keys, change 1 key? [y/N]")
        screen.press(b"yes\n")
    assert screen.process.returncode == 0
    assert cli.ok("get", "a").out == "1"


def test_restore_asks_anew_when_others_have_written(cli: Cli) -> None:
    then = cli.ok("put", "a", "1", "--raw").out.strip()
    cli.ok("put", "a", "2")
    with terminal(cli, "restore", then) as screen:
        screen.wait_for("remove 0 keys, add 0 keys, change 1 key? [y/N]")
        cli.ok("put", "new", "x")
        screen.press(b"y\n")
        screen.wait_for("other processes have written meanwhile")
        screen.wait_for("remove 1 key, add 0 keys, change 1 key? [y/N]")
        screen.press(b"n\n")
    assert screen.process.returncode == 1
    assert cli.ok("get", "a").out + cli.ok("get", "new").out == "2x"


def test_rm_asks_anew_when_others_have_written(cli: Cli) -> None:
    cli.ok("put", "a/1", "1")
    with terminal(cli, "rm", "--prefix", "a/") as screen:
        screen.wait_for("Remove 1 key under 'a/'? [y/N]")
        cli.ok("put", "a/2", "2", "b", "3")
        screen.press(b"y\n")
        screen.wait_for("Remove 2 keys under 'a/'? [y/N]")
        cli.ok("put", "b", "4")  # nothing that it would touch
        screen.press(b"y\n")
    assert screen.process.returncode == 0
    assert cli.ok("ls").lines == ["b"]


def test_ctrl_c_at_a_question_does_nothing(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    with terminal(cli, "rm", "--prefix", "a") as screen:
        screen.wait_for("[y/N]")
        screen.interrupt()
    assert screen.process.returncode == 130
    assert b"Traceback" not in screen.shown
    assert cli.ok("get", "a").out == "1"


@pytest.mark.parametrize("words", [["watch", "--since", "0"], ["watch", "--since", "0", "--json"]])
def test_ctrl_c_ends_what_goes_on_quietly(cli: Cli, words: list[str]) -> None:
    cli.ok("put", "a", "1")
    with following(cli, *words) as (process, output):
        assert output.readline()  # at once, though it is a pipe
        process.send_signal(signal.SIGINT)
        assert process.wait(PROCESS_TIMEOUT_S) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_watch_sees_what_another_process_commits(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    with following(cli, "watch", "--since", "0", "-n", "2") as (process, output):
        assert [output.readline(), output.readline()][1] == b'  + a  "1"\n'
        cli.ok("put", "b", "2", "--note", "hello")
        assert output.readline().endswith(b'ann@laptop  "hello"\n')
        assert output.read() == b'  + b  "2"\n'
        assert process.wait(PROCESS_TIMEOUT_S) == 0


def test_a_reader_that_goes_away_is_no_error(cli: Cli) -> None:
    with snapkv.open(cli.url) as store:
        store.multi_save({f"key/{n:05}": b"x" * 100 for n in range(5_000)})
    answer = cli.shell("set -o pipefail; snapkv ls -l --json | head -n 1; echo ${PIPESTATUS[0]}")
    first, code = answer.lines
    assert '"key/00000"' in first
    assert code == "141"


def test_closed_and_full_outputs_are_told_by_code(cli: Cli) -> None:
    answer = cli.shell("snapkv tick >&- 2>&-; echo $?; snapkv rm --prefix a <&-; echo $?")
    assert answer.lines[0] == "0"
    assert answer.lines[-1] == "1"  # no such key; and no question was needed
    answer = cli.shell("snapkv put a 1 >/dev/null; snapkv get a >/dev/full; echo $?")
    assert answer.lines == ["snapkv: No space left on device", "8"]
    answer = cli.shell("snapkv put full 1 >/dev/full; echo $?; snapkv get full")
    assert answer.lines == ["snapkv: No space left on device", "8", "1"], "it was saved"


def test_a_dump_is_not_for_terminals(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    with terminal(cli, "dump", "-") as screen:
        pass
    assert screen.process.returncode == 2
    with terminal(cli, "check") as screen:
        screen.wait_for("no problems")
    assert screen.process.returncode == 0


def test_the_standard_output_by_its_name_is_a_stream(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    answer = cli.shell("snapkv dump /dev/stdout 2>said | snapkv load /dev/stdin --store lmdb:./two")
    assert answer.code == 0, answer
    assert cli.ok("get", "a", "--store", "lmdb:./two").out == "1"
    assert (cli.place / "said").read_text().startswith("1 key at ")
    with terminal(cli, "dump", "/dev/stdout") as screen:
        pass
    assert screen.process.returncode == 2


@pytest.mark.long_after(1)
@pytest.mark.parametrize("name", ["link", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-"])
def test_a_dump_is_appended_to_the_standard_output(cli: Cli, name: str) -> None:
    cli.ok("put", "a", "1")
    cli.shell("ln -s /dev/stdout link")
    (cli.place / "kept").write_text("before\n")
    answer = cli.shell(f"snapkv dump {name} >> kept")
    assert (answer.code, answer.out.startswith("1 key at ")) == (0, True), answer
    assert (cli.place / "kept").read_bytes() == b"before\n" + cli.ok("dump", "-").raw
    assert (cli.place / "link").is_symlink()


@pytest.mark.parametrize(
    ("words", "what"),
    [("put a -", "the value -"), ("put a 1 b -", "the value -"), ("load -", "the file -")],
)
def test_a_closed_standard_input_is_a_usage_error(cli: Cli, words: str, what: str) -> None:
    answer = cli.shell(f"snapkv {words} <&-")
    assert (answer.code, answer.out.count("\n")) == (2, 1), answer.out
    assert answer.out.startswith(f"snapkv: {what} is the standard input, which is closed")
    assert not list(cli.place.iterdir()), "no store was created"


@pytest.mark.parametrize("file", ["-", "/dev/stdout"])
def test_a_dump_into_a_closed_standard_output_is_a_usage_error(cli: Cli, file: str) -> None:
    cli.ok("put", "a", "1")
    answer = cli.shell(f"snapkv dump {file} 2>said >&-")
    said = (cli.place / "said").read_text()
    assert (answer.code, said.count("\n")) == (2, 1), said
    assert said.startswith("snapkv: the standard output is closed")


def test_a_pipe_with_a_name_stays_one(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    line = (
        "mkfifo pipe; snapkv load pipe --store lmdb:./two & snapkv dump pipe; wait $!; test -p pipe"
    )
    answer = cli.shell(line)
    assert answer.code == 0, answer
    assert cli.ok("get", "a", "--store", "lmdb:./two").out == "1"


def test_a_terminal_that_knows_little_is_enough(cli: Cli) -> None:
    cli.environment |= {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "TERM": "dumb"}
    cli.ok("put", "grün", "ü")
    answer = cli.process("ls", "-l")
    assert (answer.code, answer.err) == (0, "")
    assert cli.process("ls", "--json").json == [{"key": "grün"}]


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys; from snapkv.cli import main; main(['--help']);"
        "print({'grpc', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, timeout=PROCESS_TIMEOUT_S
    )
    assert done.stdout.splitlines()[-1] == b"set()"
