"""The `git` program: a repository, and a clone with its first-parent history and contents.

A `Clone` is found once and pinned to the commit that HEAD names then. Everything is asked of the
`git` program; no other module of the product starts it. Paths, here and in the store's space
`git`, are bytes.

Where git's configuration could change an answer (how merges are shown, renames, the first commit),
options on git's command line override it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

from snapkv.cli.exits import AdvisedError
from snapkv.errors import CommitTooLargeError

READ_BYTES = 1 << 20
BATCH_OBJECTS_MAX = 256
"""The most requests sent to `git cat-file --batch` ahead of reading: they must fit into a pipe's 64
KiB."""

SUBMODULE_MODE = b"160000"
ABSENT_MODE = b"000000"

_OF_A_HOOK = re.compile(
    "GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|COMMON_DIR|"
    "NAMESPACE|PREFIX|LITERAL_PATHSPECS)"
)
"""The variables that a hook has for its own clone; commands get a path instead."""


class GitError(AdvisedError):
    """Git ended with an unexpected error; `stderr` is its output."""

    def __init__(self, words: Sequence[str], code: int, stderr: bytes) -> None:
        self.stderr = stderr.decode(errors="replace").strip()
        super().__init__(
            f"git failed with code {code}, asked for: git {' '.join(words)}",
            self.stderr or "It did not say why.",
        )


class TreeEntry(NamedTuple):
    """One line of `git ls-tree` without its path."""

    mode: bytes
    oid: bytes

    @property
    def line(self) -> bytes:
        """What `git ls-tree` writes before the path: mode, type and object id."""
        kind = b"commit" if self.mode == SUBMODULE_MODE else b"blob"
        return b" ".join((self.mode, kind, self.oid))


Tree = dict[bytes, TreeEntry]


@dataclass(frozen=True, slots=True)
class GitChange:
    """A path that differs between two trees; None for absent."""

    path: bytes
    before: TreeEntry | None
    after: TreeEntry | None

    @property
    def of_content(self) -> bool:
        """Whether more than the mode differs."""
        return (self.before and self.before.oid) != (self.after and self.after.oid)


class GitCommit(NamedTuple):
    """One commit of the first-parent history, and what it changed against its first parent."""

    oid: bytes
    author: str
    subject: str
    changes: list[GitChange]


class Repository:
    """A git repository, of which everything is asked through the `git` program."""

    def __init__(self, given: str) -> None:
        """Find the repository that contains `given`; raise `AdvisedError` if there is none."""
        self.given = given
        if not Path(given).is_dir():
            what = "is not a folder" if os.path.lexists(given) else "does not exist"
            raise AdvisedError(f"{given} {what}", "Name the folder of a git clone")
        try:
            found = self.ask("rev-parse", "--is-bare-repository", "--absolute-git-dir")
        except GitError as e:
            if "not a git repository" not in e.stderr:
                raise
            raise AdvisedError(f"{given} is not in a git clone", "Name the folder of one") from e
        bare, _, git_dir = found.decode(errors="surrogateescape").partition("\n")
        self.git_dir, self.bare = git_dir.removesuffix("\n"), bare == "true"

    def call(self, *words: str, ok: Sequence[int] = (0,)) -> subprocess.CompletedProcess[bytes]:
        """Run git to its end; raise `GitError` for a code that is not `ok`."""
        command = ["git", "-C", self.given, *words]
        try:
            done = subprocess.run(command, capture_output=True, env=environment(), check=False)  # noqa: S603, the words are ours
        except FileNotFoundError as e:
            raise AdvisedError(
                "git is not installed, or not on the PATH", "Install git, then run this again."
            ) from e
        if done.returncode not in ok:
            raise GitError(words, done.returncode, done.stderr)
        return done

    def ask(self, *words: str, ok: Sequence[int] = (0,)) -> bytes:
        """Return what git writes."""
        return self.call(*words, ok=ok).stdout

    @contextmanager
    def running(self, words: Sequence[str], **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Start git with its output as a stream; end it with the block."""
        command = ["git", "-C", self.given, *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), **streams)  # noqa: S603, the words are ours
        try:
            yield process
        finally:
            process.terminate()  # first: the end of its input is not the end of a stream
            for stream in filter(None, (process.stdin, process.stdout)):
                with suppress(BrokenPipeError):
                    stream.close()
            process.wait()

    @contextmanager
    def streaming(self, *words: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Start git with its output as a stream; raise `GitError` if it fails."""
        with (
            tempfile.TemporaryFile() as complaints,
            self.running(words, stderr=complaints, **streams) as process,
        ):
            with suppress(BrokenPipeError):  # git has ended, and its code says how
                yield process
                if process.stdin:
                    process.stdin.close()
            if process.wait():
                complaints.seek(0)
                raise GitError(words, process.returncode, complaints.read())


class Clone(Repository):
    """A clone of a repository, at the commit that its HEAD named when it was found."""

    def __init__(self, given: str) -> None:
        """Find the clone that contains `given`; `AdvisedError` if its past is not complete."""
        super().__init__(given)
        try:
            self.head = self.ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}").strip()
        except GitError as e:
            raise AdvisedError(
                f"{self.given} has no commits yet", "Commit something, or name another clone."
            ) from e
        if self.ask("rev-parse", "--is-shallow-repository").strip() == b"true":
            path = shlex.quote(self.given)
            raise AdvisedError(
                f"{self.given} is a shallow clone: the older part of its history is not here",
                f"Fetch it, then run this again: git -C {path} fetch --unshallow",
            )
        promised = r"^(extensions\.partialclone|remote\..*\.promisor)$"
        if self.ask("config", "--get-regexp", promised, ok=(0, 1)):
            raise AdvisedError(
                f"{self.given} is a partial clone: contents of older files are not here",
                "Make a full clone (git clone without --filter) and name it",
            )

    @cached_property
    def root(self) -> str:
        """The folder that people call the clone: the top of the working tree, or a bare one."""
        if self.bare:
            return self.git_dir
        try:
            top = self.ask("rev-parse", "--show-toplevel")
        except GitError:  # inside the git directory itself
            return self.git_dir
        return top.decode(errors="surrogateescape").removesuffix("\n")

    def ignores(self, name: str) -> bool:
        """Return whether git ignores a folder of that name at the top of the working tree."""
        if self.root == self.git_dir:
            return False
        asked = ("-C", self.root, "check-ignore", "--quiet", f"{name}/")
        return self.call(*asked, ok=(0, 1)).returncode == 0

    # --- history ---

    def timeline(self) -> list[tuple[bytes, int]]:
        """Return (commit, its time in seconds) of the first-parent history, oldest first."""
        asked = ("log", "--first-parent", "--reverse", "--no-show-signature", "--format=%H %ct")
        lines = self.ask(*asked, self.head.decode()).split(b"\n")
        return [
            (oid, int(time)) for oid, _, time in (line.partition(b" ") for line in lines) if oid
        ]

    def history(self, after: bytes | None, prefix: bytes = b"") -> Generator[GitCommit]:
        """Yield the first-parent history after a commit (None: all), with a prefix before paths."""
        header = "--format=%x01%H%x00%an <%ae>%x00%s"
        asked = ["-c", "log.showRoot=true", "-c", "log.diffMerges=first-parent", "log"]
        asked += ["--first-parent", "-m", "--reverse", "--raw", "-z", "--no-abbrev", "--no-renames"]
        asked += ["--ignore-submodules=none", "--no-show-signature", "--no-color", "--no-relative"]
        asked += ["--encoding=UTF-8", header, self.head.decode()]
        asked += [f"^{after.decode()}"] if after else []
        with self.streaming(*asked) as process:
            assert process.stdout is not None
            yield from _commits(_split(process.stdout), prefix)

    # --- trees ---

    def tree(self, commit: bytes) -> Tree:
        """Return the entries of `git ls-tree -r` for a commit."""
        asked = ("ls-tree", "-r", "-z", "--full-tree", commit.decode())
        tree: Tree = {}
        for row in self.ask(*asked).split(b"\0")[:-1]:
            words, _, path = row.partition(b"\t")
            mode, _, oid = words.split(b" ")
            tree[path] = TreeEntry(mode, oid)
        return tree

    def diff(self, a: bytes, b: bytes) -> list[GitChange]:
        """Return the differences of `git diff-tree` between two commits."""
        asked = ["diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--full-index"]
        asked += ["--ignore-submodules=none", "--no-relative", a.decode(), b.decode()]
        fields = self.ask(*asked).split(b"\0")[:-1]
        return [_change(record, path) for record, path in zip(*[iter(fields)] * 2, strict=True)]

    # --- contents ---

    @contextmanager
    def contents(self) -> Iterator[BlobReader]:
        """Return a reader of blobs; it is one process of git for all of them."""
        words = ("cat-file", "--batch")
        streams = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL, "bufsize": READ_BYTES}
        with self.running(words, **streams) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            yield BlobReader(process.stdin, process.stdout)


class BlobReader:
    """Reads blobs by their ids, some hundred at a time."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests, self._answers = requests, answers

    def read(self, oids: Sequence[bytes], bytes_max: int, other_bytes: int = 0) -> list[bytes]:
        """Return the contents; `CommitTooLargeError` if they and other bytes are too many.

        Beyond that bound contents are passed over, not kept: so the error knows the whole size.
        """
        found, total = list[bytes](), other_bytes
        for at in range(0, len(oids), BATCH_OBJECTS_MAX):
            batch = oids[at : at + BATCH_OBJECTS_MAX]
            self._requests.write(b"".join(oid + b"\n" for oid in batch))
            self._requests.flush()
            for oid in batch:
                size = self._size(oid)
                total += size
                if total <= bytes_max:
                    found.append(self._answers.read(size))
                else:
                    self._pass_over(size)
                self._answers.read(1)
        if total > bytes_max:
            raise CommitTooLargeError("the contents in bytes", total, bytes_max)
        return found

    def _size(self, oid: bytes) -> int:
        words = self._answers.readline().split()
        if len(words) != 3 or words[1] != b"blob":
            said = b" ".join(words).decode(errors="replace") or "nothing"
            raise AdvisedError(
                f"git has no content for the object {oid.decode()} (it says: {said})",
                "The clone seems damaged: git fsck shows more.",
            )
        return int(words[2])

    def _pass_over(self, size: int) -> None:
        while size > 0:
            size -= len(self._answers.read(min(size, READ_BYTES))) or size


def object_id(content: bytes, like: bytes) -> bytes:
    """Return git's id of a blob, by the hash function of the id `like`.

    >>> object_id(b"", b"0" * 40)
    b'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    blob = b"blob %d\0" % len(content)
    if len(like) == 64:
        return hashlib.sha256(blob + content).hexdigest().encode()
    return hashlib.sha1(blob + content, usedforsecurity=False).hexdigest().encode()


def environment() -> dict[str, str]:
    """Return the variables with which git is started, without the variables of a hook."""
    kept = {k: v for k, v in os.environ.items() if not _OF_A_HOOK.fullmatch(k)}
    return {**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}


def _split(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the fields of a stream that are ended by zero bytes."""
    rest = b""
    while chunk := stream.read(READ_BYTES):
        *fields, rest = (rest + chunk).split(b"\0")
        yield from fields
    if rest:
        yield rest


def _commits(fields: Iterator[bytes], prefix: bytes) -> Iterator[GitCommit]:
    r"""Yield the commits of `git log --raw -z`: a header (01), then changes (`:`) with paths."""
    commit: GitCommit | None = None
    for field in fields:
        field = field.lstrip(b"\n")  # empty fields and line ends are between them
        if field.startswith(b"\x01"):
            if commit is not None:
                yield commit
            commit = GitCommit(field[1:], _text(next(fields)), _text(next(fields)), [])
        elif field.startswith(b":"):
            assert commit is not None
            commit.changes.append(_change(field, prefix + next(fields)))
    if commit is not None:
        yield commit


def _change(record: bytes, path: bytes) -> GitChange:
    """Return the change of `:<mode> <mode> <oid> <oid> <letter>` and a path."""
    before, after, old, new, _ = record[1:].split(b" ")
    return GitChange(
        path,
        None if before == ABSENT_MODE else TreeEntry(before, old),
        None if after == ABSENT_MODE else TreeEntry(after, new),
    )


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
