"""The members of a fleet: a TOML or JSON file, or a mapping of the same form.

archives = ["s3://history"]          # each archive in this folder is a member

[defaults]                           # what a member has that does not say otherwise; see `_fitting`
prefix = "/registry/"
ca_cert = "/etc/etcd/ca.crt"

[members]
eu-1 = "etcd://10.0.1.1:2379"
us-1 = { url = "etcd://10.0.2.1:2379", joined = "2026-03-01T00:00:00Z" }
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import date, time
from typing import Any

from snapkv.base.arguments import check_known, check_text, wrong_type
from snapkv.base.files import FilePath, checked_path, typed_errors
from snapkv.base.text import fields_once
from snapkv.engine.etcd.options import FILES
from snapkv.errors import InvalidFileError, InvalidOptionError, SnapKVError
from snapkv.fleet.member import OBJECT_STORES, Member, archive_url, member_of
from snapkv.reading.observed_prefix import Observed
from snapkv.store.store import SnapshotKV

FILE_KEYS = ("archives", "defaults", "members", "storage")
FILE_BYTES_MAX = 16 << 20
ARCHIVE_DEFAULTS = ("joined", "left", "storage")
PATHS = ("lmdb:", "archive:")
"""The URLs with a path, which is relative to the folder of the file."""


def members_of(given: FilePath | Mapping[str, Any], now_ms: int) -> list[Member]:
    """Return the members that a file or a mapping describes, sorted by name.

    One listing for each place in `archives`. Raises `InvalidFileError`, `FileMissingError`,
    `InvalidOptionError`, `InvalidTypeError`, `InvalidTimeError`; those about a member name it.
    """
    folder = None
    if not isinstance(given, Mapping):
        path = os.fspath(checked_path(given))
        folder = os.path.dirname(os.path.abspath(path))
        given = _read(path)
    elif not any(isinstance(given.get(k), Mapping | list | tuple) for k in ("members", "archives")):
        given = {"members": given}  # members alone, not the form of a file
    check_known(given, FILE_KEYS)
    defaults = _mapping(given, "defaults")
    described: dict[str, object] = {}
    storage = _mapping(given, "storage") or None
    for name, url in _found(given.get("archives", ()), storage, folder):
        if name in described:
            raise InvalidOptionError(f"two archives are named {name!r}: list them in members")
        in_store = storage is not None and "://" in url
        described[name] = {"url": url, "storage": storage} if in_store else {"url": url}
    for name, each in _mapping(given, "members").items():
        if name in described:
            raise InvalidOptionError(f"{name!r} is a member and an archive in `archives`")
        described[name] = _with_defaults(each, defaults, folder)
    if not described:
        raise InvalidOptionError("a fleet needs a member: name some below [members]")
    for name in described:  # before they are sorted
        check_text("the name of a member", name)
    return [member_of(name, described[name], now_ms) for name in sorted(described)]


def _read(path: str) -> Mapping[str, Any]:
    with typed_errors(path), open(path, "rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise InvalidFileError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB: not a fleet")
    import tomllib  # most processes have no such file

    is_json = path.endswith(".json")
    try:
        # editors on Windows write a byte order mark, which the parser of JSON skips by itself
        # a name that occurs twice is an error of both
        found = (
            json.loads(text, object_pairs_hook=fields_once)
            if is_json
            else tomllib.loads(text.decode("utf-8-sig"))
        )
    except (ValueError, RecursionError) as e:
        form = "JSON" if is_json else "TOML"
        raise InvalidFileError(f"{path} is not {form}: {e}") from e
    if not isinstance(found, Mapping):
        raise InvalidFileError(f"{path} does not hold a fleet: write a table of members")
    return found


def _mapping(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = given.get(key, {})
    if not isinstance(found, Mapping):
        raise wrong_type(key, "a table", found)
    return found


def _with_defaults(each: object, defaults: Mapping[str, Any], folder: str | None) -> object:
    """Return a member's description with what it leaves out; paths count from the file."""
    if isinstance(each, SnapshotKV | Observed):
        return each
    if isinstance(each, str):
        each = {"url": each}
    if not isinstance(each, Mapping):
        return each
    full = {**_fitting(defaults, each), **each}
    for key in ("url", "archive"):
        if folder is not None and isinstance(full.get(key), str):
            full[key] = _from(folder, full[key], is_archive=key == "archive")
    for key in FILES:
        if folder is not None and isinstance(full.get(key), str) and full[key]:
            full[key] = os.path.join(folder, full[key])
    if full.get("prefix") is False:  # the default is not for this one
        del full["prefix"]
    return {key: _plain(value) for key, value in full.items()}


def _fitting(defaults: Mapping[str, Any], each: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the defaults that a member can have: archives take no options of engines."""
    url = each.get("url")
    if isinstance(url, str) and url.startswith(("archive:", *OBJECT_STORES)):
        return {key: defaults[key] for key in ARCHIVE_DEFAULTS if key in defaults}
    if "archive" in each or "archive" in defaults:
        return defaults
    return {key: value for key, value in defaults.items() if key != "storage"}


def _from(folder: str, url: str, *, is_archive: bool = False) -> str:
    """Return a URL whose path counts from a folder."""
    scheme = next((scheme for scheme in PATHS if url.startswith(scheme)), "")
    path = url.removeprefix(scheme)
    if (not scheme and not is_archive) or "://" in path or not path:
        return url
    while path.startswith("./"):  # `..` stays: the folder before it may be a link
        path = path[2:].lstrip("/")
    return scheme + os.path.join(folder, path)


def _plain(value: object) -> object:
    """Return a TOML value as the options take it: a local date has no place on a time line."""
    if isinstance(value, date | time) and getattr(value, "tzinfo", None) is None:
        return value.isoformat()
    return value


def _found(
    places: object, storage: Mapping[str, Any] | None, folder: str | None
) -> Iterator[tuple[str, str]]:
    """Yield the names and URLs of the archives in some folders."""
    if not isinstance(places, list | tuple):
        raise wrong_type("archives", "a list of folders", places)
    if places:
        from snapkv.fleet.archive_reach import archives_below  # it needs pyarrow

    for place in places:
        check_text("a folder of archives", place)
        place = place.removeprefix("archive:")
        if folder is not None:
            place = _from(folder, place, is_archive=True)
        try:
            names = archives_below(place, storage)
        except SnapKVError as e:
            e.add_note(f"This is about {place!r} of `archives`.")
            raise
        for name in names:  # "" is the folder itself
            url = f"{place.rstrip('/')}/{name}".rstrip("/")
            yield name or os.path.basename(url), archive_url(url)
