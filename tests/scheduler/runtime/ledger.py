"""A sink that notes each write, and rejects what an earlier assignment still writes.

Captures get it as `--function ledger=scheduler.runtime.ledger:write`. Each table has a file in the
folder that `CAPTURES_LEDGER` names; a line is one call, written under a lock, so lines are in the
order in which the calls took effect. A table whose name is in the folder's `hang/` hangs.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from urllib.parse import quote

from cdcmeta.errors import SinkError

FOLDER = "CAPTURES_LEDGER"


def write(table, token, commits, checkpoint):
    began, folder = time.monotonic_ns(), Path(os.environ[FOLDER])
    name = quote(table, safe="")
    while (folder / "hang" / name).exists():
        (folder / "hung" / name).touch()
        time.sleep(0.02)
    with (folder / name).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        before = whole_lines(file.read())
        file.truncate(len(before))  # a process that was killed may leave half a line
        newest = max((json.loads(line)["token"] for line in before.splitlines()), default=[0, 0])
        if list(token) < newest:
            raise SinkError(f"{table} has a later token", "fenced")
        line = {
            "token": token,
            "process": os.getpid(),
            "began": began,
            "checkpoint": checkpoint,
            "commits": [
                [each.commit.ts, [[c.key, c.value and c.value.decode()] for c in each.changes]]
                for each in commits
            ],
            "ended": time.monotonic_ns(),
        }
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()


def whole_lines(raw):
    """What was written, without a line that a process is about to write, or did not finish."""
    return raw[: raw.rfind(b"\n") + 1]


def hang(folder, table):
    """Let each call for a table hang until `unhang`."""
    (folder / "hung").mkdir(exist_ok=True)
    (folder / "hang").mkdir(exist_ok=True)
    (folder / "hang" / quote(table, safe="")).touch()


def has_hung(folder, table):
    """Whether a call for a table has hung."""
    return (folder / "hung" / quote(table, safe="")).exists()


def unhang(folder, table):
    (folder / "hang" / quote(table, safe="")).unlink(missing_ok=True)


def lines(folder, table):
    """The calls for a table, in the order in which they took effect."""
    path = folder / quote(table, safe="")
    raw = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in whole_lines(raw).splitlines()]


def content(folder, tables):
    """What a reader of the ledger knows: the last value of each key."""
    found = {}
    for table in tables:
        for line in lines(folder, table):
            for _, changes in line["commits"]:
                found.update(changes)
    return {key: value for key, value in found.items() if value is not None}


def check(folder, tables):
    """Assert that no table was written by two assignments at once, and none went back."""
    for table in tables:
        before = None
        for line in lines(folder, table):
            if before is not None:
                assert line["token"] >= before["token"], (table, before, line)
                if line["token"] != before["token"]:
                    assert line["began"] >= before["ended"], (table, before, line)
                elif line["checkpoint"]:
                    assert line["checkpoint"] >= before["checkpoint"], (table, before, line)
            before = line


def missing(folder, table, wanted):
    """The timestamps of commits that are wanted and were never written."""
    written = {ts for line in lines(folder, table) for ts, _ in line["commits"]}
    return set(wanted) - written
