"""Locations of keys, as values; and from the URL of a store to its engine, with its options."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from snapkv.base.arguments import check_known, check_text
from snapkv.engine.contract import Engine
from snapkv.engine.etcd.options import CONNECTION, LIMITS, without_environment
from snapkv.errors import InvalidOptionError

DEFAULT_NAME = "default"
TELLTALES = "@?="
"""The characters next to a secret in the URL of any engine."""

COMMON_OPTIONS = (
    "name",
    "ring_slots",
    "clock",
    "retain",
    "writer",
    "commit_timeout",
    "read_timeout",
    "max_clock_skew",
    "create",
    "archive",
    "hooks",
    "stats",
    "force_fork",
)


@dataclass(frozen=True, slots=True)
class Location:
    """Where keys are: in a store, in one of its spaces, or below prefixes that are observed.

    Keys below `exclude` are not observed. `options` are options of the engine, `storage` options of
    the archive's object store. A location can be pickled, and hashed if the values of the options
    can.
    """

    url: str
    name: str = DEFAULT_NAME
    prefix: str | tuple[str, ...] | None = None
    archive: str | None = None
    storage: tuple[tuple[str, Any], ...] = field(default=(), repr=False)  # it may hold a password
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)  # so may these
    space: str | None = None
    exclude: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The options that name it on a command line."""
        named = {
            "--name": None if self.name == DEFAULT_NAME else self.name,
            "--observe": self.prefix,
            "--except": self.exclude,
            "--archive": self.archive,
        }
        words = ["--store", self.url]
        for name, given in named.items():
            for text in (given,) if isinstance(given, str) else given or ():
                words += name, text
        return tuple(words)


def _memory(url: str, create: bool, home: bytes, environment: bool, **options: Any) -> Engine:
    from snapkv.engine.memory import open_memory

    return open_memory(url)


def _lmdb(url: str, create: bool, home: bytes, environment: bool, **options: Any) -> Engine:
    from snapkv.engine.lmdb import LmdbEngine

    return LmdbEngine(_lmdb_path(url), create=create, **options)


def _lmdb_path(url: str) -> str:
    """Return the path of an lmdb URL; raise `InvalidOptionError` where it would surprise."""
    path = url.removeprefix("lmdb:")
    try:
        unusable = not path.strip("/") or b"\0" in os.fsencode(path)
    except UnicodeEncodeError:
        unusable = True
    if unusable:
        raise InvalidOptionError(f"{url!r} needs the path of a directory, as in lmdb:./meta")
    if path.startswith("//"):
        rest = path.strip("/")
        raise InvalidOptionError(
            f"{url!r} has no host, so no '//': write lmdb:{rest} for a path from here, "
            f"lmdb:/{rest} for one from the root"
        )
    if path.startswith("~"):
        literal, likely = f"lmdb:./{path}", _directory_url(path)
        advice = f"{likely}, or {literal}" if likely != literal else literal
        raise InvalidOptionError(
            f"{url!r}: '~' is not expanded here; write {advice} for a directory of that name"
        )
    return path


def _directory_url(path: str) -> str:
    """Return the URL that a path is most likely meant to be."""
    path = os.path.expanduser(path)
    return f"lmdb:./{path}" if path.startswith("~") else f"lmdb:{path}"  # no such user exists


def _etcd(url: str, create: bool, home: bytes, environment: bool, **options: Any) -> Engine:
    from snapkv.engine.etcd.engine import open_etcd

    return open_etcd(url, home=home, **(options if environment else without_environment(options)))


def _snapshot(url: str, create: bool, home: bytes, environment: bool, **options: Any) -> Engine:
    from snapkv.engine.etcd.snapshot_file import SnapshotEngine

    return SnapshotEngine(url)


def _archive(url: str, create: bool, home: bytes, environment: bool, **options: Any) -> Engine:
    from snapkv.archive.engine import open_archived

    return open_archived(url.removeprefix("archive:"), **options)


_ENGINES: dict[str, tuple[Callable[..., Engine], tuple[str, ...]]] = {
    "archive": (_archive, ("storage",)),
    "etcd": (_etcd, (*CONNECTION, *LIMITS)),
    "etcd-snapshot": (_snapshot, ()),
    "memory": (_memory, ()),
    "lmdb": (_lmdb, ("durability", "map_bytes", "mode", "request_bytes_max")),
}


def open_engine(
    url: str,
    *,
    create: bool,
    options: dict[str, Any],
    home: bytes = b"\0",
    environment: bool = True,
) -> Engine:
    """Return the engine that a URL names; only that one is imported.

    `home` is a key that its user may read, for the engine's own requests. If `environment` is
    False, no option is taken from environment variables.

    Raises `InvalidOptionError`, `InvalidTypeError` for an unknown option, and what the engine
    raises.
    """
    opener = check_engine(url, options)
    return opener(url, create, home, environment, **options)


def check_engine(url: str, options: Iterable[str]) -> Callable[..., Engine]:
    """Return what opens the engine that a URL names; nothing is opened.

    Raises `InvalidOptionError`, `InvalidTypeError` for an unknown option.
    """
    check_text("url", url)
    scheme, colon, _ = url.partition(":")
    if scheme == "kubernetes" and colon:
        raise InvalidOptionError(
            f"{_shown(url)!r} is a cluster's API, not a store: record it, as in `snapkv record "
            "--kubernetes --into lmdb:./cluster`, and open the record"
        )
    if not colon or scheme not in _ENGINES:
        known = ", ".join(f"{name}:" for name in _ENGINES)
        shown = _shown(url)
        path = shown == url != "" and (not colon or "/" in scheme)
        advice = f"for a directory write {_directory_url(url)}; " if path else ""
        message = f"no engine for {shown!r}; {advice}a URL begins with one of {known}"
        raise InvalidOptionError(message)
    opener, known_options = _ENGINES[scheme]
    check_known(options, known_options, also=COMMON_OPTIONS)
    return opener


def scheme_of(url: str) -> str | None:
    """Return the scheme of an engine's URL; None for anything else."""
    scheme, colon, _ = url.partition(":")
    return scheme if colon and scheme in _ENGINES else None


def _shown(url: str) -> str:
    """Return the part of an invalid URL that may be shown: the rest may be a password."""
    if not any(mark in url for mark in TELLTALES):
        return url
    scheme, colon, _ = url.partition(":")
    return f"{scheme}:..." if colon and _shown(scheme) == scheme else "..."
