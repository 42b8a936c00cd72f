"""Publishing manifests: one of several writers succeeds, and readers see whole archives only."""

from __future__ import annotations

import os

from snapkv.archive.files import Files
from snapkv.archive.manifest import DIGITS, FOLDER, KEPT, Manifest
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


def existing(files: Files) -> Manifest:
    """Return the newest manifest; raises `ArchiveError` if there is none."""
    found = newest(files)
    if found is None:
        raise ArchiveError(f"no archive in {files.url}: it has no manifest")
    return found


def publish(files: Files, manifest: Manifest) -> bool:
    """Publish a manifest; return False if another writer was faster.

    Then no manifest names its data files, and `ArchiveWriter.clean` deletes them when they are old.
    Old manifests are deleted. After an error the manifest may be published, or not.
    """
    name = _name(manifest.number)
    if not files.put_new(name, manifest.encode(os.urandom(ATTEMPT_BYTES))):
        return False
    numbers = _numbers(files)
    if numbers[-1] > manifest.number:  # the number was free because it is one of long ago
        files.delete(name)
        return False
    files.put_new(f"{FOLDER}/{manifest.number:0{DIGITS}}-{manifest.resolved}", b"")
    kept = {f"{number:0{DIGITS}}" for number in numbers[-KEPT:]}
    for entry in files.list(FOLDER):
        if entry.name.removeprefix(f"{FOLDER}/")[:DIGITS] not in kept:
            files.delete(entry.name)
    return True


def resolved(files: Files) -> int:
    """Return the timestamp up to which an archive is complete, 0 for none; one listing.

    It may be that of an older manifest, if the writer of the newest one has just been killed.
    """
    found = [entry.name.partition("-")[2] for entry in files.list(FOLDER)]
    return max((int(stamp) for stamp in found if stamp.isdigit()), default=0)


def published(files: Files) -> list[Manifest]:
    """Return the manifests that exist, oldest first; one listing, and a read of each."""
    found = []
    for number in _numbers(files):
        try:
            found.append(Manifest.decode(files.read(_name(number))))
        except FileMissingError:  # deleted meanwhile
            continue
    return found


def _numbers(files: Files) -> list[int]:
    names = (entry.name.removeprefix(f"{FOLDER}/") for entry in files.list(FOLDER))
    return sorted(int(n[:DIGITS]) for n in names if n[DIGITS:] == ".json" and n[:DIGITS].isdigit())


def _name(number: int) -> str:
    return f"{FOLDER}/{number:0{DIGITS}}.json"
