"""Checks of arguments, whose messages have one form: "tries must be an integer, not str"."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from snapkv.errors import InvalidOptionError, InvalidTypeError

DIGITS_MAX = 20
"""The most digits of a number in a text: as many as 2^64 has."""


def wrong_type(what: str, wanted: str, value: object) -> InvalidTypeError:
    """Return the error for a value that is not `wanted`, such as "bytes"."""
    return InvalidTypeError(f"{what} must be {wanted}, not {type(value).__name__}")


def check_int(what: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an integer within bounds; a bool is not one.

    >>> check_int("tries", 0, 1)
    Traceback (most recent call last):
    snapkv.errors.InvalidOptionError: tries must be an integer of at least 1, not 0
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(what, "an integer", value)
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
        raise InvalidOptionError(f"{what} must be an integer {bounds}, not {value:,}")
    return value


def check_seconds(
    what: str, value: Any, *, above: float | None = None, most: float | None = None
) -> float:
    """Return a number of seconds: above `above`, or without it 0 or more; at most `most`.

    >>> check_seconds("timeout", -1)
    Traceback (most recent call last):
    snapkv.errors.InvalidOptionError: timeout must be at least 0 seconds, not -1
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(what, "a number of seconds", value)
    large_enough = value >= 0 if above is None else value > above  # false for nan
    if not large_enough or (most is not None and value > most):
        bounds = "at least 0" if above is None else f"above {above:g}"
        bounds += "" if most is None else f" and at most {most:,.0f}"
        raise InvalidOptionError(f"{what} must be {bounds} seconds, not {value!r}")
    return value


def check_bool(what: str, value: object) -> None:
    """Raise `InvalidTypeError` for anything but True or False."""
    if not isinstance(value, bool):
        raise wrong_type(what, "True or False", value)


def check_text(what: str, value: object) -> None:
    """Raise `InvalidTypeError` for anything but a str."""
    if not isinstance(value, str):
        raise wrong_type(what, "a str", value)


def check_bytes(what: str, value: object) -> None:
    """Raise `InvalidTypeError` for anything but bytes."""
    if not isinstance(value, bytes):
        raise wrong_type(what, "bytes", value)


def check_known(
    options: Iterable[str], known: Collection[str], *, also: Iterable[str] = ()
) -> None:
    """Raise `InvalidTypeError` for the first option that is not a known one.

    The message also lists the options `also`, which the caller has handled already.
    """
    for option in options:
        if option not in known:
            listed = sorted({*known, *also})
            message = f"unknown option {option!r}; the known options are {', '.join(listed)}"
            raise InvalidTypeError(message, option=option, known=listed)


def whole_number(text: str) -> int | None:
    """Return the number that the digits of a text spell; None for any other text.

    Only ASCII digits count, at most `DIGITS_MAX` of them. `int` also takes spaces, a sign, `1_0`
    and the digits of other scripts, and raises for more than 4,300 digits, which a URL can have.

    >>> [whole_number(text) for text in ("450", "007", "1_0", " 1", "-1", "", "9" * 5_000)]
    [450, 7, None, None, None, None, None]
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None
