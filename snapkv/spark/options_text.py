"""Options as Spark hands them over: which names there are, what their texts mean, and the place."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from snapkv.spark import errors as codes
from snapkv.spark.errors import SourceError
from snapkv.spark.location import Place, absolute
from snapkv.spark.timing import zone_of

PARTITIONS_MAX = 16
"""One etcd serves all tasks: more of them than this bring nothing."""
# Options of etcd's engine, with or without underscores.
ENGINE = ("user", "password", "tls", "ca_cert", "cert", "key")
_SPELLINGS = {spelling: name for name in ENGINE for spelling in (name, name.replace("_", ""))}
# What Spark hands over beside the options of CREATE TABLE, which then come twice. When it reads the
# table it hands over nothing at all.
_TABLE, _AGAIN = "provider", "option."
_SCHEMES = ("lmdb", "etcd", "memory")
_NAME_IT = "name the store: .load('lmdb:./meta'), .load('etcd://host:2379') or the option store"


@dataclass(frozen=True, slots=True)
class Given:
    """Where to read, and the options that were given, by their names."""

    place: Place
    given: Mapping[str, str] = field(repr=False)  # it may hold a password
    zone: tzinfo | None

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return an option as it was given."""
        return self.given.get(name, default)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return an option that is true or false."""
        return flag_of(name, self.given.get(name), default)

    def count(self, name: str) -> int | None:
        """Return an option that is a whole number above 0, None when it was not given."""
        text = self.given.get(name)
        if text is None:
            return None
        digits = text.isascii() and text.isdigit() and len(text) < 20
        if not digits or not 0 < int(text) < 1 << 63:
            raise SourceError(
                codes.INVALID_OPTION, f"{name} is a whole number above 0, not {text!r}"
            )
        return int(text)

    def choice(self, name: str, *choices: str) -> str:
        """Return an option that is one of some words, the first of which is its default."""
        text = self.given.get(name, choices[0])
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise SourceError(codes.INVALID_OPTION, f"{name} is one of {choices}, not {text!r}")

    @property
    def partitions(self) -> int:
        """How many tasks read at once at most."""
        usual = min(2 * (os.cpu_count() or 1), PARTITIONS_MAX)
        return self.count("numPartitions") or usual


def named(raw: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Return the options that Spark hands over by their names; its own additions are passed over.

    Spark hands them over in lower case. Raises `SourceError` for unknown ones, which lists the
    known.
    """
    names = {name.lower(): name for name in known} | _SPELLINGS
    given: dict[str, str] = {}
    for key, value in raw.items():
        name = names.get(key.lower())
        if name is not None:
            given[name] = value
        elif not _is_of_table(key.lower(), raw):
            raise _unknown(key, known)
    return given


def check_one_of(given: Mapping[str, str], pairs: Iterable[tuple[str, str]]) -> None:
    """Raise `SourceError` where both of two options were given that say the same."""
    for one, other in pairs:
        if one in given and other in given:
            raise SourceError(codes.MULTIPLE_BOUNDARY, f"give {one} or {other}, not both")


def check_none_of(given: Iterable[str], names: Collection[str], why: str) -> None:
    """Raise `SourceError` where an option was given that is of no use here."""
    for name in given:
        if name in names:
            raise SourceError(codes.INVALID_OPTION, f"{name} is {why}")


def zone_in(given: Mapping[str, str]) -> tzinfo | None:
    """Return the time zone that options name, if they do. Raises `SourceError`."""
    return zone_of(given["timeZone"]) if "timeZone" in given else None


def flag_of(name: str, text: str | None, default: bool) -> bool:
    """Return an option that is true or false. Raises `SourceError`."""
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise SourceError(codes.INVALID_OPTION, f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


def place_of(given: Mapping[str, str], raw: Mapping[str, str], format_: str) -> Place:
    """Return the store that options name, in a format's words; `raw` is what Spark handed over.

    Raises `SourceError`.
    """
    path = given.get("path", "")
    is_store = path.partition(":")[0] in _SCHEMES  # else a table's own folder in the warehouse
    if "store" in given and is_store:
        raise SourceError(codes.INVALID_OPTION, "give a path or the option store, not both")
    url = given.get("store", path if is_store else None)
    if url is None:
        wrong = f"{path!r} is no store; " if path and "@" not in path else ""  # no secrets
        may_be_table = _TABLE in raw or not path
        advice = f"{_NAME_IT}. {_dropped(format_)}" if may_be_table else _NAME_IT
        raise SourceError(codes.MISSING_OPTION, wrong + advice)
    engine: dict[str, Any] = {name: given[name] for name in ENGINE if name in given}
    if engine and not url.startswith("etcd:"):
        raise SourceError(codes.INVALID_OPTION, f"{', '.join(engine)}: only etcd has these options")
    if "tls" in engine:
        engine["tls"] = flag_of("tls", engine["tls"], False)
    return Place(
        absolute(url),
        given.get("name", "default"),
        given.get("space"),
        given.get("observe"),
        tuple(sorted(engine.items())),
    )


def _dropped(format_: str) -> str:
    return (
        "Spark drops the OPTIONS of CREATE TABLE when it reads the table: "
        f"use CREATE TEMPORARY VIEW v USING {format_} OPTIONS (...), which keeps them"
    )


def _is_of_table(key: str, raw: Mapping[str, str]) -> bool:
    """Return whether Spark tells of a table: its owner, comment and properties, not an option."""
    return _TABLE in raw and (key.startswith(_AGAIN) or _AGAIN + key not in raw)


def _unknown(key: str, known: Iterable[str]) -> SourceError:
    if key == "paths":
        return SourceError(codes.INVALID_OPTION, "a DataFrame is of one store: load one path")
    names = ", ".join(sorted(known) + list(ENGINE))
    return SourceError(codes.UNKNOWN_OPTION, f"unknown option {key!r}; known are: {names}")
