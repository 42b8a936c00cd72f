"""Publishing manifests: one of several writers succeeds, and readers see whole archives only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import pairwise

from snapkv.archive.files import Entry, Files
from snapkv.archive.manifest import DIGITS, FOLDER, GRACE_S, KEPT, Manifest
from snapkv.errors import ArchiveError, FileMissingError

LOOKS_MAX = 8
"""A manifest may be deleted between a listing and the read: then there are newer ones."""
ATTEMPT_BYTES = 8


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
    kept = {f"{number:0{DIGITS}}" for number in _kept(entries)}
    for entry in entries:
        if entry.name.removeprefix(f"{FOLDER}/")[:DIGITS] not in kept:
            files.delete(entry.name)
    return True


def resolved(files: Files) -> int:
    """Return the timestamp up to which an archive is complete, 0 for none; one listing.

    It may be that of an older manifest, if the writer of the newest one has just been killed.
    """
    found = [entry.name.partition("-")[2] for entry in files.list(FOLDER)]
    return max((int(stamp) for stamp in found if stamp.isdigit()), default=0)


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
    names = ((entry.name.removeprefix(f"{FOLDER}/"), entry.written) for entry in entries)
    return dict(
        sorted(
            (int(name[:DIGITS]), written)
            for name, written in names
            if name[DIGITS:] == ".json" and name[:DIGITS].isdigit()
        )
    )


def _kept(entries: Iterable[Entry]) -> set[int]:
    """Return the numbers of the manifests that stay."""
    written = _written(entries)
    numbers = list(written)
    since = max(written.values()) - GRACE_S
    return {n for n, after in pairwise(numbers) if written[after] >= since} | {*numbers[-KEPT:]}


def _name(number: int) -> str:
    return f"{FOLDER}/{number:0{DIGITS}}.json"
