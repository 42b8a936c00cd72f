"""Decoders of other formats: a command, or a function that another package installs."""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from snapkv.base.text import counted, escaped, shortened_text
from snapkv.base.waiting import monotonic
from snapkv.errors import InvalidOptionError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "snapkv.decoders"
"""The group of entry points in which packages install decoders."""

COMMAND_S_MAX = 10.0
"""The longest that a decoder command may run for one value, in seconds."""
REST_S = 60.0
"""The time for which a command that was late is not run again, in seconds: a list of keys waits for
it once."""
OUTPUT_BYTES_MAX = 16 << 20
"""The most bytes that a decoder command may print for one value."""
_ERROR_CHARS_MAX = 200
_STDERR_BYTES_MAX = _CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Decoder:
    """A named function from bytes to text, to a tree, or to None for a value that it leaves."""

    name: str
    function: Callable[[bytes], object] = field(repr=False)

    def __call__(self, value: bytes) -> object:
        """Return what the value says; raise `InvalidOptionError` if the decoder fails."""
        try:
            return self.function(value)
        except InvalidOptionError:
            raise
        except Exception as e:  # a decoder may raise anything
            reason = shortened_text(escaped(str(e)), _ERROR_CHARS_MAX)
            raise InvalidOptionError(
                f"the decoder {self.name!r} failed on a value of {counted(len(value), 'byte')}: "
                f"{type(e).__name__}: {reason}"
            ) from e


def decoders() -> dict[str, Decoder]:
    """Return the decoders that packages install as entry points of `snapkv.decoders`, by name.

    A decoder is imported when it is first used. Costs a look at the metadata of each installed
    package.
    """
    from importlib.metadata import entry_points

    found = sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name)
    return {each.name: Decoder(each.name, partial(_load_and_call, each)) for each in found}


def _load_and_call(point: EntryPoint, value: bytes) -> object:
    return point.load()(value)


def decoder_named(name: str) -> Decoder:
    """Return an installed decoder; raise `InvalidOptionError` if no package installs it."""
    from snapkv.rendering.decoded import KINDS

    installed = decoders()
    if name not in installed:
        known = ", ".join([*KINDS, *installed])
        raise InvalidOptionError(f"kind {name!r} is unknown; use one of {known}")
    return installed[name]


def command_decoder(
    command: str, *, seconds_max: float = COMMAND_S_MAX, output_bytes_max: int = OUTPUT_BYTES_MAX
) -> Decoder:
    """Return a decoder that runs a command: the value is its input, its output the text.

    The command is split as a shell splits words, but no shell runs it. JSON and YAML in its output
    are read as such, so differences have paths. It ends after `seconds_max` seconds, or once it
    printed more than `output_bytes_max` bytes. A new process for each value.
    After it was late, the decoder raises at once for values of the next minute.

    >>> from snapkv.rendering import decode
    >>> decode(b"abc", decoder=command_decoder("tr a-z A-Z")).text
    'ABC'

    Raises `InvalidOptionError` for a command without words; the decoder raises it if the program
    does not exist, ends with another code than 0, prints nothing for a value that is not empty, or
    breaks a bound.
    """
    try:
        words = shlex.split(command)
    except ValueError as e:
        raise InvalidOptionError(f"decoder command {command!r}: {e}") from e
    if not words:
        raise InvalidOptionError("the decoder command is empty; give one such as 'auger decode'")
    name = PurePath(words[0]).name
    return Decoder(name, _Command(words, seconds_max, output_bytes_max))


class _Command:
    """Runs a command for each value; after it was late, not for the next `REST_S` seconds."""

    def __init__(self, words: list[str], seconds_max: float, output_bytes_max: int) -> None:
        self._words, self._seconds_max = words, seconds_max
        self._output_bytes_max = output_bytes_max
        self._rests_until = 0.0

    def __call__(self, value: bytes) -> str:
        late = (
            f"the decoder command {escaped(shlex.join(self._words))!r} did not end within "
            f"{self._seconds_max:g} s"
        )
        if monotonic() < self._rests_until:
            raise InvalidOptionError(f"{late} for an earlier value, so it is not run now")
        try:
            return _run(self._words, value, self._seconds_max, self._output_bytes_max)
        except TimeoutError:
            self._rests_until = monotonic() + REST_S
            raise InvalidOptionError(f"{late}; snapkv ended it") from None


