"""The manifest: which files an archive consists of, and which revisions they hold.

Each manifest is complete, and the one with the greatest number is the archive. It is published by
writing `_manifest/<number>.json` unless there is one of that name, so of two writers one fails.
Then `_manifest/<number>-<resolved>` is written, an empty file, so that one listing shows how far an
archive reaches. Older manifests are deleted after a while. So a writer that was away for long could
write a number that is free again: it lists the manifests after it wrote its own, and gives up if
there is a greater one.

    {"format": 2, "number": 42, "attempt": "c01e..",
     "store": {"id": "5f..", "name": "default", "created": 2},
     "since": 17, "since_timestamp": 47.., "resolved": 47..,
     "gaps": [{"low": 40, "high": 55, "after": 21, "before": 78}],
     "files": [{"kind": "delta", "path": "delta/00..17-9c2e.parquet", "low": 17, "high": 90, ...}]}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from math import inf
from typing import Any, NamedTuple

from snapkv.archive.folder import FileEntry, Files
from snapkv.errors import (
    AccessDeniedError,
    ArchiveError,
    FileMissingError,
    FormatError,
    HistoryGapError,
    InvalidFileError,
)
from snapkv.layout import Selection, SourceId
from snapkv.times import dated

FORMAT = 2
FOLDER = "_manifest"
KEPT = 8
"""The most manifests that remain, for readers that have just listed them."""
GRACE_S = 3_600.0
"""The time for which replaced manifests, and the files that they name, are kept, in seconds."""
DIGITS = 20
KINDS = ("base", "delta", "log")
PATH = re.compile(r"(base|delta|log)/[\w-]+\.parquet", re.ASCII)
"""The form of a path that a manifest may name."""
DATA = re.compile(r"(base|delta|log)/[0-9]{20}-[0-9]{20}-[0-9a-f]{8}\.parquet")
"""The names that writers of archives make for data files: no other one is ever deleted."""
BEGINNING = re.compile(
    r"(base|log)/([0-9]{20})-\2-[0-9a-f]{8}\.parquet|_assignment/[0-9]{20}-[0-9]{20}"
)
"""The files that a writer leaves that is killed before its first manifest; the last ones are of
captures."""
PUBLISHED = re.compile(rf"{FOLDER}/([0-9]{{20}})(?:\.json|-([0-9]+))")
"""A manifest, or the empty file beside it; by number, and by the timestamp that it reaches."""


class File(NamedTuple):
    """A data file of the archive: the changes of the revisions `low` to `high`, or a state.

    `kind` is "delta" (changes), "log" (the commits that made them) or "base" (the state at
    `high`; `low` is the same). Keys are as stored; `sha256` is of the file's bytes.
    """

    kind: str
    path: str
    low: int
    high: int
    rows: int
    size: int
    sha256: str
    first_key: bytes = b""
    last_key: bytes = b""


class Gap(NamedTuple):
    """Revisions that were compacted before they were recorded, `low` to `high` inclusive.

    What they changed fell between two timestamps; `high` + 1 is known again.
    """

    low: int
    high: int
    after: int
    before: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive consists of.

    Revisions `since` to `high` are known, except the revisions in `gaps`. The deltas and logs hold
    the changes of `since` + 1 to `high` and tile these revisions, and there is a base at `since`.
    `since_timestamp` and `resolved` are the timestamps of the commits in force at `since` and at
    `high`: each commit between them is in the archive, or in a gap.
    """

    number: int
    source: SourceId
    since: int
    since_timestamp: int
    resolved: int
    files: tuple[File, ...] = field(default=())
    gaps: tuple[Gap, ...] = field(default=())

    def of_kind(self, kind: str, low: int = 0, high: float = inf) -> list[File]:
        """Return the files of a kind with a revision in [low, high], in the order of revisions."""
        found = (f for f in self.files if f.kind == kind and f.high >= low and f.low <= high)
        return sorted(found, key=lambda file: file.high)

    @property
    def high(self) -> int:
        """The last revision that is known."""
        return max((file.high for file in self.files), default=0)

    @property
    def extent(self) -> str:
        """From when to when it has history, for the messages of errors."""
        begin, end = self.since_timestamp, dated(self.resolved)
        return f"has only {dated(begin)} to {end}" if begin else f"ends at {end}"

    def missing(self, timestamp: int) -> str | None:
        """Return why the state at a time is not here, None if it is."""
        if timestamp < self.since_timestamp:
            return f"the archive begins at {dated(self.since_timestamp)}"
        for gap in self.gaps:
            if gap.after < timestamp < gap.before:
                return f"the archive has a gap between {dated(gap.after)} and {dated(gap.before)}"
        return None

    def check_gap(self, revision: int) -> None:
        """Raise `HistoryGapError` if the state at a revision is lost; the log has no gaps."""
        for gap in self.gaps:
            if gap.low <= revision <= gap.high:
                raise HistoryGapError(gap.after, gap.before)

    def following(
        self,
        add: Iterable[File],
        remove: Iterable[File] = (),
        *,
        since: tuple[int, int] | None = None,
        resolved: int | None = None,
        gap: Gap | None = None,
    ) -> Manifest:
        """Return the next manifest, with some files added and some removed.

        `since` is a revision and its timestamp; what is None stays.

        Raises `ArchiveError` if its files have a gap or an overlap.
        """
        gone = {file.path for file in remove}
        files = (*(file for file in self.files if file.path not in gone), *add)
        revision, timestamp = since or (self.since, self.since_timestamp)
        gaps = tuple(each for each in self.gaps if each.high > revision)
        after = replace(
            self,
            number=self.number + 1,
            since=revision,
            since_timestamp=timestamp,
            resolved=self.resolved if resolved is None else resolved,
            files=files,
            gaps=gaps if gap is None else (*gaps, gap),
        )
        after.check()
        return after

    def check(self) -> None:
        """Raise `ArchiveError` unless the files hold each revision once."""
        if not any(base.high == self.since for base in self.of_kind("base")):
            raise ArchiveError(f"the archive has no base at revision {self.since}, its first")
        for kind, first in (("delta", self.since + 1), ("log", self.since)):
            at = None
            for file in self.of_kind(kind):
                begins = file.low <= first if at is None else file.low == at + 1
                if not begins or file.high < file.low:
                    raise ArchiveError(
                        f"{file.path} holds revisions {file.low} to {file.high}, but the archive "
                        f"needs {first if at is None else at + 1} next"
                    )
                at = file.high
        ends = {
            kind: max((file.high for file in self.of_kind(kind)), default=self.since)
            for kind in ("delta", "log")
        }
        if ends["delta"] != ends["log"]:
            raise ArchiveError(
                f"the changes of the archive end at revision {ends['delta']}, its log at "
                f"{ends['log']}"
            )

    def encode(self, attempt: bytes = b"") -> bytes:
        """Return the JSON text of the manifest.

        `attempt` is a random number, so that no two attempts to publish have the same text: a
        writer that lost an answer finds out by the text whether the manifest is its own.
        """
        found: dict[str, Any] = {
            "digest": "",
            "format": FORMAT,
            "number": self.number,
            "attempt": attempt.hex(),
            "store": _described(self.source),
            "since": self.since,
            "since_timestamp": self.since_timestamp,
            "resolved": self.resolved,
            "gaps": [gap._asdict() for gap in self.gaps],
            "files": [_named(file) for file in self.files],
        }
        found["digest"] = _digest(found)
        return json.dumps(found, indent=1).encode()

    @classmethod
    def decode(cls, text: bytes) -> Manifest:
        """Read a manifest; raises `FormatError` for a newer format, `ArchiveError` if invalid."""
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise FormatError("the archive", found["format"], FORMAT)
            digest = found.get("digest", "")  # older ones have none
            if digest != "" and not (_is_text_of(digest, text) or digest == _digest(found)):
                raise ArchiveError(
                    f"a manifest is damaged: {text[:60]!r} has another digest; "
                    "`snapkv archive verify` finds what is left"
                )
            number, since, since_timestamp, resolved = _numbers(
                found, "number", "since", "since_timestamp", "resolved"
            )
            manifest = cls(
                number,
                _source(found["store"]),
                since,
                since_timestamp,
                resolved,
                tuple(_file(each) for each in found["files"]),
                tuple(Gap(*_numbers(each, *Gap._fields)) for each in found["gaps"]),
            )
            manifest.check()
            return manifest
        except (FormatError, ArchiveError):
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise ArchiveError(f"not a manifest: {text[:60]!r}: {e}") from e


