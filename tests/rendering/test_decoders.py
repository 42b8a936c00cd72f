"""Decoders: commands that work, hang, flood and die; functions that packages install."""

import hashlib
import os
import select
import shlex
import sys
from pathlib import Path

import pytest

from snapkv.base.waiting import monotonic
from snapkv.errors import InvalidOptionError
from snapkv.rendering import Decoder, command_decoder, compare, decode, decoders, plain
from snapkv.rendering.decoder import REST_S
from tests.rendering.shown import text_of

pytestmark = pytest.mark.slow

SECONDS_MAX = 20.0
"""How long a command of these tests may take; only those that hang come near a bound."""


def python(code: str, seconds_max: float = SECONDS_MAX, **bounds: int) -> Decoder:
    return command_decoder(
        shlex.join([sys.executable, "-c", code]), seconds_max=seconds_max, **bounds
    )


def test_json_that_a_command_prints_is_compared_by_path() -> None:
    code = "import sys; print('{\"size\": %d}' % len(sys.stdin.buffer.read()))"
    before, after = (decode(value, decoder=python(code)) for value in (b"\xff", b"\xff\xfe"))
    assert (before.kind, before.form, before.data) == (
        os.path.basename(sys.executable),
        "tree",
        {"size": 1},
    )
    assert before.text == '{"size": 1}\n'
    assert text_of(compare(before, after)) == ["~ size: 1 -> 2"]


def test_text_that_a_command_prints_is_compared_by_line() -> None:
    decoder = command_decoder("tr a-z A-Z")
    before, after = (decode(value, decoder=decoder) for value in (b"a\nb\n", b"a\nc\n"))
    assert (before.kind, before.text) == ("tr", "A\nB\n")
    assert text_of(compare(before, after), context=0) == ["@@ -2 +2 @@", "- B", "+ C"]


def test_the_command_gets_every_byte_and_no_shell() -> None:
    value = bytes(range(256)) * 4_096
    assert decode(value, decoder=command_decoder("sha256sum")).text.startswith(
        hashlib.sha256(value).hexdigest()
    )
    assert decode(b"", decoder=command_decoder("echo '$HOME;' `id`")).text == "$HOME; `id`\n"


def test_a_command_that_hangs_ends_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{child.pid}}')\n"
        "child.wait()\n"
    )
    with pytest.raises(InvalidOptionError, match=r"did not end within 3 s; snapkv ended it"):
        decode(b"a" * 1_000_000, decoder=python(code, seconds_max=3))
    for pid in map(int, pids.read_text().split()):
        assert ends(pid)


def test_a_command_that_was_late_is_not_run_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    code = (
        "import sys, time\n"
        f"open({str(runs)!r}, 'a').write('run ')\n"
        "time.sleep(600 * (sys.stdin.read() == 'slow'))\n"
        "print('done')"
    )
    decoder = python(code, seconds_max=3)
    assert decode(b"quick", decoder=decoder).text == "done\n"
    with pytest.raises(InvalidOptionError, match=r"did not end within 3 s; snapkv ended it"):
        decode(b"slow", decoder=decoder)
    with pytest.raises(InvalidOptionError, match="for an earlier value, so it is not run now"):
        decode(b"quick", decoder=decoder)
    assert runs.read_text() == "run run "
    monkeypatch.setattr("snapkv.rendering.decoder.monotonic", lambda: monotonic() + REST_S)
    assert decode(b"quick", decoder=decoder).text == "done\n"


