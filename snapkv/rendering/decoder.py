"""Decoders of other formats: a command, or a function that another package installs."""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import IO, TYPE_CHECKING

from snapkv.errors import InvalidOptionError
from snapkv.rendering.text import escaped, shortened_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "snapkv.decoders"
"""The group of entry points in which packages install decoders."""

COMMAND_S_MAX = 10.0
"""How long a decoder command may run for one value, in seconds."""
OUTPUT_BYTES_MAX = 16 << 20
"""How much a decoder command may print for one value."""
_ERROR_CHARS_MAX = 200
_STDERR_BYTES_MAX = 1 << 16


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
                f"the decoder {self.name!r} failed on a value of {len(value):,} bytes: "
                f"{type(e).__name__}: {reason}"
            ) from e


def decoders() -> dict[str, Decoder]:
    """Return the decoders that packages install as entry points of `snapkv.decoders`, by name.

    A decoder is imported when it is first used. Costs a look at the metadata of each installed
    package.
    """
    from importlib.metadata import entry_points

    found = sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name)
    return {each.name: Decoder(each.name, _installed(each)) for each in found}


def _installed(point: EntryPoint) -> Callable[[bytes], object]:
    def function(value: bytes) -> object:
        return point.load()(value)

    return function


def decoder_named(name: str) -> Decoder:
    """Return an installed decoder; raise `InvalidOptionError` if no package installs it."""
    from snapkv.rendering.decoded import KINDS

    installed = decoders()
    if name not in installed:
        known = ", ".join([*KINDS, *installed])
        raise InvalidOptionError(f"kind {name!r} is unknown; use one of {known}")
    return installed[name]


def command_decoder(
    command: str,
    *,
    seconds_max: float = COMMAND_S_MAX,
    output_bytes_max: int = OUTPUT_BYTES_MAX,
) -> Decoder:
    """Return a decoder that runs a command: the value is its input, its output the text.

    The command is split as a shell splits words, but no shell runs it. JSON and YAML in its output
    are read as such, so differences have paths. It ends after `seconds_max` seconds, or once it
    printed more than `output_bytes_max` bytes. A new process for each value.

    >>> from snapkv.rendering import decode
    >>> decode(b"abc", decoder=command_decoder("tr a-z A-Z")).text
    'ABC'

    Raises `InvalidOptionError` for a command without words; the decoder raises it if the program
    does not exist, ends with another code than 0, or breaks a bound.
    """
    try:
        words = shlex.split(command)
    except ValueError as e:
        raise InvalidOptionError(f"decoder command {command!r}: {e}") from e
    if not words:
        raise InvalidOptionError("the decoder command is empty; give one such as 'auger decode'")
    name = PurePath(words[0]).name
    return Decoder(name, lambda value: _run(words, value, seconds_max, output_bytes_max))


def _run(words: list[str], value: bytes, seconds_max: float, output_bytes_max: int) -> str:
    shown = escaped(shlex.join(words))
    try:
        process = subprocess.Popen(  # noqa: S603, the caller's own command, without a shell
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as e:
        raise InvalidOptionError(
            f"the decoder command {shown!r} cannot run: {e.strerror}; install it or correct it"
        ) from e
    output, errors, late = _talk(process, value, seconds_max, output_bytes_max)
    if late:
        raise InvalidOptionError(
            f"the decoder command {shown!r} did not end within {seconds_max:g} s; it was killed"
        )
    if len(output) > output_bytes_max:
        raise InvalidOptionError(
            f"the decoder command {shown!r} printed more than {output_bytes_max:,} bytes"
        )
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise InvalidOptionError(
            f"the decoder command {shown!r} ended with code {process.returncode}: "
            f"{shortened_text(escaped(last), _ERROR_CHARS_MAX) or 'no message'}"
        )
    return output.decode(errors="backslashreplace")


def _talk(
    process: subprocess.Popen[bytes], value: bytes, seconds_max: float, output_bytes_max: int
) -> tuple[bytes, bytes, bool]:
    """Give the value to the process; return its output, its errors, and whether it was late."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    output: list[bytes] = []
    errors: list[bytes] = []
    threads = [
        threading.Thread(target=_feed, args=(process.stdin, value), daemon=True),
        threading.Thread(
            target=_drain, args=(process.stdout, output, output_bytes_max, process), daemon=True
        ),
        threading.Thread(
            target=_drain, args=(process.stderr, errors, _STDERR_BYTES_MAX, None), daemon=True
        ),
    ]
    for thread in threads:
        thread.start()
    late = False
    try:
        process.wait(seconds_max)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        process.kill()
        process.wait()
    for thread in threads:  # a child of the process may hold the pipes open
        thread.join(1.0)
    return b"".join(output), b"".join(errors), late


def _feed(stream: IO[bytes], value: bytes) -> None:
    try:
        stream.write(value)
        stream.close()
    except (BrokenPipeError, OSError):
        pass  # it ended, or does not read its input


def _drain(
    stream: IO[bytes], kept: list[bytes], bytes_max: int, ended: subprocess.Popen[bytes] | None
) -> None:
    """Keep a little more than `bytes_max`; then kill `ended`, or go on reading without keeping."""
    size = 0
    while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
        if size <= bytes_max:
            kept.append(chunk)
        size += len(chunk)
        if size > bytes_max and ended is not None:
            ended.kill()
            break
    stream.close()
