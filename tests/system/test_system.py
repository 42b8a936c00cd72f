"""The tour of everything: real captures are killed, and what remains is compared with git."""

import json
import random
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from etcd_server.programs import etcd_binary

import snapkv
from cdcmeta.changes import ChangesDB
from cdcmeta.cli import main as cdcmeta_main
from snapkv.cli import main as snapkv_main
from system.everything import Tour, captures
from system.everything.__main__ import main as tour_main
from system.everything.place import DOCUMENTS, Place
from system.everything.report import Report
from system.tour_clones import Ran, Repo, simple_repo

pytestmark = pytest.mark.slow

Command = Callable[..., Ran]


@pytest.fixture
def command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Run a command line; return its exit code and what it wrote. No process outlives it."""
    programs = {"snapkv": snapkv_main, "cdcmeta": cdcmeta_main, "tour": tour_main}
    monkeypatch.chdir(tmp_path)

    def command(*words: str | Path) -> Ran:
        capfd.readouterr()
        code = programs[str(words[0])]([str(word) for word in words[1:]])
        assert processes_in(tmp_path) == []
        return Ran(int(code), *capfd.readouterr())

    return command


def processes_in(folder: Path) -> list[bytes]:
    """Return the command lines of processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes())
    return [line for line in found if bytes(folder) in line]


def random_repo(path: Path, seed: int, commits: int) -> Repo:
    """Make a history of writes, renames, removals and merges by several authors."""
    repo, rng = Repo(path), random.Random(seed)
    files = ["README.md"]
    for number in range(commits):
        if number and rng.random() < 0.2:
            repo.git("checkout", "--quiet", "-b", f"side{number}")
            repo.write(f"side/{number}", b"%d" % rng.getrandbits(40))
            repo.commit(f"side {number}")
            repo.git("checkout", "--quiet", "main")
            repo.now += 60
            repo.git("merge", "--quiet", "--no-ff", f"side{number}", "-m", f"merge {number}")
            continue
        if len(files) > 3 and rng.random() < 0.4:
            gone = files.pop(rng.randrange(len(files)))
            if rng.random() < 0.5:
                repo.git("rm", "--quiet", gone)
            else:
                repo.git("mv", gone, f"moved{number}")
                files.append(f"moved{number}")
        for _ in range(rng.randint(1, 3)):
            files.append(f"src/{rng.randrange(9)}.py")
            repo.write(files[-1], b"%d" % rng.getrandbits(40))
        files = list(dict.fromkeys(files))
        repo.write("README.md", b"%d" % number)
        author = rng.choice(["Ada", "Grace", "Zoë"])
        repo.now += rng.randint(0, 4_000)
        repo.git("add", "--all")
        repo.git("commit", "--quiet", "--author", f"{author} <a@example.org>", "-m", f"c {number}")
    return repo


def check_replicas(place: Place, repos: dict[str, Repo]) -> None:
    """Compare what captures made with git, by the tests' own means."""
    trees = {
        f"{name}/{path.decode()}": found
        for name, repo in repos.items()
        for path, found in repo.tree("HEAD").items()
        if len(path) <= 200 and b"\xe9" not in path
    }
    with snapkv.open(place.mirror_url, create=False) as mirror:
        assert dict(mirror.at().items()) == {key: content for key, (_, content) in trees.items()}
    with snapkv.open(place.mirror_url, name=DOCUMENTS, create=False) as mirror:
        docs = {
            name + each.id: each.doc["line"].encode()
            for name in repos
            for each in ChangesDB(mirror, name).documents(include_docs=True)
        }
    assert docs == {key: line for key, (line, _) in trees.items()}
    rows = {}
    for path in place.rows.iterdir():
        for text in path.read_text().splitlines():
            for change in json.loads(text).get("changes", ()):
                rows[change["key"]] = change["value"]
    assert {key: line.encode() for key, line in rows.items() if line} == docs
    for name, repo in repos.items():
        check_archive(place.replica(f"{name}/"), repo)


def check_archive(folder: Path, repo: Repo) -> None:
    """Compare an archive that captures wrote with git at each date."""
    with snapkv.open_archive(str(folder)) as archive:
        for second, oid in {second: oid for oid, second in repo.dates()}.items():
            tree = repo.tree(oid).items()
            wanted = {
                f"{path.decode()}": content
                for path, (_, content) in tree
                if len(path) <= 200 and b"\xe9" not in path
            }
            date = snapkv.format_time(snapkv.pack(second * 1_000))
            found = {key.partition("/")[2]: value for key, value in archive.at(date).items()}
            assert found == wanted


