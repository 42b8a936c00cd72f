"""Long answers on a terminal go through a pager."""

import os
import signal
from pathlib import Path

import pytest
from cli_runner import PROCESS_TIMEOUT_S, Cli
from cli_terminal import terminal

import snapkv
from snapkv.cli.exits import CommandError
from snapkv.cli.pager import pager_of

pytestmark = pytest.mark.slow

SCREEN = """#!/bin/sh
echo "LESS=$LESS LV=$LV" > {folder}/variables
tee {folder}/paged
"""


@pytest.fixture
def cli(cli: Cli) -> Cli:
    for variable in ("SNAPKV_PAGER", "PAGER", "LESS", "LV"):
        cli.patch.delenv(variable, raising=False)
    cli.ok("put", "a[red]", "1", "b", "2", "--note", "first")
    return cli


def pager(cli: Cli, name: str, script: str = SCREEN) -> Path:
    """Make a program in a folder of its own."""
    folder = cli.place / "bin"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(script.format(folder=cli.place))
    path.chmod(0o755)
    return path


def paged(cli: Cli) -> bytes | None:
    """Return what the pager was given, None if it did not run."""
    path = cli.place / "paged"
    return path.read_bytes() if path.exists() else None


def shown(cli: Cli, *words: str, code: int = 0) -> bytes:
    with terminal(cli, *words) as screen:
        pass
    assert screen.process.returncode == code, screen.shown
    assert b"Traceback" not in screen.shown
    return screen.shown


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    "words",
    [
        ["log"],
        ["ls"],
        ["history", "b"],
        ["diff", "-1h"],
        ["ls", "-o", "json"],
        ["ls", "-o", "table"],
    ],
    ids=" ".join,
)
def test_long_answers_go_through_the_pager(cli: Cli, words: list[str]) -> None:
    cli.environment["SNAPKV_PAGER"] = str(pager(cli, "screen"))
    cli.environment["PAGER"] = "false"
    on_screen = shown(cli, *words)
    given = paged(cli)
    assert given
    assert given.replace(b"\n", b"\r\n") in on_screen


def test_colours_stay(cli: Cli) -> None:
    cli.environment["PAGER"] = f"{pager(cli, 'screen')} 'an argument'"
    shown(cli, "diff", "-1h")
    assert paged(cli) == b'\x1b[32m+ a[red]  "1"\x1b[0m\n\x1b[32m+ b  "2"\x1b[0m\n'
    cli.environment["NO_COLOR"] = "1"
    shown(cli, "diff", "-1h")
    assert paged(cli) == b'+ a[red]  "1"\n+ b  "2"\n'