def _digest(found: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the text of a manifest, which has an empty digest itself."""
    text = json.dumps({**found, "digest": ""}, indent=1)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_text_of(digest: str, text: bytes) -> bool:
    """Return whether a text is as it was written; to write it again takes far longer."""
    written = text.replace(f'"digest": "{digest}"'.encode(), b'"digest": ""', 1)
    return hashlib.sha256(written).hexdigest() == digest


def _numbers(found: Mapping[str, Any], *names: str) -> list[int]:
    """Return members that are numbers. Raises `TypeError`."""
    for name in names:
        if type(found[name]) is not int or found[name] < 0:
            raise TypeError(f"{name} is a whole number, not {found[name]!r}")
    return [found[name] for name in names]


def _named(file: File) -> dict[str, Any]:
    keys = {"first_key": file.first_key.hex(), "last_key": file.last_key.hex()}
    return file._asdict() | keys


def _described(source: SourceId) -> dict[str, Any]:
    """Return a source for JSON; several prefixes, or exceptions, are not in `prefix`."""
    found: dict[str, Any] = source._asdict() | {"id": source.id.hex(), "prefix": None}
    observed = found.pop("observed")
    if observed is not None and observed.is_one:
        found["prefix"] = observed.only.hex()
    elif observed is not None:
        for name, some in observed._asdict().items():
            found[name] = [each.hex() for each in some]
    return found


def _source(found: dict[str, Any]) -> SourceId:
    prefixes = found.get("prefixes", ())
    if found.get("prefix") is not None:
        prefixes = [found["prefix"]]
    selected = (
        [bytes.fromhex(each) for each in some] for some in (prefixes, found.get("excluded", ()))
    )
    observed = Selection(*map(tuple, selected))
    return SourceId(
        bytes.fromhex(found["id"]),
        found["name"],
        found["created"],
        observed if observed.prefixes else None,
        found.get("cluster", 0),
    )


def _file(found: dict[str, Any]) -> File:
    if not PATH.fullmatch(found["path"]):  # it must not name a file outside of the archive
        raise ArchiveError(f"a manifest names {found['path']!r}, which is not a file of an archive")
    if found["kind"] != found["path"].partition("/")[0]:
        raise ArchiveError(f"a manifest says that {found['path']} is of kind {found['kind']!r}")
    _numbers(found, "low", "high", "rows", "size")
    keys = {name: bytes.fromhex(found[name]) for name in ("first_key", "last_key")}
    return File(**(found | keys))


LOOKS_MAX = 8
"""The most listings before a manifest is read: one may be deleted between a listing and the read,
and then newer ones exist."""
ATTEMPT_BYTES = 8
LOOKED_AT_MAX = 10_000
"""The most files of a folder that are looked at before an archive begins."""
ELSEWHERE = "name a new or an empty folder"
SYSTEM_FILES = {"lost+found", "desktop.ini", "Thumbs.db"}
"""The names that file systems and file managers leave in empty folders, beside names with a dot
first."""


def newest(files: Files, known: Manifest | None = None) -> Manifest | None:
    """Return the newest manifest, None if none is newer than the known one; listing and read."""
    for _ in range(LOOKS_MAX):
        numbers = list(_written(files.list(FOLDER)))
        if not numbers or (known is not None and numbers[-1] <= known.number):
            return None
        try:
            return Manifest.decode(files.read(_name(numbers[-1])))
        except FileMissingError:
            continue
    raise ArchiveError(f"the manifests of {files.url} vanish as they are read")


def numbered(files: Files, number: int) -> Manifest:
    """Return the manifest with a number, or a newer one if that was deleted; one read mostly."""
    try:
        return Manifest.decode(files.read(_name(number)))
    except FileMissingError:
        return existing(files)


def existing(files: Files) -> Manifest:
    """Return the newest manifest; raises `ArchiveError` if there is none."""
    found = newest(files)
    if found is None:
        raise ArchiveError(f"no archive in {files.url}: it has no manifest")
    return found


def publish(files: Files, manifest: Manifest) -> bool:
    """Publish a manifest; return False if another writer was faster.

    Then no manifest names its data files, and `ArchiveWriter.clean` deletes them when they are old.
    Manifests that were replaced `GRACE_S` ago are deleted, but for the newest `KEPT`. After an
    error the manifest may be published, or not.
    """
    name = _name(manifest.number)
    if not files.put_new(name, manifest.encode(os.urandom(ATTEMPT_BYTES))):
        return False
    entries = files.list(FOLDER)
    numbers = list(_written(entries))
    if numbers[-1] > manifest.number:  # the number was free because it is one of long ago
        files.delete(name)
        return False
    files.put_new(f"{FOLDER}/{manifest.number:0{DIGITS}}-{manifest.resolved}", b"")
    kept = _kept(entries)
    for entry in entries:
        found = PUBLISHED.fullmatch(entry.name)
        if found and int(found[1]) not in kept:
            files.delete(entry.name)
    return True


def check_vacant(files: Files) -> None:
    """Raise `ArchiveError` unless an archive may begin in a place that has no manifest.

    The place must be empty but for what a writer left that was killed before its first manifest,
    and what file systems and file managers leave; and no folder above it may be an archive. One
    listing for each folder above it, and one of the place, which ends at the first other file and
    after `LOOKED_AT_MAX` files.
    """
    top, folders = files.above()
    for folder in folders:
        with suppress(AccessDeniedError, InvalidFileError):  # may be invisible to this program
            entries = top.walk(f"{folder}/{FOLDER}".lstrip("/"))
            names = (entry.name.removeprefix(f"{folder}/") for entry in entries)
            if any(PUBLISHED.fullmatch(name) for name in islice(names, LOOKED_AT_MAX)):
                raise ArchiveError(
                    f"{files.url} cannot become an archive: {top.url.rstrip('/')}/{folder}, which "
                    f"it is in, is one; {ELSEWHERE}"
                )
    other = next((e for e in islice(files.walk(""), LOOKED_AT_MAX) if _is_other(files, e)), None)
    if other is None or newest(files) is not None:  # another recorder has just begun it
        return
    folder, _, name = f"/{other.name}".rpartition(f"/{FOLDER}/")
    if folder and PUBLISHED.fullmatch(f"{FOLDER}/{name}"):
        where = f"{files.url.rstrip('/')}{folder}"
        raise ArchiveError(f"{files.url} cannot become an archive: {where} is one; {ELSEWHERE}")
    raise ArchiveError(
        f"{files.url} cannot become an archive: it has no manifest, and it has other files, such "
        f"as {other.name!r}; {ELSEWHERE}"
    )


def _is_other(files: Files, entry: FileEntry) -> bool:
    """Return whether no archive may begin in a place that contains this file."""
    first, _, rest = entry.name.partition("/")
    if f"/{FOLDER}/" in f"/{rest}":
        return True
    if first.startswith(".") or first in SYSTEM_FILES or BEGINNING.fullmatch(entry.name):
        return False
    is_folder = not entry.size and "://" in files.url  # as the consoles of object stores make it
    return first == FOLDER or not is_folder


def resolved(files: Files) -> int:
    """Return the timestamp up to which an archive is complete, 0 for none; one listing.

    It may be that of an older manifest, if the writer of the newest one has just been killed.
    """
    found = (PUBLISHED.fullmatch(entry.name) for entry in files.list(FOLDER))
    return max((int(each[2]) for each in found if each and each[2]), default=0)


def published(files: Files, known: Mapping[int, Manifest] | None = None) -> dict[int, Manifest]:
    """Return the manifests by number, oldest first; a listing, and a read of each not `known`."""
    found, known = {}, known or {}
    for number in _written(files.list(FOLDER)):
        try:
            found[number] = known.get(number) or Manifest.decode(files.read(_name(number)))
        except FileMissingError:  # deleted meanwhile
            continue
    return found


def _written(entries: Iterable[FileEntry]) -> dict[int, float]:
    """Return when each manifest was written, in the order of their numbers."""
    found = ((PUBLISHED.fullmatch(entry.name), entry.written) for entry in entries)
    return dict(sorted((int(name[1]), at) for name, at in found if name and not name[2]))


def _kept(entries: Iterable[FileEntry]) -> set[int]:
    """Return the numbers of the manifests that stay."""
    written = _written(entries)
    numbers = list(written)
    since = max(written.values()) - GRACE_S
    return {n for n, after in pairwise(numbers) if written[after] >= since} | {*numbers[-KEPT:]}


def _name(number: int) -> str:
    return f"{FOLDER}/{number:0{DIGITS}}.json"


class ArchiveStatus(NamedTuple):
    """What an archive holds.

    It knows history from the timestamp `since` to `resolved`, but for `gaps`; both with the
    source's revisions. `files`, `rows` and `bytes` are by kind: base, delta, log. `written` is when
    the newest manifest was written, in seconds since 1970, by the clock of the archive's place.
    """

    url: str
    name: str
    store_id: str
    observed: Selection | None
    number: int
    since: int
    since_revision: int
    resolved: int
    resolved_revision: int
    gaps: tuple[Gap, ...]
    files: dict[str, int]
    rows: dict[str, int]
    bytes: dict[str, int]
    written: float


def archive_status(files: Files) -> ArchiveStatus:
    """Return what an archive holds; two listings, one read. Raises `ArchiveError` without one."""
    manifest = existing(files)
    written = max(entry.written for entry in files.list("_manifest"))
    kinds = {kind: manifest.of_kind(kind) for kind in KINDS}
    source = manifest.source
    return ArchiveStatus(
        url=files.url,
        name=source.name,
        store_id=source.id.hex(),
        observed=source.observed,
        number=manifest.number,
        since=manifest.since_timestamp,
        since_revision=manifest.since,
        resolved=manifest.resolved,
        resolved_revision=manifest.high,
        gaps=manifest.gaps,
        files={kind: len(found) for kind, found in kinds.items()},
        rows={kind: sum(f.rows for f in found) for kind, found in kinds.items()},
        bytes={kind: sum(f.size for f in found) for kind, found in kinds.items()},
        written=written,
    )
