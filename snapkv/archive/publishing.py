"""Publishing manifests: one of several writers succeeds, and readers see whole archives only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice, pairwise

from snapkv.archive.folder import Entry, Files
from snapkv.archive.manifest import (
    BEGINNING,
    DIGITS,
    FOLDER,
    GRACE_S,
    KEPT,
    PUBLISHED,
    Manifest,
)
from snapkv.errors import AccessDeniedError, ArchiveError, FileMissingError, InvalidFileError

LOOKS_MAX = 8
"""A manifest may be deleted between a listing and the read: then there are newer ones."""
ATTEMPT_BYTES = 8
LOOKED_AT_MAX = 10_000
"""The most files of a folder that are looked at before an archive begins."""
ELSEWHERE = "name a new or an empty folder"
SYSTEM_FILES = {"lost+found", "desktop.ini", "Thumbs.db"}
"""What file systems and file managers leave in empty folders, beside names with a dot first."""


def newest(files: Files, known: Manifest | None = None) -> Manifest | None:
    """Return the newest manifest; None if there is none, or none newer than the known one.

    One listing, and one read.
    """
    for _ in range(LOOKS_MAX):
        numbers = _numbers(files)
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


def _is_other(files: Files, entry: Entry) -> bool:
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
    """Return the manifests that exist by number, oldest first.

    One listing, and a read of each that is not in `known`.
    """
    found, known = {}, known or {}
    for number in _numbers(files):
        try:
            found[number] = known.get(number) or Manifest.decode(files.read(_name(number)))
        except FileMissingError:  # deleted meanwhile
            continue
    return found


def _numbers(files: Files) -> list[int]:
    return list(_written(files.list(FOLDER)))


def _written(entries: Iterable[Entry]) -> dict[int, float]:
    """Return when each manifest was written, in the order of their numbers."""
    found = ((PUBLISHED.fullmatch(entry.name), entry.written) for entry in entries)
    return dict(sorted((int(name[1]), at) for name, at in found if name and not name[2]))


def _kept(entries: Iterable[Entry]) -> set[int]:
    """Return the numbers of the manifests that stay."""
    written = _written(entries)
    numbers = list(written)
    since = max(written.values()) - GRACE_S
    return {n for n, after in pairwise(numbers) if written[after] >= since} | {*numbers[-KEPT:]}


def _name(number: int) -> str:
    return f"{FOLDER}/{number:0{DIGITS}}.json"
