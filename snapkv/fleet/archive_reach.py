"""The reach of many archives, from one listing of each bucket and no connection to an engine."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from snapkv.archive import open_files
from snapkv.archive.folder import Files
from snapkv.archive.manifest import FOLDER
from snapkv.archive.storage import location_of
from snapkv.base.files import typed_errors
from snapkv.errors import EngineUnavailableError, SnapKVError
from snapkv.times import TIMESTAMP_MAX

if TYPE_CHECKING:
    from snapkv.fleet.member_link import MemberLink

Archive = TypeVar("Archive", bound="MemberLink")
_MARK = f"/{FOLDER}/"


def archives_below(place: str, storage: Mapping[str, Any] | None) -> list[str]:
    """Return the names of the archives in a folder or bucket, which may have parts; one listing."""
    if "://" in place:
        return sorted(_listed(place, storage))
    with typed_errors(place):
        return sorted(_folders(place, ""))


class ArchiveReach(NamedTuple):
    """The number of an archive's newest manifest, and up to which timestamp it is complete.

    `early` is the first timestamp that an older manifest is known to have reached: there was a
    commit by then.
    """

    number: int
    timestamp: int
    early: int


NOWHERE = ArchiveReach(0, 0, TIMESTAMP_MAX)


def reached_in(files: Files) -> ArchiveReach:
    """Return how far one archive reaches, by one listing; `NOWHERE` if its names do not say it."""
    return _newest(entry.name.removeprefix(f"{FOLDER}/") for entry in files.list(FOLDER))


def listed_together(archives: Iterable[Archive]) -> list[list[Archive]]:
    """Return archives in groups: by bucket and options, and all in folders of this machine."""
    groups: dict[tuple[str, str], list[Archive]] = defaultdict(list)
    for archive in archives:
        bucket, storage = "", ""
        if "://" in (url := _place(archive)):
            location = location_of(url)
            bucket = f"{location.scheme}://{location.bucket}"
            storage = repr(sorted(_listing(archive).items()))
        groups[bucket, storage].append(archive)
    return list(groups.values())


def reached_of(group: Sequence[MemberLink]) -> dict[str, ArchiveReach | SnapKVError]:
    """Return how far the archives of a group reach, by member; `NOWHERE` without one.

    One listing of a bucket, whatever their number; of a folder, one of each archive's manifests.
    If a bucket is away, it returns the error of that.
    """
    urls = [_place(archive) for archive in group]
    if "://" not in urls[0]:
        return {
            archive.name: _newest(_names(os.path.join(url, FOLDER)))
            for archive, url in zip(group, urls, strict=True)
        }
    locations = [location_of(url) for url in urls]
    folder = _common_folder([location.path for location in locations])
    bucket = f"{locations[0].scheme}://{locations[0].bucket}"
    try:
        reached = _listed(f"{bucket}/{folder}".rstrip("/"), _listing(group[0]))
    except EngineUnavailableError as e:
        return {archive.name: e for archive in group}
    return {
        archive.name: reached.get(location.path[len(folder) :].strip("/"), NOWHERE)
        for archive, location in zip(group, locations, strict=True)
    }


def _listing(archive: MemberLink) -> dict[str, Any]:
    """Return the options for a listing of its bucket: a request may take the time of a call."""
    bounds = {"timeout": archive.timeout, "retry_timeout": archive.timeout}
    return {**bounds, **(archive.member.storage or {})}


def _place(archive: MemberLink) -> str:
    return archive.member.url.removeprefix("archive:").rstrip("/")


def _common_folder(paths: list[str]) -> str:
    """Return the deepest folder that holds all paths, or is one.

    >>> _common_folder(["a/b/x", "a/b/y"]), _common_folder(["a/b"]), _common_folder(["a", "b"])
    ('a/b', 'a/b', '')
    """
    return "" if "" in paths else os.path.commonpath(paths)


def _listed(place: str, storage: Mapping[str, Any] | None) -> dict[str, ArchiveReach]:
    """Return how far the archives below a place of an object store reach, by their names."""
    reached: dict[str, ArchiveReach] = {}
    for entry in open_files(place, storage).list(""):
        name, mark, file = f"/{entry.name}".rpartition(_MARK)
        if mark and "/" not in file:
            name = name.strip("/")
            reached[name] = _newest([file], reached.get(name, NOWHERE))
    return reached


def _newest(names: Iterable[str], found: ArchiveReach = NOWHERE) -> ArchiveReach:
    """Return what the names of manifests, `NUMBER-TIMESTAMP`, add to what is known.

    >>> _newest(["0000007.json", "0000007-445644800032243719", "0000006-445644800032243000"])
    ArchiveReach(number=7, timestamp=445644800032243719, early=445644800032243000)
    """
    number, newest, early = found
    for name in names:
        digits, _, stamp = name.partition("-")
        if name.isascii() and digits.isdigit() and stamp.isdigit():
            number, newest = max((number, newest), (int(digits), int(stamp)))
            early = min(early, int(stamp) or early)
    return ArchiveReach(number, newest, early)


def _names(folder: str) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError), typed_errors(folder):
        return os.listdir(folder)
    return []


def _folders(root: str, below: str) -> Iterator[str]:
    """Yield the folders that are archives; those are not searched further."""
    with os.scandir(os.path.join(root, below)) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=True))
    if FOLDER in names:
        yield below
        return
    for name in names:
        yield from _folders(root, f"{below}/{name}".lstrip("/"))