def check_output(ran: Ran) -> None:
    assert ran.code == 0, ran.out + ran.err
    assert re.search(r"\nAll [\d,]+ answers are equal to git's\.\n", ran.out)
    assert "DIFFERS" not in ran.out
    for question in (r"What differs between two dates\?", r"with an archive, \d dates? compacted"):
        assert len(re.findall(rf"\n\w+: {question} +equal", ran.out)) == 3, question
    assert len(re.findall(r"was killed at commit \d+; the other two took over", ran.out)) == 2
    assert re.search(r"c\d, which led, was killed", ran.out)
    assert re.search(r"the ring changed at commit \d+, and has 7 streams", ran.out)
    for way in ("store", "watch", "CDC log", "archive", "captures' archives", "duckdb", "page"):
        assert re.search(rf"\n{way} +equal", ran.out), way
    assert re.search(r"\nstore, compacted +compacted .* has it", ran.out)
    assert "not asked" not in ran.out


@pytest.mark.long
def test_clones_with_strange_histories(odd: Repo, command: Command, tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    repos = {
        "odd": odd,
        "random": random_repo(tmp_path / "random", seed, 15),
        "simple": simple_repo(tmp_path / "simple"),
    }
    paths = [repo.path for repo in repos.values()]
    ran = command("tour", *paths, "--embedded", "--no-spark", "--into", tmp_path / "all")
    check_output(ran)
    assert "\nLeft out, 2 paths " in ran.out
    check_replicas(Place(tmp_path / "all"), repos)
    assert odd.git("status", "--porcelain", "--ignored") == b""
    commands = [
        shlex.split(line) for line in ran.out.partition("Try next:")[2].splitlines() if line
    ]
    assert [words[:2] for words in commands] == [
        ["snapkv", "diff"],
        ["snapkv", "log"],
        ["cdcmeta", "generations"],
        ["cdcmeta", "changefeed"],
        ["cdcmeta", "changefeed"],
        ["snapkv", "ui"],
    ]
    for words in commands[:-1]:
        tried = command(*words)
        assert (tried.code, bool(tried.out)) == (0, True), (words, tried.err)


@pytest.mark.long
def test_small_clones_on_an_etcd_of_its_own(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{etcd_binary().parent}:/usr/bin:/bin")
    ran = command("tour", "--no-spark")
    check_output(ran)
    place = Place(tmp_path / ".tour-all")
    repos = {}
    for name in ("catalogue", "placements", "handbook"):
        repos[name] = Repo.__new__(Repo)
        repos[name].path, repos[name].now = place.folder / "clones" / name, 0
        repos[name].contents = {}
    check_replicas(place, repos)
    assert "go into an etcd of the tour's own, etcd://127.0.0.1:" in ran.out
    killed = re.findall(r"(c\d).* was killed at", ran.out)
    with snapkv.open_archive(str(place.recorded_captures)) as records:
        notes = [commit.note or "" for commit in records.commits()]
    assert len([note for note in notes if note.startswith("create changefeed ")]) == 4
    for column, label in enumerate(killed, 2):  # after the start, then after each was killed
        counts = re.search(rf"\ntables on {label} +(\d+) +(\d+) +(\d+) ", ran.out)
        assert counts is not None
        assert counts[column] == "0"


def test_an_answer_that_differs_ends_with_1(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Report()
    report.compare("a question", {"key": b"1"}, {"key": b"2"})
    monkeypatch.setattr(Tour, "run", lambda self, paths: report)
    assert command("tour").code == 1


def test_what_cannot_be_toured(simple: Repo, command: Command, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    for words, code, text in (
        (
            ("nowhere",),
            2,
            "nowhere does not exist\nName the folder of a git clone",
        ),
        ((simple.path, simple.path), 2, "is given twice\nName each clone once."),
        ((simple.path, "--into", precious), 5, "is something that no tour made"),
    ):
        ran = command("tour", *words)
        assert (ran.code, ran.out, text in ran.err) == (code, "", True), ran
    assert (precious / "file").read_text() == "mine"


def test_a_commit_that_is_too_large_stops_the_tour(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Place, "request_bytes_max", 20_000)
    repo = Repo(tmp_path / "clone")
    repo.write("large", b"x" * 20_000)
    repo.commit("large")
    ran = command("tour", repo.path, "--embedded", "--into", tmp_path / "all")
    assert ran.code == 2
    assert "is too large for one transaction" in ran.err


def test_a_capture_that_ends_stops_the_tour(
    simple: Repo, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "TTL_S", "never")
    ran = command("tour", simple.path, "--embedded", "--into", tmp_path / "all")
    assert ran.code == 7
    assert re.search(r"the capture c\d ended with code 2: .*--ttl", ran.err, re.DOTALL)