def _run(words: list[str], value: bytes, seconds_max: float, output_bytes_max: int) -> str:
    shown = escaped(shlex.join(words))
    try:
        process = _started(words, value)
    except OSError as e:
        raise InvalidOptionError(
            f"the decoder command {shown!r} cannot run: {_start_problem(words[0], e)}"
        ) from e
    output, errors = _Kept(output_bytes_max), _Kept(_STDERR_BYTES_MAX)
    try:
        in_time = _collect(process, output, errors, seconds_max)
    finally:
        _end(process)
    if output.is_full:
        raise InvalidOptionError(
            f"the decoder command {shown!r} printed more than {output_bytes_max:,} bytes; "
            "snapkv ended it"
        )
    if not in_time:
        raise TimeoutError
    if process.returncode:
        last = errors.text.strip().rpartition("\n")[2]
        raise InvalidOptionError(
            f"the decoder command {shown!r} {_ending(process.returncode)}: "
            f"{shortened_text(escaped(last), _ERROR_CHARS_MAX) or 'no message'}"
        )
    if not output.text.strip() and value.strip():
        raise InvalidOptionError(
            f"the decoder command {shown!r} printed nothing for a value of "
            f"{counted(len(value), 'byte')}; use a command that reads such values"
        )
    return output.text


def _start_problem(program: str, error: OSError) -> str:
    """Return why a program does not start, and what to do."""
    named = escaped(program)
    if os.path.isdir(program):
        return f"{named} is a directory; give a program in it"
    if isinstance(error, FileNotFoundError) and os.path.isfile(program):
        return f"the interpreter in the first line of {named} does not exist; correct that line"
    if isinstance(error, FileNotFoundError):
        return f"{named} was not found; install it or correct the path"
    if isinstance(error, PermissionError):
        return f"{named} is not executable; run chmod +x {named}"
    return f"{error.strerror}; correct the command"


def _ending(code: int) -> str:
    """Return how a command ended that did not end with code 0."""
    if code > 0:
        return f"ended with code {code}"
    names = {each.value: each.name for each in signal.Signals}
    name = f" ({names[-code]})" if -code in names else ""
    return f"was killed by signal {-code}{name}"


def _started(words: list[str], value: bytes) -> subprocess.Popen[bytes]:
    """Start a command whose input is a file in memory, so that no thread has to feed it."""
    given = os.memfd_create("snapkv-value")
    try:
        with open(given, "wb", closefd=False) as stream:
            stream.write(value)
        os.lseek(given, 0, os.SEEK_SET)
        return subprocess.Popen(  # noqa: S603, the caller's own command, without a shell
            words,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that its children end with it
        )
    finally:
        os.close(given)


class _Kept:
    """The beginning of what a command printed."""

    def __init__(self, bytes_max: int) -> None:
        self._chunks: list[bytes] = []
        self._room = bytes_max
        self.is_full = False

    def add(self, chunk: bytes) -> None:
        self.is_full = self.is_full or len(chunk) > self._room
        self._chunks.append(chunk[: self._room])
        self._room -= len(self._chunks[-1])

    @property
    def text(self) -> str:
        return b"".join(self._chunks).decode(errors="backslashreplace")


def _collect(
    process: subprocess.Popen[bytes], output: _Kept, errors: _Kept, seconds_max: float
) -> bool:
    """Read what the command prints until it ends; return False if it is late or prints too much."""
    deadline = monotonic() + seconds_max
    with selectors.DefaultSelector() as selector:
        for stream, kept in ((process.stdout, output), (process.stderr, errors)):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, kept)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - monotonic()))
            if not ready or output.is_full:
                return False
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if chunk:
                    key.data.add(chunk)
                else:
                    selector.unregister(key.fileobj)
    try:
        process.wait(max(0.0, deadline - monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and its children, and close its pipes."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
