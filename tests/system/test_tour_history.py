"""What the tour stores: every commit of strange histories, compared with git by other means."""

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import snapkv
from snapkv.cli.git_import import PATH_BYTES_MAX
from system.tour_clones import START, Repo, Run, simple_repo

pytestmark = pytest.mark.slow

QUESTIONS = [
    "What did the tree look like?",
    "Which commit was the newest?",
    "What was in a folder?",
    "What was in a file?",
    "What differs between two dates?",
    "What does a restore bring back?",
]


def inside(repo: Repo) -> str:
    return f"lmdb:{repo.path}/.git/snapkv-tour"


def check_every_commit(url: str, repo: Repo, **options: Any) -> None:
    """Compare the store at each commit's date with the tree and contents git has for it."""
    dates = repo.dates()
    last_of_second = {second: oid for oid, second in dates}
    with snapkv.open(url, **options) as store:
        space = store.space("git")
        for second, oid in last_of_second.items():
            keyed = {
                path: found
                for path, found in repo.tree(oid).items()
                if is_utf8(path) and len(path) <= PATH_BYTES_MAX
            }
            date = snapkv.format_time(snapkv.pack(second * 1_000))
            contents = {path.decode(): content for path, (_, content) in keyed.items()}
            assert dict(store.at(date).items()) == contents
            lines = {b"tree/" + path: line for path, (line, _) in keyed.items()}
            assert dict(space.at(date).items(b"tree/")) == lines
            assert space.load(b"commit", date) == oid.encode()
        own = [c for c in store.commits() if not (c.note or "").startswith("tour: ")]
        assert [(c.note or "")[:8] for c in own] == [oid[:8] for oid, _ in dates]
        assert [snapkv.to_datetime(c.ts).timestamp() for c in own] == [when for _, when in dates]
        assert not store.check().problems


