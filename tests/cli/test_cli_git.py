"""export --git and import --git: a history as git commits, and git commits as a history."""

import random
from pathlib import Path

import pytest
from cli_runner import Cli
from system.tour_clones import GIT_ENVIRONMENT, Repo, odd_repo

import snapkv

pytestmark = pytest.mark.slow
BRANCH = "refs/heads/snapkv"


@pytest.fixture(autouse=True)
def _git_of_a_clean_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GIT_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def out(cli: Cli) -> Repo:
    """An empty bare repository, into which histories go."""
    return Repo(cli.place / "out", "--bare")


def trees(repo: Repo, ref: str) -> list[str]:
    """Return the ids of the trees of the first-parent history, oldest first."""
    rows = repo.git("log", "--first-parent", "--reverse", "--format=%T", ref)
    return rows.decode().split()


def check_round_trip(cli: Cli, source: Repo, out: Repo) -> None:
    """Import a repository, export the store, and compare trees, authors and times."""
    cli.ok("import", "--git", str(source.path))
    cli.ok("export", "--git", str(out.path))
    assert trees(out, BRANCH) == trees(source, "HEAD")
    authors = [
        each.git("log", "--first-parent", "--format=%an <%ae>", ref)
        for each, ref in ((source, "HEAD"), (out, BRANCH))
    ]
    assert authors[0] == authors[1]
    times = out.git("log", "--reverse", "--format=%at %ct", BRANCH).decode().split("\n")[:-1]
    assert times == [f"{second} {second}" for _, second in source.dates()]
    out.git("fsck", "--strict")


def random_history(repo: Repo, rng: random.Random, commits: int) -> None:
    """Make commits of random changes: contents, modes, links, renames, merges, odd times."""
    for number in range(commits):
        there = [path for path in repo.git("ls-files", "-z").decode().split("\0") if path]
        for _ in range(rng.randint(0, 3)):
            path = "/".join(rng.choice(["a", "b", "ü x", '"', "\\", "-c"]) for _ in range(3))
            if rng.random() < 0.3 and there:
                repo.git("rm", "--quiet", "-rf", "--ignore-unmatch", "--", rng.choice(there))
            elif rng.random() < 0.3 and there:
                repo.git("mv", "-k", "--", rng.choice(there), f"moved{number}-{rng.random()}")
            elif rng.random() < 0.2 and not (repo.path / f"link{number}").is_symlink():
                (repo.path / f"link{number}").symlink_to(path)
            else:
                repo.write(path, rng.choice([b"", b"\0\xff", rng.randbytes(30), b"text\n"]))
                (repo.path / path).chmod(rng.choice([0o644, 0o755]))
        repo.commit(f"change {number}", at=repo.now + rng.choice([0, 0, 60, -600, 3_600]))
        if rng.random() < 0.2:
            repo.git("checkout", "--quiet", "-b", f"side{number}", "HEAD")
            repo.write(f"side{number}", rng.randbytes(9))
            repo.commit("on the side")
            repo.git("checkout", "--quiet", "main")
            repo.git("merge", "--quiet", "--no-ff", f"side{number}", "-m", "merge")


