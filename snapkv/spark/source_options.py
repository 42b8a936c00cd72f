"""Options as Spark passes them, and the location that they name."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import Any

from snapkv.archive.storage import SECONDS
from snapkv.engine.etcd.options import CONNECTION, FLAGS
from snapkv.layout import Keyspace, Layout, RawKeyspace, raw_key
from snapkv.spark import errors
from snapkv.spark.errors import SourceError
from snapkv.spark.timing import zone_of
from snapkv.store.location import DEFAULT_NAME, Location
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV

PARTITIONS_MAX = 16
"""The most partitions by default: one etcd serves all tasks, and more are not faster."""
ENGINE = CONNECTION
"""Options of etcd's engine, with or without underscores."""
OF_SOURCES = ("store", "path", "name", "numPartitions", "timeZone", "timestampAsOf", "versionAsOf")
"""The options that the sources of all formats have."""
TEXT, BINARY = "utf8", "binary"
STORAGE = "storage."
"""The prefix of options for an archive's object store; the rest of the name is obstore's."""
_SPELLINGS = {spelling: name for name in ENGINE for spelling in (name, name.replace("_", ""))}
# Keys that Spark adds to the options of CREATE TABLE, which it passes twice: as they are, and with
# this prefix. When it reads the table it passes no options at all.
_TABLE, _AGAIN = "provider", "option."
_SCHEMES = ("lmdb", "etcd", "memory", "archive")
_NAME_IT = "name the store: .load('lmdb:./meta'), .load('etcd://host:2379') or the option store"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Where to read, and the texts of the options, by their names."""

    location: Location
    texts: Mapping[str, str] = field(repr=False)  # may contain a password
    zone: tzinfo | None

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return the text of an option."""
        return self.texts.get(name, default)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return an option that is true or false."""
        return flag_of(name, self.texts.get(name), default)

    def count(self, name: str) -> int | None:
        """Return an option that is a whole number above 0, None without it."""
        text = self.texts.get(name)
        if text is None:
            return None
        digits = text.isascii() and text.isdigit() and len(text) < 20
        if not digits or not 0 < int(text) < 1 << 63:
            raise errors.INVALID_OPTION(f"{name} is a whole number above 0, not {text!r}")
        return int(text)

    def choice(self, name: str, *choices: str) -> str:
        """Return an option that is one of some words, the first of which is its default."""
        text = self.texts.get(name, choices[0])
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise errors.INVALID_OPTION(f"{name} is one of {choices}, not {text!r}")

    @property
    def is_text(self) -> bool:
        """Whether keys are text."""
        return self.choice("keyFormat", *key_formats(self.location.space is not None)) == TEXT

    @property
    def partitions(self) -> int:
        """The most tasks that may read at once."""
        usual = min(2 * (os.cpu_count() or 1), PARTITIONS_MAX)
        return self.count("numPartitions") or usual


def key_formats(of_space: bool) -> tuple[str, str]:
    """Return the formats of keys, the default first: text, or binary in a space."""
    return (BINARY, TEXT) if of_space else (TEXT, BINARY)


def canonical_names(raw: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Return the options that Spark passes by their names; its own additions are ignored.

    Spark passes names in lower case. Raises `SourceError` for unknown ones, listing the known ones.
    """
    names = {name.lower(): name for name in known} | _SPELLINGS
    texts: dict[str, str] = {}
    for key, value in raw.items():
        name = names.get(key.lower())
        if name is None and key.lower().startswith(STORAGE) and "archive" in known:
            name = key.lower()
        if name in texts:
            raise errors.INVALID_OPTION(
                f"option {name} is given twice, once as {key!r}: give it once"
            )
        if name is not None:
            texts[name] = value
        elif not _is_of_table(key.lower(), raw):
            raise _unknown(key, known)
    return texts


def check_one_of(texts: Mapping[str, str], pairs: Iterable[tuple[str, str]]) -> None:
    """Raise `SourceError` if both options of a pair are set: they mean the same."""
    for one, other in pairs:
        if one in texts and other in texts:
            raise errors.MULTIPLE_BOUNDARY(f"give {one} or {other}, not both")


def check_none_of(texts: Iterable[str], names: Collection[str], why: str) -> None:
    """Raise `SourceError` if one of the options `names` is set, which has no effect here."""
    for name in texts:
        if name in names:
            raise errors.INVALID_OPTION(f"{name} is {why}")


def check_free(options: Iterable[str], taken: Mapping[str, str]) -> None:
    """Raise `SourceError` for an option that a call sets itself; `taken` says what to give."""
    names = {name.lower(): name for name in taken}
    for name in options:
        if (known := names.get(name.lower())) is not None:
            raise errors.INVALID_OPTION(f"no option {known} here: {taken[known]}")


def with_options(options: Mapping[str, Any], added: Mapping[str, str], by: str) -> dict[str, Any]:
    """Return options with what parameters add. Raises `SourceError` for one that comes twice."""
    check_free(options, dict.fromkeys(added, f"{by} gives it"))
    return {**options, **added}


def zone_in(texts: Mapping[str, str]) -> tzinfo | None:
    """Return the time zone of the option `timeZone`, None without it. Raises `SourceError`."""
    return zone_of(texts["timeZone"]) if "timeZone" in texts else None


