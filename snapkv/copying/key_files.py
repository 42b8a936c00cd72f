"""Keys and values as files: a folder, whose paths are keys, or JSON, with a record for each key.

A record is `{"key": "a/b", "value": "text"}`. A value that is not UTF-8 is `{"base64": "/w=="}`;
any other JSON is stored as its text. A record without `value` is a value itself.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from base64 import b64decode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from snapkv.base import files
from snapkv.base.text import fields_once, value_json
from snapkv.errors import InvalidFileError, InvalidKeyError

SOURCE_BYTES_MAX = 256 << 20
"""The most bytes of a source, which is in memory as a whole."""
ADVICE = "export a --prefix without it, or into FILE.jsonl, which takes any key"


def read_folder(folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files below a folder; raises `InvalidFileError` for what is not a file."""

    def reject(e: OSError) -> NoReturn:
        raise InvalidFileError(f"{e.filename} cannot be read: {e.strerror}") from e

    size = 0
    for place, folders, names in os.walk(folder, onerror=reject):
        for path in (Path(place, name) for name in (*folders, *names)):
            try:
                if path.is_symlink() or not (path.is_dir() or path.is_file()):
                    raise InvalidFileError(
                        f"{path} is not a file, perhaps a link: put a file there"
                    )
                if path.name == ".git":
                    raise InvalidFileError(
                        f"{path} belongs to a git clone: name a folder without it"
                    )
                if path.is_file():
                    size += path.stat().st_size
                    _check_size(size, folder)
                    yield os.fsencode(path.relative_to(folder)).decode(), path.read_bytes()
            except UnicodeDecodeError as e:
                raise InvalidFileError(f"path {str(path)!r} is not valid UTF-8: rename it") from e
            except PermissionError as e:
                reject(e)


def _check_size(size: int, what: str) -> None:
    if size > SOURCE_BYTES_MAX:
        raise InvalidFileError(f"{what} has more than 256 MiB: import parts of it one by one")


def read_json(file: BinaryIO, what: str, field: str) -> Iterator[tuple[str, bytes]]:
    """Yield the keys and values of JSON: an object of them, or records; lines of records else.

    `what` names the file, as FILE.json or else; `field` of a record has its key.
    """
    text = file.read(SOURCE_BYTES_MAX + 1)
    _check_size(len(text), what)
    if what.endswith(".json"):
        found = _parsed(text, what)
    else:
        lines = enumerate(text.splitlines(), 1)
        found = [_parsed(each, f"{what}, line {n}") for n, each in lines if each.strip()]
    if isinstance(found, dict):
        found = [{field: key, "value": value} for key, value in found.items()]
    for number, record in enumerate(found if isinstance(found, list) else [found], 1):
        where = f"{what}, record {number}"
        key = record.get(field) if isinstance(record, dict) else None
        if not isinstance(key, str) or not key:
            raise InvalidFileError(f"{where} is not an object with a text as {field!r}: see --key")
        yield key, _stored(key, record.get("value", record), where)


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=fields_once)
    except (ValueError, RecursionError) as e:
        raise InvalidFileError(f"{where} is not JSON: {e}") from e


def _stored(key: str, value: Any, where: str) -> bytes:
    try:
        key.encode()  # JSON may have halves of surrogate pairs
        if isinstance(value, dict) and value.keys() == {"base64"}:
            return b64decode(value["base64"], validate=True)
        compact: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False}
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False, **compact)
        return text.encode()
    except (ValueError, TypeError) as e:
        raise InvalidFileError(f"{where} cannot be stored: {e}") from e


def write_folder(folder: str, pairs: Iterable[tuple[str, bytes]]) -> int:
    """Write files into a new or empty folder, which appears when it is complete; count them.

    Raises `InvalidFileError`; and `InvalidKeyError` for keys that cannot be files together.
    """
    target = os.path.realpath(files.checked_path(folder))
    with files.typed_errors(folder):
        if os.path.lexists(target) and os.listdir(target):
            raise InvalidFileError(f"{folder} is not empty: name a new or an empty folder")
        staged = tempfile.mkdtemp(prefix=".snapkv-", dir=os.path.dirname(target))
        try:
            count = _write_files(staged, pairs)
            os.rename(staged, target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return count


def _write_files(folder: str, pairs: Iterable[tuple[str, bytes]]) -> int:
    made, count = set[str](), 0
    for name, value in pairs:
        *above, last = parts_of(name)
        path, count = folder, count + 1
        try:
            for part in above:
                if (path := f"{path}/{part}") not in made:
                    os.mkdir(path, 0o700)
                    made.add(path)
            with open(os.open(f"{path}/{last}", NEW_FILE, files.FILE_MODE), "wb") as file:
                file.write(value)
        except FileExistsError as e:  # of a key that is a folder, or where case does not count
            raise taken(name) from e
    return count


def parts_of(name: str) -> list[str]:
    """Return the folders and the file of a key; `InvalidKeyError` if it cannot be a path."""
    parts = name.split("/")
    if {"", ".", "..", ".git"}.intersection(map(str.lower, parts)) or "\0" in name:
        raise InvalidKeyError(f"key {name!r} cannot be a path of a file: {ADVICE}", name)
    return parts


def taken(name: str) -> InvalidKeyError:
    """Return the error of a key that has the path of another key, or of its folder."""
    return InvalidKeyError(f"key {name!r} has the path of another key: {ADVICE}", name)


NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def write_json_lines(path: str, pairs: Iterable[tuple[str, bytes]]) -> int:
    """Write a record for each key into a file, which appears when it is complete; count them."""
    count = 0
    with files.written(path) as file:
        for key, value in pairs:
            line = json.dumps({"key": key, "value": value_json(value)})
            files.write_all(file, line.encode() + b"\n")
            count += 1
    return count