@pytest.mark.parametrize("number", range(3))
def test_trees_of_any_history_are_the_same_after_a_round_trip(
    cli: Cli, out: Repo, number: int
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    source = Repo(cli.place / "source")
    random_history(source, random.Random(seed), 25)
    check_round_trip(cli, source, out)


def test_a_real_life_history_is_the_same_after_a_round_trip(cli: Cli, out: Repo) -> None:
    """All of it but paths that are not UTF-8: modes, links, submodules, merges, odd names."""
    source = odd_repo(cli.place / "source")
    source.git(
        "filter-branch",
        "--index-filter",
        "git rm -r -q --cached --ignore-unmatch latin* deep*",
        "HEAD",
    )
    check_round_trip(cli, source, out)


def test_blame_names_the_writer_and_an_export_continues(cli: Cli, out: Repo) -> None:
    cli.ok(
        "put",
        "p/a",
        "1\n",
        "p/b/c",
        "x",
        "beside",
        "1",
        "--writer",
        "Ann <ann@example.com>",
        "--note",
        "first\n\nwhy",
    )
    assert cli.ok("export", "--git", "out", "--prefix", "p/").out == "1 commit to branch snapkv\n"
    first = out.git("rev-parse", BRANCH)
    with snapkv.open(cli.url) as store:
        store.tick()
    cli.ok("put", "beside", "2")
    cli.ok("put", "p/a", "1\n2\n", "--writer", "job 7")
    assert cli.ok("export", "--git", "out", "--prefix", "p/").out == "1 commit to branch snapkv\n"
    assert cli.ok("export", "--git", "out", "--prefix", "p/").out == "0 commits to branch snapkv\n"
    assert out.git("rev-parse", f"{BRANCH}^") == first
    blame = out.git("blame", "--line-porcelain", "snapkv", "--", "a").decode()
    people = [line for line in blame.split("\n") if line.startswith(("author ", "author-mail"))]
    assert people == [
        "author Ann",
        "author-mail <ann@example.com>",
        "author job 7",
        "author-mail <job%207@snapkv.invalid>",
    ]
    assert out.git("log", "--reverse", "--format=%s", "snapkv").decode().split("\n")[:2] == [
        "first",
        "Change p/a",
    ]
    exact = out.git("log", "-1", "--format=%(trailers:key=Snapkv-Commit,valueonly)", "snapkv")
    assert cli.ok("show", exact.decode().strip(), "--json").json[0]["writer"] == "job 7"


def test_no_two_writers_share_a_mail(cli: Cli, out: Repo) -> None:
    writers = ["Ünal", "Önal", "日本", "中国", "job 7", "job-7", "a<b", "a b", "a%20b", "+", "-"]
    for number, writer in enumerate(writers):
        cli.ok("put", "a", f"{number}", "--writer", writer)
    cli.ok("export", "--git", "out")
    mails = out.git("log", "--format=%ae", BRANCH).decode().splitlines()
    assert len(set(mails)) == len(writers), mails
    assert "job%207@snapkv.invalid" in mails
    rows = out.git("shortlog", "-s", "-e", BRANCH).splitlines()
    assert [row.split()[0] for row in rows] == [b"1"] * len(writers)


def test_an_export_ends_at_a_time_and_the_next_one_continues(cli: Cli, out: Repo) -> None:
    stamps = [cli.ok("put", "k", str(n), "--raw").out.strip() for n in range(4)]
    cli.ok("export", "--git", "out", "--at", stamps[1])
    assert len(trees(out, BRANCH)) == 2
    cli.ok("export", "--git", "out")
    assert len(trees(out, BRANCH)) == 4


def test_what_was_compacted_is_one_commit(cli: Cli, out: Repo) -> None:
    long_ago = snapkv.ManualClock(1_700_000_000_000)
    with snapkv.open(cli.url, clock=long_ago) as store:
        stamps = [store.save(f"k{n}", b"1") for n in range(4)]
    cli.ok("compact", str(stamps[2]), "--yes")
    cli.ok("export", "--git", "out")
    found = out.git("ls-tree", "--name-only", f"{BRANCH}~1").decode().split()
    assert (len(trees(out, BRANCH)), found) == (2, ["k0", "k1", "k2"])


@pytest.mark.parametrize("key", ["a/b", "../x", "x//y", "/x", "d/.git/config", "d/.GIT"])
def test_a_key_that_cannot_be_a_path_is_an_error_and_the_branch_stays(
    cli: Cli, out: Repo, key: str
) -> None:
    cli.ok("put", "a", "1")
    cli.ok("export", "--git", "out")
    before = out.git("for-each-ref")
    cli.ok("put", "ok", "1")
    cli.ok("put", key, "1")
    answer = cli("export", "--git", "out")
    assert (answer.code, f"key {key!r}" in answer.err) == (2, True)
    assert (out.git("for-each-ref"), [*Path("out").glob("fast_import*")]) == (before, [])
    folder = cli("export", "folder")
    assert (folder.code, folder.err.split(":")[2]) == (2, answer.err.split(":")[2])


def test_a_key_that_takes_the_place_of_a_folder(cli: Cli, out: Repo) -> None:
    cli.ok("put", "a/b", "1")
    cli.ok("rm", "a/b")
    cli.ok("put", "a", "1")
    cli.ok("export", "--git", "out")
    cli.ok("put", "z/z", "1")
    cli.ok("put", "z", "1")
    assert cli("export", "--git", "out").code == 2
    assert out.git("ls-tree", "-r", "--name-only", BRANCH) == b"a\n"


def test_a_branch_of_something_else_is_left_alone(cli: Cli) -> None:
    cli.ok("put", "k", "1")
    repo = Repo(cli.place / "clone")
    repo.write("mine", b"1")
    repo.commit()
    repo.git("branch", "snapkv")
    before = repo.git("for-each-ref")
    answer = cli("export", "--git", "clone")
    assert (answer.code, "does not end with an export" in answer.err) == (3, True)
    assert repo.git("for-each-ref") == before
    repo.git("branch", "-D", "snapkv")
    cli.ok("export", "--git", "clone")
    assert cli("export", "--git", "clone", "--prefix", "k").code == 3, "of another prefix"
    assert repo.git("status", "--porcelain") == b""
    repo.git("checkout", "--quiet", "snapkv")
    cli.ok("put", "k", "2")
    assert "is checked out" in cli("export", "--git", "clone").err
    assert repo.git("status", "--porcelain") == b""
    assert "does not exist" in cli("export", "--git", "nowhere").err


def test_an_import_below_a_prefix_continues_and_can_be_exported(cli: Cli, out: Repo) -> None:
    source = Repo(cli.place / "source")
    for number in range(3):
        source.write("d/a", b"%d" % number)
        (source.path / "d/a").chmod(0o755)
        source.commit(f"number {number}")
        cli.ok("import", "--git", "source", "--prefix", "p/")
    nothing = cli.ok("import", "--git", "source", "--prefix", "p/")
    assert "0 commits of git imported, 3 before" in nothing.err
    assert {each["writer"] for each in cli.ok("log", "--json").json} == {
        "Ada Lovelace <ada@example.org>"
    }
    assert cli.ok("get", "p/d/a", "--at", "@1600000120").out == "1"
    cli.ok("export", "--git", "out", "--prefix", "p/")
    assert trees(out, BRANCH) == trees(source, "HEAD")
    assert cli("import", "--git", "source", "--prefix", "q/").code == 3
    cli.ok("put", "p/mine", "1")
    source.commit("later")
    assert "was changed at" in cli("import", "--git", "source", "--prefix", "p/").err
    assert cli.ok("get", "p/mine").out == "1"


def test_an_import_needs_an_empty_store_and_a_clone(cli: Cli) -> None:
    source = Repo(cli.place / "source")
    assert "has no commits yet" in cli("import", "--git", "source").err
    source.commit()
    assert cli("import", "--git", "source", "--delete").code == 2
    assert not (cli.place / "meta").exists()
    cli.ok("put", "k", "1")
    answer = cli("import", "--git", "source")
    assert (answer.code, "no git history was imported" in answer.err) == (3, True)
