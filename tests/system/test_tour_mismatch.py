"""The tour's check can fail: a store that holds something else than git is found out."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

import snapkv
from snapkv.engine.lmdb.records import HEADER_BYTES, stem_of
from system.test_tour_history import check_every_commit, inside
from system.tour_clones import START, Repo, Run

pytestmark = pytest.mark.slow

COMMITS = 300


def random_commits(rng: random.Random, count: int) -> Iterator[bytes]:
    """Yield what `git fast-import` reads: commits that add, change, move and remove files."""
    paths: list[str] = []
    seconds = START
    for number in range(count):
        seconds += rng.choice([-40, 0, 0, 1, 30, 4_000])
        subject = b"random %d" % number
        yield b"commit refs/heads/main\ncommitter R <r@example.org> %d +0000\n" % seconds
        yield b"data %d\n%s\n" % (len(subject), subject)
        for _ in range(rng.randrange(6) + (number == 0)):
            if len(paths) > 1 and rng.random() < 0.2:
                path = paths.pop(rng.randrange(len(paths)))
                yield b"D %s\n" % path.encode()
                continue
            if paths and rng.random() < 0.5:
                path = rng.choice(paths)
            else:
                path = f"{rng.choice('abc')}/{rng.choice('de')}/{number}"
                paths += [path] if path not in paths else []
            content = rng.randbytes(rng.randrange(1, 400))
            mode = rng.choice([b"100644", b"100755", b"120000"])
            yield b"M %s inline %s\ndata %d\n" % (mode, path.encode(), len(content))
            yield content + b"\n"


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # a failure shows it
    return random.Random(seed)


@pytest.fixture
def commits() -> int:
    return COMMITS


@pytest.fixture
def toured(tmp_path: Path, rng: random.Random, run: Run, commits: int) -> Repo:
    repo = Repo(tmp_path / "random")
    repo.git("fast-import", "--quiet", input=b"".join(random_commits(rng, commits)))
    ran = run("tour", repo.path)
    assert ran.code == 0, ran.out + ran.err
    return repo


def corrupt(repo: Repo, key: bytes) -> None:
    """Change a bit in every version of a key, behind everybody's back.

    In every version, because a present that differs from what git's last commit wrote would be
    taken for a change by hand and taken back.
    """
    environment = lmdb.open(f"{repo.path}/.git/snapkv-tour", max_dbs=8, map_size=1 << 30)
    with environment, environment.begin(write=True, db=environment.open_db(b"records")) as txn:
        cursor = txn.cursor()
        found = cursor.set_range(stem_of(key))
        while found and cursor.key().startswith(stem_of(key)):
            record, value = cursor.key(), bytearray(cursor.value())
            if len(value) > HEADER_BYTES:  # not a removal
                value[HEADER_BYTES] ^= 1
                txn.put(record, bytes(value))
                cursor.set_key(record)
            found = cursor.next()


@pytest.mark.parametrize("commits", [60, pytest.param(COMMITS, marks=pytest.mark.long)])
def test_every_commit_of_a_random_history(toured: Repo) -> None:
    check_every_commit(inside(toured), toured)


def test_a_content_that_was_changed_is_found_out(
    toured: Repo, rng: random.Random, run: Run
) -> None:
    files = {path: content for path, (_, content) in toured.tree("HEAD").items() if content}
    path = rng.choice(sorted(files))
    corrupt(toured, b"default/data/" + path)
    ran = run("tour", toured.path)
    assert ran.code == 1
    assert path.decode() in ran.out
    assert "mismatch" in ran.out
    assert "DIFFERS" in ran.out
    assert "git: " in ran.out
    assert "All " not in ran.out
    assert run("tour", toured.path, "--again").code == 0


@pytest.mark.long
def test_a_mode_that_was_changed_is_found_out(toured: Repo, rng: random.Random, run: Run) -> None:
    path = rng.choice(sorted(toured.tree("HEAD")))
    corrupt(toured, b"default/space/git/tree/" + path)
    ran = run("tour", toured.path)
    assert (ran.code, path.decode() in ran.out) == (1, True)


@pytest.mark.long
def test_an_old_version_that_was_changed_is_found_out(
    toured: Repo, rng: random.Random, run: Run
) -> None:
    half = toured.dates()[(COMMITS - 1) // 2][1]
    newest = toured.tree("HEAD")
    then = snapkv.format_time(snapkv.pack(half * 1_000))
    with snapkv.open(inside(toured)) as store:
        gone = [key for key in store.at(then) if key.encode() not in newest]
    corrupt(toured, b"default/data/" + rng.choice(gone).encode())
    ran = run("tour", toured.path)
    assert ran.code == 1
    rows = [line for line in ran.out.split("\n") if line.startswith("What did the tree look like?")]
    assert ["DIFFERS" in line for line in rows] == [True]
    assert f"  the tree at {then}: " in ran.out


def test_a_commit_id_that_was_changed_is_found_out(toured: Repo, run: Run) -> None:
    corrupt(toured, b"default/space/git/commit")
    ran = run("tour", toured.path)
    assert ran.code == 3  # no commit of git has such an id
    assert "not in the first-parent history" in ran.err


def test_git_is_really_asked(toured: Repo, run: Run) -> None:
    """A tree that changed on git's side only is a mismatch too: the oracle is git's own."""
    old = toured.git("rev-parse", "HEAD").decode().strip()
    empty = toured.git("mktree", input=b"").decode().strip()
    text = toured.git("cat-file", "commit", old).split(b"\n", 1)[1]
    forged = toured.git(
        "hash-object", "-t", "commit", "-w", "--stdin", input=b"tree %s\n" % empty.encode() + text
    )
    subprocess.run(["git", "replace", old, forged.strip()], cwd=toured.path, check=True)
    assert run("tour", toured.path).code == 1