def test_the_pager_is_less_and_keeps_its_own_settings(cli: Cli) -> None:
    folder = pager(cli, "less").parent
    cli.environment["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    shown(cli, "ls")
    assert paged(cli) == b"a[red]\nb\n"
    assert (cli.place / "variables").read_text() == "LESS=FRX LV=-c\n"
    cli.environment["LESS"] = "S"
    shown(cli, "ls")
    assert (cli.place / "variables").read_text() == "LESS=S LV=-c\n"


@pytest.mark.parametrize("words", [["ls", "--no-pager"], ["--no-pager", "ls"]])
def test_no_pager_is_an_option(cli: Cli, words: list[str]) -> None:
    cli.environment["PAGER"] = str(pager(cli, "screen"))
    assert shown(cli, *words) == b"a[red]\r\nb\r\n"
    assert paged(cli) is None


@pytest.mark.parametrize("words", [["get", "b"], ["watch", "--since", "0", "--timeout", "0s"]])
def test_short_answers_and_watches_have_none(cli: Cli, words: list[str]) -> None:
    cli.environment["PAGER"] = str(pager(cli, "screen"))
    assert shown(cli, *words)
    assert paged(cli) is None


def test_a_pipe_has_none(cli: Cli) -> None:
    cli.environment["SNAPKV_PAGER"] = str(pager(cli, "screen"))
    assert cli.process("ls").out == "a[red]\nb\n"
    assert paged(cli) is None


def test_an_error_before_the_first_line_starts_none(cli: Cli) -> None:
    cli.environment["PAGER"] = str(pager(cli, "screen"))
    assert b"no key 'absent'" in shown(cli, "history", "absent", code=1)
    assert paged(cli) is None


def test_ending_the_pager_early_is_no_error(cli: Cli) -> None:
    with snapkv.open(cli.url) as store:
        store.multi_save({f"key/{n:05}": b"x" * 100 for n in range(5_000)})
    cli.environment["PAGER"] = "head -n 1"
    assert shown(cli, "ls", "-l").count(b"\n") == 1
    assert shown(cli, "ls", "-o", "json").count(b"\n") == 1
    assert shown(cli, "diff", "-1h", "--exit-code", code=1).count(b"\n") == 2, "with the time"


def test_a_pager_that_is_absent_is_reported(cli: Cli) -> None:
    cli.environment["PAGER"] = "absent-pager -x"
    lines = shown(cli, "ls").splitlines()
    assert b"the pager absent-pager -x does not start: No such file or directory" in lines[0]
    assert lines[1:] == [b"a[red]", b"b"]
    cli.environment["PAGER"] = "less 'open"
    assert b'PAGER is "less \'open", not a command: ' in shown(cli, "ls", code=2)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        pytest.param("#!/bin/sh\nexit 3\n", b"with code 3", marks=pytest.mark.long),
        ("#!/bin/sh\nkill -9 $$\n", b"by signal 9"),
        ("#!/bin/sh\ncat > {folder}/paged\nexit 2\n", b"with code 2"),
    ],
)
def test_a_pager_that_fails_loses_no_output(cli: Cli, script: str, why: bytes) -> None:
    program = pager(cli, "failing", script)
    cli.environment["PAGER"] = str(program)
    first, *lines = shown(cli, "ls").splitlines()
    assert b"the pager " + bytes(program) + b" ended " + why in first
    assert lines == [b"a[red]", b"b"]
    assert shown(cli, "diff", "-1h", "--exit-code", code=1).count(b'+ b  "2"') == 1
    with snapkv.open(cli.url) as store:
        store.multi_save({f"key/{n:05}": b"x" for n in range(8_000)})
    assert shown(cli, "ls", "key/").splitlines()[1:] == [b"key/%05d" % n for n in range(8_000)]


def test_a_pager_that_fails_late_is_an_error(cli: Cli) -> None:
    with snapkv.open(cli.url) as store:
        store.multi_save({f"key/{'x' * 400}/{n:05}": b"x" for n in range(5_000)})
    cli.environment["PAGER"] = str(
        pager(cli, "late", "#!/bin/sh\nhead -c 1500000 > /dev/null\nexit 3\n")
    )
    assert b"late ended with code 3: --no-pager prints everything" in shown(cli, "ls", code=8)


def test_ctrl_c_is_for_the_pager(cli: Cli) -> None:
    """As in less, where it ends a search; the command waits until the reader is done."""
    script = "#!/bin/sh\ntrap '' INT\ncat\nmkfifo {folder}/key\necho at the end\ncat {folder}/key\n"
    cli.environment["PAGER"] = str(pager(cli, "screen", script))
    with terminal(cli, "ls") as screen:
        screen.wait_for("at the end")
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.poll() is None
        (cli.place / "key").write_text("q\n")
        assert screen.process.wait(PROCESS_TIMEOUT_S) == 0
    assert screen.shown.endswith(b"q\r\n")


def test_which_pager_it_is() -> None:
    assert pager_of({"SNAPKV_PAGER": "", "PAGER": "less"}) == []
    assert pager_of({"PAGER": ""}) == pager_of({"PAGER": "cat"}) == []
    assert pager_of({"TERM": "dumb"}) == pager_of({}) == []
    assert pager_of({"PAGER": "less -S", "TERM": "dumb"}) == ["less", "-S"]
    with pytest.raises(CommandError, match='SNAPKV_PAGER is "\'", not a command'):
        pager_of({"SNAPKV_PAGER": "'"})