def flag_of(name: str, text: str | None, default: bool) -> bool:
    """Return an option that is true or false. Raises `SourceError`."""
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise errors.INVALID_OPTION(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


def is_store(path: str) -> bool:
    """Return whether a path is the URL of a store, not a table's own folder in the warehouse."""
    return path.partition(":")[0] in _SCHEMES


def location_of(texts: Mapping[str, str], raw: Mapping[str, str], format_: str) -> Location:
    """Return the location in options; `raw` is what `format_` got. Raises `SourceError`."""
    path = texts.get("path", "")
    if "store" in texts and is_store(path):
        raise errors.INVALID_OPTION("give a path or the option store, not both")
    url = texts.get("store", path if is_store(path) else None)
    if url is None:
        wrong = f"{path!r} is not a store; " if path and "@" not in path else ""  # no secrets
        may_be_table = _TABLE in raw or not path
        view = f"CREATE TEMPORARY VIEW v USING {format_} OPTIONS (...)"
        dropped = (
            ". Spark drops the OPTIONS of CREATE TABLE when it reads the table: repeat them after "
            f"FROM t WITH (...), or use {view}, which keeps them"
        )
        advice = _NAME_IT + (dropped if may_be_table else "")
        raise errors.MISSING_OPTION(wrong + advice)
    engine: dict[str, Any] = {name: texts[name] for name in ENGINE if name in texts}
    if engine and not url.startswith("etcd:"):
        raise errors.INVALID_OPTION(f"{', '.join(engine)}: only etcd has these options")
    engine |= {flag: flag_of(flag, engine[flag], False) for flag in FLAGS if flag in engine}
    return Location(
        absolute(url),
        texts.get("name", DEFAULT_NAME),
        texts.get("observe"),
        *_archive_of(texts, url),
        tuple(sorted(engine.items())),
        texts.get("space"),
    )


def _archive_of(
    texts: Mapping[str, str], url: str
) -> tuple[str | None, tuple[tuple[str, Any], ...]]:
    """Return the archive that options name, and the options of its object store."""
    archive = texts.get("archive")
    storage = {
        name.removeprefix(STORAGE): _typed(name.removeprefix(STORAGE), text)
        for name, text in texts.items()
        if name.startswith(STORAGE)
    }
    alone = url.startswith("archive:")
    if storage and archive is None and not alone:
        names = ", ".join(sorted(STORAGE + name for name in storage))
        raise errors.INVALID_OPTION(
            f"{names}: only an archive has these options; give archive, too"
        )
    if archive is not None and alone:
        raise errors.INVALID_OPTION("the store is an archive itself: leave the option archive out")
    if "observe" in texts and (alone or archive is not None):
        raise errors.INVALID_OPTION(
            "an archive is of a store's own keys: leave the option observe out"
        )
    found = None if archive is None else absolute_archive(archive)
    return found, tuple(sorted(storage.items()))


def _typed(name: str, text: str) -> str | bool | float:
    """Return the value of an option of an object store, all of which Spark passes as text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if name == "max_retries" else float(text) if name in SECONDS else text
    except ValueError:
        return text  # which the archive rejects


def _is_of_table(key: str, raw: Mapping[str, str]) -> bool:
    """Return whether Spark passes a table's owner, comment or property, not an option."""
    return _TABLE in raw and (key.startswith(_AGAIN) or _AGAIN + key not in raw)


def _unknown(key: str, known: Iterable[str]) -> SourceError:
    if key == "paths":
        return errors.INVALID_OPTION("a DataFrame reads one store: load one path")
    also = [*ENGINE, f"{STORAGE}*"] if "archive" in known else list(ENGINE)
    names = ", ".join(sorted(known) + also)
    return errors.UNKNOWN_OPTION(f"unknown option {key!r}; known are: {names}")


def open_to_write(location: Location, writer: str | None) -> SnapshotKV:
    """Open a store for writing, or create it; the caller closes it. Raises as `snapkv.open`."""
    options = dict(location.options)
    return open_store(location.url, codec=None, name=location.name, writer=writer, **options)


def keyspace_of(location: Location, *, text: bool) -> Keyspace:
    """Return the key space that is read, with keys as text or as bytes."""
    if location.prefix is not None:
        return RawKeyspace(raw_key(location.prefix, "observe", text=True), text=text)
    layout = Layout(location.name)
    space = layout.data if location.space is None else layout.space(location.space)
    return replace(space, text=text)


def absolute(url: str) -> str:
    """Return the URL as every process of this machine understands it.

    Raises `SourceError` for a store that lives in one process.
    """
    if not isinstance(url, str):
        raise errors.INVALID_OPTION(f"a store's URL is a str, not {type(url).__name__}")
    if url.startswith("memory:"):
        raise errors.INVALID_OPTION(
            f"{url!r} lives in one process, where Spark's workers cannot see it: "
            "use lmdb: or etcd:, or to_arrow() without Spark"
        )
    scheme, _, path = url.partition(":")
    if scheme == "lmdb" and path:
        return f"lmdb:{os.path.abspath(path)}"
    return f"archive:{absolute_archive(path)}" if scheme == "archive" else url


def absolute_archive(url: str) -> str:
    """Return the URL of an archive as every process of this machine understands it.

    Raises `SourceError` for a URL with credentials, which plans and messages would show.
    """
    if not isinstance(url, str):
        raise errors.INVALID_OPTION(f"an archive's URL is a str, not {type(url).__name__}")
    scheme, remote, rest = url.partition("://")
    if not remote:
        return os.path.abspath(url) if url else url
    if "@" in rest.partition("/")[0]:
        raise errors.INVALID_OPTION(
            f"{scheme}://... has credentials, which do not belong into a URL: set environment "
            "variables, or options that begin with 'storage.'"
        )
    return url
