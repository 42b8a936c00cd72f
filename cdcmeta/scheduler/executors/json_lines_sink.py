r"""JSON lines as a sink: a file for each table, with a line for each commit.

    {"ts": 466..., "time": "2026-...", "writer": "ann@host", "note": null,
     "changes": [{"key": "t/a", "value": "1"}, {"key": "t/b", "value": null}]}
    {"checkpoint": 466..., "token": [9, 1], "feed": ["6f.../default/copy", 65]}
    {"state": "begins"}

A value that is not UTF-8 is in `value_base64`; a removal has the value null. A row of a CDC log has
its operation, its stream and its place in the batch, too. The line of a commit with a meta has
`meta`, an object. A file begins with a line with a checkpoint, and one ends each batch; what a
crash left after the last one is cut off. So each commit is in the file once. A file that begins
otherwise is not written. `feed` is the origin of the sink, if it has one. After a line with
`state`, the lines up to the next checkpoint have all keys of the table: keys that they lack were
removed. A state at the beginning of a file has no such line.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from cdcmeta.errors import SinkError
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.executors.contracts import NOTHING, Claim, Origin, SinkRecord, TableWriter
from snapkv import Change, Changes, format_time
from snapkv.copying.copying_kit import sync_folder

BLOCK_BYTES = 1 << 16
HEAD = b'{"checkpoint": '
"""The beginning of each file, and of each line with a checkpoint."""
SUFFIX = ".jsonl"
NAME_BYTES_MAX = 240


def file_name(table: str) -> str:
    """Return the name of a table's file; a long one ends with a digest.

    >>> file_name("orders/")
    'orders%2F.jsonl'
    """
    name = quote(table, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > NAME_BYTES_MAX:
        digest = sha256(table.encode()).hexdigest()
        name = f"{name[: NAME_BYTES_MAX - len(digest) - 1]}~{digest}"
    return name + SUFFIX


class JsonLinesWriter(TableWriter):
    """Appends to a file in a directory, each commit once; processes of one machine may share it.

    It locks its file, so that no other writer begins before it is closed. `origin` is the
    changefeed: a file belongs to one.
    """

    def __init__(
        self, directory: Path, table: str, token: Token, *, origin: Origin | None = None
    ) -> None:
        self._path, self._claim = directory / file_name(table), Claim(table, token, origin)
        self._file: BinaryIO | None = None
        self._end, self._is_new = 0, False

    def begin(self, start: int) -> int:
        """Lock the file, cut off what has no checkpoint, and write the token."""
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("ab+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept, end = last_checkpoint(file)
            if not end:
                _check_begun(file, self._path)
            reached = max(start, self._claim.counting(kept).checkpoint)
            file.truncate(end)
        except BlockingIOError as e:
            file.close()
            raise SinkError(f"another writer has {self._path} open") from e
        except BaseException:
            file.close()
            raise
        self._file, self._end, self._is_new = file, end, not end
        self._append([self._checkpoint(reached)])
        if not end:
            sync_folder(str(self._path.parent))
        return reached

    def replace(self) -> Iterator[str]:
        """Append the line with which a state begins, unless the file has nothing before it."""
        if not self._is_new:
            self._append([{"state": "begins"}])
        self._is_new = False
        return iter(())

    def write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        """Append the commits and the checkpoint, and wait for the disk."""
        lines = [_line(commit) for commit in commits]
        if checkpoint:
            lines.append(self._checkpoint(checkpoint))
        self._append(lines)

    def close(self) -> None:
        """Close the file, which unlocks it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _append(self, lines: list[dict[str, Any]]) -> None:
        file = self._file
        if file is None:
            raise SinkError(f"the writer of {self._path} is closed")
        file.truncate(self._end)  # what a failed try has left
        data = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        self._end += len(data)

    def _checkpoint(self, reached: int) -> dict[str, Any]:
        _, token, origin = self._claim
        feed = {"feed": list(origin)} if origin is not None else {}
        return {"checkpoint": reached, "token": list(token)} | feed


def last_checkpoint(file: BinaryIO) -> tuple[SinkRecord, int]:
    """Return the last token and checkpoint in a file, and where that line ends; 0s without one.

    Reads back from the end, in blocks that double: O(bytes after that line). Raises `SinkError` for
    a line that is not a checkpoint's.
    """
    end = file.seek(0, os.SEEK_END)
    at, tail = end, b""
    while True:
        found = tail.rfind(HEAD)
        while found >= 0:
            newline = tail.find(b"\n", found)
            is_line = (found == 0 and at == 0) or tail[found - 1 : found] == b"\n"
            if newline >= 0 and is_line:
                return _checkpoint_in(tail[found:newline]), at + newline + 1
            found = tail.rfind(HEAD, 0, found)
        if at == 0:
            return NOTHING, 0
        size = min(max(BLOCK_BYTES, len(tail)), at)
        at -= size
        file.seek(at)
        tail = file.read(size) + tail


def _check_begun(file: BinaryIO, path: Path) -> None:
    """Raise `SinkError` unless a file without a checkpoint is a part of its first line."""
    file.seek(0)
    head = file.read(len(HEAD))
    if not HEAD.startswith(head):
        raise SinkError(
            f"{path} is not a file that a changefeed wrote: it begins with {head!r}; name another "
            "folder, or move the file away"
        )


def _checkpoint_in(line: bytes) -> SinkRecord:
    try:
        record = json.loads(line)
        return SinkRecord.read(record["token"], record["checkpoint"], record.get("feed", ()))
    except (ValueError, TypeError, KeyError) as e:
        raise SinkError(f"not a checkpoint: {line[:80]!r}") from e


def _line(commit: Changes[str]) -> dict[str, Any]:
    head = commit.commit
    return {
        "ts": head.ts,
        "time": format_time(head.ts),
        "writer": head.writer,
        "note": head.note,
        **({} if head.meta is None else {"meta": dict(head.meta)}),
        "changes": [_change(each) for each in commit.changes],
    }


def _change(change: Change[str]) -> dict[str, Any]:
    row = getattr(change, "row", None)  # of a CDC log
    return {"key": change.key} | _value(change.value) | (row.facts() if row is not None else {})


def _value(value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
