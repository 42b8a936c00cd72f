"""The export of a history into git: one git commit for each commit, on a branch of its own.

The author is the writer, its mail `WRITER@snapkv.invalid` if the writer has none, with %XX so that
no two writers share one; the message is the note, and two trailers: the commit's exact time, from
which the next export continues, and the origin, which is the id of the store and the prefix. Modes
of files come from an import of git.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from itertools import accumulate
from urllib.parse import quote

from snapkv.cli.exits import AdvisedError, Exit
from snapkv.cli.formats import counted, key_text
from snapkv.cli.git_clone import SUBMODULE_MODE, Repository
from snapkv.cli.git_import import SPACE, TREE_PREFIX
from snapkv.copying.key_files import parts_of, taken
from snapkv.layout import CREATION_ORDINAL, StampRecord, prefix_end
from snapkv.reading.change_replay import changed
from snapkv.reading.history import bounds
from snapkv.store.store import SnapshotKV
from snapkv.times import When, physical_ms

BRANCH = "refs/heads/snapkv"
EXACT = "core.ignorecase=false"
FAST_IMPORT = ("fast-import", "--quiet", "--done", "--date-format=raw")
_TRAILERS = re.compile(r"\nSnapkv-Commit: (\d+)\nSnapkv-Export: (.+)\n*\Z")
_AUTHOR = re.compile(r"([^<>\x00-\x1f]*) <([^<>\x00-\x1f]*)>")


def export_history(kv: SnapshotKV, given: str, prefix: str, until: When | None) -> Iterator[int]:
    """Write the commits that the branch lacks, and yield their times; then the branch moves.

    Raises `AdvisedError` for a branch of something else, `InvalidKeyError` for keys that cannot be
    files together, `CompactedError`.
    """
    repository, origin = Repository(given), f"{kv.info()['store_id']} {json.dumps(prefix)}"
    since = _exported(repository, kv, origin)
    follows = f"from {BRANCH}^0\n" if since else ""
    with repository.streaming("-c", EXACT, *FAST_IMPORT, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for stamp, keys in _commits(kv, prefix, since, until):
            files = _files(kv, prefix, stamp.timestamp, keys, first=not follows and since is None)
            more = f" and {counted(len(keys) - 1, 'other key')}" if len(keys) > 1 else ""
            title = (stamp.note or "").replace("\0", "") or f"Change {key_text(keys[0])}{more}"
            message = f"{title}\n\nSnapkv-Commit: {stamp.timestamp}\nSnapkv-Export: {origin}\n"
            who = f"{author_of(stamp.writer)} {physical_ms(stamp.timestamp) // 1_000} +0000"
            head = f"commit {BRANCH}\nauthor {who}\ncommitter {who}\n".encode()
            process.stdin.write(b"%s%s%s" % (head, _data(message.encode()), follows.encode()))
            process.stdin.writelines(files)
            since, follows = stamp.timestamp, ""
            yield since
        process.stdin.write(b"done\n")


def _exported(repository: Repository, kv: SnapshotKV, origin: str) -> int | None:
    """Return the time of the newest commit on the branch, None without a branch."""
    rows = repository.ask("worktree", "list", "--porcelain").split(b"\n")
    if f"branch {BRANCH}".encode() in rows:
        message = "branch snapkv is checked out, and an export changes no working tree"
        raise AdvisedError(message, "Switch to another branch", Exit.CONFLICT)
    if not repository.ask("rev-parse", "--verify", "--quiet", BRANCH, ok=(0, 1)):
        return None
    message = repository.ask("cat-file", "commit", BRANCH).decode(errors="replace")
    if (found := _TRAILERS.search(message)) and found[2] == origin:
        newest = kv.commits(until=int(found[1]), newest_first=True, limit=1)
        if [commit.ts for commit in newest] == [int(found[1])]:
            return int(found[1])
    message = "branch snapkv does not end with an export of this store with this --prefix"
    raise AdvisedError(message, "Rename the branch, or name another repository", Exit.CONFLICT)


def _commits(
    kv: SnapshotKV, prefix: str, since: int | None, until: When | None
) -> Iterator[tuple[StampRecord, list[str]]]:
    """Yield commits, and the keys that they changed; the oldest one left has all that it shows."""
    core, lines = kv.reader, kv.space(SPACE).keyspace.prefix + TREE_PREFIX
    low, high = bounds(core, since, until)
    if since is None and low.ordinal > CREATION_ORDINAL:
        yield core.timeline.stamp(low), list(kv.at(revision=low.revision).keys(prefix))
    data = core.layout.data.prefix
    for _, stamp, touched in changed(core, data, prefix_end(core.layout.spaces), low, high):
        assert stamp is not None, "every commit of a store has one"
        pairs = ((each.last.kv.key, of) for each in touched for of in (data, lines))
        found = {key[len(of) :].decode() for key, of in pairs if key.startswith(of)}
        keys = sorted(key for key in found if key.startswith(prefix))
        if keys or (stamp.note is not None and not prefix):
            yield stamp, keys


def _files(
    kv: SnapshotKV, prefix: str, ts: int, keys: Sequence[str], *, first: bool
) -> list[bytes]:
    """Return the lines of a commit's files, removed ones first."""
    gone, saved = list[bytes](), list[bytes]()
    lines = kv.space(SPACE).entries_of([TREE_PREFIX + key.encode() for key in keys], ts)
    for key, entry, line in zip(keys, kv.entries_of(keys, ts), lines, strict=True):
        folders = list(accumulate(parts_of(name := key[len(prefix) :])[:-1], "{}/{}".format))
        path = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").encode()
        if entry is None:
            gone.append(b'D "%s"\n' % path)
            continue
        if entry.version == 1 or first:
            above = kv.entries_of([prefix + folder for folder in folders], ts)
            if any(above) or any(kv.at(ts).keys(f"{key}/", limit=1)):
                raise taken(key)
        mode, _, oid = line.value.split() if line else (b"100644", b"", b"")
        if mode == SUBMODULE_MODE and oid == entry.value:
            saved.append(b'M %s %s "%s"\n' % (mode, oid, path))
        else:
            mode = b"100644" if mode == SUBMODULE_MODE else mode
            saved.append(b'M %s inline "%s"\n%s' % (mode, path, _data(entry.value)))
    return gone + saved


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)


def author_of(writer: str) -> str:
    """Return the author of a writer's commits, as git has it.

    >>> print(author_of("Ann <ann@example.com>"), author_of("job 7"))
    Ann <ann@example.com> job 7 <job%207@snapkv.invalid>
    """
    if found := _AUTHOR.fullmatch(writer):
        return f"{found[1].strip() or found[2]} <{found[2]}>"
    name = re.sub(r"[<>\x00-\x1f]+", " ", writer).strip() or "unknown"
    return f"{name} <{quote(writer, safe='+') or name}@snapkv.invalid>"