def ends(pid: int) -> bool:
    """Wait until a process ended; return False if it goes on."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], SECONDS_MAX)[0])
    finally:
        os.close(handle)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_that_floods_is_bounded(stream: str) -> None:
    code = f"import sys\nwhile True: sys.{stream}.write('x' * 65536)"
    message = {"stdout": "printed more than 1,000,000 bytes", "stderr": "did not end within 2 s"}
    seconds_max = {"stdout": SECONDS_MAX, "stderr": 2.0}
    with pytest.raises(InvalidOptionError, match=message[stream]):
        decode(b"a", decoder=python(code, seconds_max[stream], output_bytes_max=1_000_000))


def test_as_much_as_the_bound_is_accepted() -> None:
    decoder = python("print('x' * 9_999)", output_bytes_max=10_000)
    assert len(decode(b"a", decoder=decoder).text) == 10_000


def test_a_command_that_dies_says_why() -> None:
    code = "import sys; print('first', file=sys.stderr); sys.exit('bad \\x1b[31mmagic')"
    with pytest.raises(InvalidOptionError, match=r"ended with code 1: bad \\u001b\[31mmagic$"):
        decode(b"a", decoder=python(code))
    with pytest.raises(
        InvalidOptionError, match=r"was killed by signal 9 \(SIGKILL\): no message$"
    ):
        decode(b"a", decoder=python("import os; os.kill(os.getpid(), 9)"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "no-such-decoder --x",
            "'no-such-decoder --x' cannot run: no-such-decoder was not found; ",
        ),
        ("/", "cannot run: / is a directory; give a program in it"),
        ("", "the decoder command is empty"),
        ("'a", "No closing quotation"),
    ],
)
def test_a_command_that_cannot_run_says_so(command: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        decode(b"a", decoder=command_decoder(command))


def test_a_file_that_is_no_program_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "noexec"
    file.write_text("#!/no/such/shell\n")
    with pytest.raises(InvalidOptionError, match=r"noexec is not executable; run chmod \+x"):
        decode(b"a", decoder=command_decoder(str(file)))
    file.chmod(0o755)
    with pytest.raises(InvalidOptionError, match=r"first line of .*noexec does not exist"):
        decode(b"a", decoder=command_decoder(str(file)))


def test_output_that_is_not_text_is_escaped() -> None:
    decoder = python("import sys; sys.stdout.buffer.write(b'a\\xffb')")
    assert decode(b"a", decoder=decoder).text == "a\\xffb"


@pytest.mark.parametrize("view", ["auto", "unified", "full", "side-by-side", "words"])
def test_a_decoder_that_hides_the_difference_is_said(view: str) -> None:
    decoder = command_decoder("head -c 3")
    before, after = (decode(value, decoder=decoder) for value in (b"abc\xff\x01", b"abc\xff\x02"))
    changed = compare(before, after)
    lines = text_of(changed, view)
    assert lines[0] == "head shows the same for both; the stored bytes differ"
    assert lines[1:] == ["- 0x616263ff01", "+ 0x616263ff02"]
    assert plain(changed.brief()) == lines[0]
    tree = Decoder("mine", lambda value: {"size": len(value)})
    changed = compare(*(decode(value, decoder=tree) for value in (b"\x01", b"\x02")))
    assert changed.summary == "mine shows the same for both; the stored bytes differ"


def test_a_command_that_prints_nothing_is_an_error() -> None:
    with pytest.raises(InvalidOptionError, match="'true' printed nothing for a value of 3 bytes"):
        decode(b"abc", decoder=command_decoder("true"))
    assert decode(b"", decoder=command_decoder("true")).text == ""


def test_one_line_shows_what_the_decoder_prints() -> None:
    decoder = command_decoder("tr a-z A-Z")
    value, after = (decode(each, decoder=decoder) for each in (b"abc\n", b"abd\n"))
    assert value.preview() == '"ABC"'
    assert plain(compare(None, value).brief()) == '"ABC"'
    assert plain(compare(value, None).brief()) == '"ABC"'
    assert plain(compare(value, after).brief()) == r'"ABC\n" -> "ABD\n"'
    assert decode(b"abcdefgh", decoder=decoder).preview(4) == '"ABCD"... (8 bytes)'
    tree = Decoder("mine", lambda value: {"size": len(value)})
    assert decode(b"\x80", decoder=tree).preview() == '{"size": 1}'
    assert decode(b"\x80", decoder=tree).preview(5) == '{"siz... (1 byte)'


# --- functions ------------------------------------------------------------------------------


def test_a_function_may_return_a_tree_a_text_or_leave_the_value() -> None:
    made = {b"t": {"a": (1, b"x"), 5: {"s"}}, b"s": "text", b"n": None}
    decoder = Decoder("mine", made.__getitem__)
    assert decode(b"t", decoder=decoder).data == {"a": [1, b"x"], "5": ["s"]}
    assert decode(b"t", decoder=decoder).kind == "mine"
    assert decode(b"s", decoder=decoder).data == "text"
    assert decode(b"n", decoder=decoder).kind == "text"


def test_a_function_that_fails_is_named() -> None:
    def fails(value: bytes) -> object:
        raise KeyError("magic")

    with pytest.raises(InvalidOptionError, match="decoder 'mine' failed on a value of 3 bytes"):
        decode(b"abc", decoder=Decoder("mine", fails))
    deep: list[object] = []
    deep.append(deep)
    with pytest.raises(InvalidOptionError, match="'mine' returns is nested deeper"):
        decode(b"abc", decoder=Decoder("mine", lambda value: deep))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with two decoders, one of which cannot be imported."""
    info = tmp_path / "upper_case-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: upper-case\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[snapkv.decoders]\nupper = upper_case:decode\nbroken = no_such_module:decode\n"
    )
    (tmp_path / "upper_case.py").write_text(
        "def decode(value):\n    return {'text': value.decode().upper()}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_installed_decoders_are_kinds() -> None:
    assert {"upper", "broken"} <= set(decoders())
    assert decode(b"abc", "upper").data == {"text": "ABC"}
    with pytest.raises(InvalidOptionError, match=r"'broken' failed.*No module named"):
        decode(b"abc", "broken")
    with pytest.raises(InvalidOptionError, match=r"use one of json, .*, broken, upper"):
        decode(b"abc", "lower")