def is_utf8(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_strange_history_is_stored_commit_by_commit(odd: Repo, run: Run) -> None:
    ran = run("tour", odd.path)
    assert ran.code == 0, ran.out + ran.err
    check_every_commit(inside(odd), odd)
    assert "answers are equal to git's" in ran.out
    assert "Left out, 2 paths " in ran.out
    assert '"latin-\\\\xe9.txt"' in ran.out or "latin-\\xe9.txt" in ran.out
    assert "2 commits dated before the one they follow" in ran.out
    assert odd.git("status", "--porcelain", "--ignored") == b""


def test_a_path_too_long_for_a_key_is_left_out(simple: Repo, run: Run) -> None:
    fits = "/".join(["d" * 200, "e" * 200, "f" * (PATH_BYTES_MAX - 402)])
    assert len(fits) == PATH_BYTES_MAX
    simple.write(fits, b"fits")
    simple.write(fits + "f", b"does not")
    simple.commit("long names")
    ran = run("tour", simple.path)
    assert (ran.code, "Left out, 1 path " in ran.out) == (0, True)
    check_every_commit(inside(simple), simple)


@pytest.mark.long_after(3)
@pytest.mark.parametrize(
    "setting",
    [
        "log.diffMerges=off",
        "log.showRoot=false",
        "log.showSignature=true",
        "diff.renames=copies",
        "diff.ignoreSubmodules=all",
        "core.quotePath=true",
        "i18n.logOutputEncoding=latin1",
        "log.follow=true",
        "color.ui=always",
        "diff.noprefix=true",
    ],
)
def test_settings_of_git_do_not_change_the_answers(odd: Repo, run: Run, setting: str) -> None:
    odd.git("config", *setting.split("="))
    assert run("tour", odd.path).code == 0
    with snapkv.open(inside(odd)) as store:
        assert len(store.at()) == len(odd.tree(odd.head())) - 2
        assert len(list(store.commits())) >= len(odd.dates())


def test_sha256_repositories(tmp_path: Path, run: Run) -> None:
    repo = Repo(tmp_path / "new", "--object-format=sha256")
    for number in range(3):
        repo.write("README.md", b"%d" % number)
        repo.commit("some")
    assert run("tour", repo.path).code == 0
    check_every_commit(inside(repo), repo)


def test_a_bare_repository(odd: Repo, tmp_path: Path, run: Run) -> None:
    odd.git("clone", "--quiet", "--bare", odd.path.as_posix(), (tmp_path / "bare.git").as_posix())
    ran = run("tour", tmp_path / "bare.git")
    assert ran.code == 0, ran.err
    check_every_commit(f"lmdb:{tmp_path}/bare.git/snapkv-tour", odd)


def test_from_a_folder_inside_with_the_variables_of_a_hook(
    odd: Repo, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "elsewhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "elsewhere")
    ran = run("tour", cwd=odd.path / "src")
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert ran.code == 0, ran.err
    check_every_commit(inside(odd), odd)


def test_a_worktree_has_a_store_of_its_own(simple: Repo, tmp_path: Path, run: Run) -> None:
    simple.git("worktree", "add", "--quiet", str(tmp_path / "tree"), "HEAD~2")
    assert run("tour", tmp_path / "tree").code == 0
    store = f"{simple.path}/.git/worktrees/tree/snapkv-tour"
    with snapkv.open(f"lmdb:{store}", create=False) as opened:
        assert opened.load("README.md") == b"version 2\n"


def test_who_and_why_is_in_the_history(simple: Repo, run: Run) -> None:
    simple.write("README.md", b"again")
    simple.commit("ß" * 5_000)
    assert run("tour", simple.path).code == 0
    with snapkv.open(inside(simple)) as store:
        notes = [v.note or "" for v in store.history("README.md") if "tour:" not in (v.note or "")]
        assert notes[0][9:] == "commit 0"
        assert notes[-1].endswith("ß")
        assert 4_090 <= len(notes[-1].encode()) <= 4_096
        made = {c.writer for c in store.commits() if not (c.note or "").startswith("tour: ")}
        assert made == {"Ada Lovelace <ada@example.org>"}


def test_times_at_the_ends_of_what_a_timestamp_can_say(tmp_path: Path, run: Run) -> None:
    repo = Repo(tmp_path / "clone")
    for number, second in enumerate((0, 0, START, 2**33, 2**40, START)):
        repo.write("f", b"%d" % number)
        if second < 2**36:
            repo.commit("dated", at=second)
        else:
            tree = repo.git("write-tree").decode().strip()
            who = f"A <a@example.org> {second} +0000"
            text = f"tree {tree}\nparent {repo.head()}\nauthor {who}\ncommitter {who}\n\nfar\n"
            oid = repo.git("hash-object", "-t", "commit", "-w", "--stdin", input=text.encode())
            repo.git("update-ref", "HEAD", oid.strip())
    ran = run("tour", repo.path)
    assert ran.code == 0, ran.out + ran.err
    assert "1 commit dated before" in ran.out
    with snapkv.open(inside(repo), clock=snapkv.ManualClock(2**46 - 1)) as store:
        assert store.load("f") == b"5"
        assert store.load("f", "1970-01-01T00:00:00Z") == b"1"
        assert store.load("f", "2100-01-01T00:00:00Z") == b"2"


def test_the_commands_that_it_proposes_work_as_printed(odd: Repo, run: Run) -> None:
    ran = run("tour", ".", cwd=odd.path)
    proposed = ran.out.partition("Try next:")[2].split("\n")
    commands = [line for line in proposed if line.startswith("  ")]
    names = [line.split("--store ")[1].split()[1] for line in commands]
    assert names == ["ui", "log", "ls", "history", "get", "diff"]
    for line in commands[1:]:
        shown = subprocess.run(
            ["bash", "-c", line], cwd=odd.path, capture_output=True, timeout=30, check=False
        )
        assert (shown.returncode, shown.stderr, bool(shown.stdout)) == (0, b"", True), line
    with subprocess.Popen(
        ["bash", "-c", f"exec {commands[0].strip()} --port 0"], cwd=odd.path, stderr=subprocess.PIPE
    ) as page:
        assert page.stderr is not None
        assert b"open http://" in page.stderr.readline()
        page.terminate()
        assert page.wait(30) in (0, -15)


def test_it_looks_the_same_in_a_pipe(simple: Repo, run: Run) -> None:
    ran = run("tour", simple.path)
    assert "\x1b" not in ran.out
    assert "importing" not in ran.out
    assert max(map(len, ran.out.split("\n"))) < 300
    rows = [line.split() for line in ran.out.split("\n") if line.endswith("equal")]
    assert [" ".join(row[:-6]) for row in rows] == QUESTIONS
    assert sum(int(row[-6]) for row in rows) == int(re.findall(r"All (\d+) answers", ran.out)[0])


def command(repo: Repo) -> list[str]:
    return [sys.executable, "-m", "snapkv.cli", "tour", str(repo.path)]


def on_a_terminal(words: list[str]) -> tuple[int, bytes]:
    """Return how a command ends and what it shows, to a terminal."""
    ours, theirs = pty.openpty()  # and no fork of this process, which may have gRPC in it
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(ours, 65_536):
                shown += chunk
    os.close(ours)
    return process.returncode, shown


def test_on_a_terminal_it_shows_progress(simple: Repo) -> None:
    code, shown = on_a_terminal(command(simple))
    assert code == 0
    assert b"importing" in shown
    assert b"5/5" in shown
    assert b"answers are equal to git's" in shown


def test_a_reader_that_goes_away(simple: Repo) -> None:
    words = command(simple)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_one_commit_is_a_history_too(tmp_path: Path, run: Run) -> None:
    ran = run("tour", simple_repo(tmp_path / "one", commits=1).path)
    assert ran.code == 0
    assert "Restore: not tried, all of this history falls on one date" in ran.out


def test_a_store_where_one_is_told(simple: Repo, tmp_path: Path, run: Run) -> None:
    place = tmp_path / "else where"
    for words in (
        ("--store", f"lmdb:{place}", "tour", simple.path),
        ("tour", simple.path, "--store", place),
    ):
        ran = run(*words)
        assert ran.code == 0, ran.err
        assert f"snapkv --store 'lmdb:{place}' log" in ran.out
    assert not (simple.path / ".git" / "snapkv-tour").exists()


def test_the_environments_store_is_left_alone(
    simple: Repo, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNAPKV_STORE", f"lmdb:{tmp_path}/precious")
    assert run("tour", simple.path).code == 0
    assert not (tmp_path / "precious").exists()


def test_an_ignored_folder_is_preferred(simple: Repo, run: Run) -> None:
    simple.write(".gitignore", b"/.tour/\n")
    simple.commit("ignore")
    ran = run("tour", simple.path, cwd=simple.path)
    assert "imported into lmdb:.tour in" in ran.out
    assert simple.git("status", "--porcelain") == b""
    check_every_commit(f"lmdb:{simple.path}/.tour", simple)


def test_odd_repositories_are_odd(odd_master: Repo, tmp_path: Path) -> None:
    """The strange things are really in there, or the tests above prove little."""
    lines = [line for oid, _ in odd_master.dates() for line, _ in odd_master.tree(oid).values()]
    modes = {line.split()[0] for line in lines}
    assert modes == {b"100644", b"100755", b"120000", b"160000"}
    merges = odd_master.git("rev-list", "--merges", "HEAD").split()
    assert len(merges) == 1
    times = [when for _, when in odd_master.first_parents()]
    assert times != sorted(times)
