"""The tour's questions to Spark: true answers, held against git; and machines without a Spark."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from etcd_server import EtcdServer
from test_tour_history import command, inside, on_a_terminal
from test_tour_mismatch import corrupt
from tour_clones import Ran, Repo, Run

import snapkv
from snapkv.cli.tour import sparked

pytestmark = pytest.mark.long


@pytest.fixture
def _one_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tours of this process share one Spark, which ends with it."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "__exit__", lambda *_: None)


def spark_rows(ran: Ran) -> list[list[str]]:
    """Return the rows of what Spark said, as question, number, and verdict."""
    _, _, rest = ran.out.partition("What does Spark say of the same store?\n")
    lines = rest.partition("\n\n")[0].split("\n")[1:]
    return [[" ".join(words[:-4]), words[-4], words[-1]] for words in map(str.split, lines)]


def test_it_starts_a_spark_and_shows_progress(simple: Repo) -> None:
    code, shown = on_a_terminal(command(simple))
    assert code == 0, shown.decode()
    assert b"archiving" in shown
    assert b"asking Spark" in shown
    assert b"What does Spark say of the same store?" in shown
    assert b"WARN" not in shown
    assert b"answers are equal to git's" in shown


@pytest.mark.usefixtures("_one_spark")
def test_a_strange_history(odd: Repo, run: Run) -> None:
    quick = run("tour", odd.path)
    ran = run("tour", odd.path, spark=True)
    assert ran.code == 0, ran.out + ran.err
    (then,) = re.findall(r" ls --at (\S+)\n", ran.out)
    (now,) = re.findall(rf" diff {then} (\S+)\n", ran.out)
    with snapkv.open(inside(odd)) as store:
        there, differing = store.at(then).count(), len(list(store.diff(then, now)))
    then, now = (each.replace(".000Z", "Z") for each in (then, now))
    assert spark_rows(ran) == [
        [f"the tree at {then}", str(there), "equal"],
        [f"what differs between {then} and {now}", str(differing), "equal"],
    ]
    assert answers(ran) == answers(quick) + 2


def answers(ran: Ran) -> int:
    return int(ran.out.partition("\nAll ")[2].partition(" answers")[0].replace(",", ""))


@pytest.mark.usefixtures("_one_spark")
def test_sha256_repositories(tmp_path: Path, run: Run) -> None:
    repo = Repo(tmp_path / "new", "--object-format=sha256")
    for number in range(3):
        repo.write("README.md", b"%d" % number)
        repo.commit("some")
    ran = run("tour", repo.path, spark=True)
    assert ran.code == 0, ran.out + ran.err
    assert [row[1:] for row in spark_rows(ran)] == [["1", "equal"], ["1", "equal"]]


@pytest.mark.usefixtures("_one_spark")
def test_on_etcd(simple: Repo, run: Run, etcd: EtcdServer) -> None:
    ran = run("tour", simple.path, "--store", etcd.url, spark=True)
    assert ran.code == 0, ran.out + ran.err
    assert [row[-1] for row in spark_rows(ran)] == ["equal", "equal"]


@pytest.mark.usefixtures("_one_spark")
def test_one_commit_has_no_differences(tmp_path: Path, run: Run) -> None:
    repo = Repo(tmp_path / "one")
    repo.write("f", b"1")
    repo.commit("only")
    ran = run("tour", repo.path, spark=True)
    assert (ran.code, [row[1:] for row in spark_rows(ran)]) == (0, [["1", "equal"]])


@pytest.mark.usefixtures("_one_spark")
def test_what_spark_says_is_compared(simple: Repo, run: Run) -> None:
    """A file that differs is found by its content alone: Spark names it as git would."""
    assert run("tour", simple.path).code == 0
    corrupt(simple, b"default/data/docs/0.md")
    ran = run("tour", simple.path, spark=True)
    assert ran.code == 1
    verdicts = [row[-1] for row in spark_rows(ran)]
    assert verdicts == ["DIFFERS", "equal"]  # it stood then, and did not change


@pytest.mark.usefixtures("_one_spark")
def test_a_question_that_fails_is_no_answer(
    simple: Repo, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here because Spark is told of a store that is not there."""
    ask = sparked.questions
    monkeypatch.setattr(sparked, "questions", lambda examiner, url, _: ask(examiner, url, "other"))
    ran = run("tour", simple.path, spark=True)
    assert ran.code == 1
    assert [row[1:] for row in spark_rows(ran)] == [["0", "DIFFERS"]] * 2
    assert "SNAPKV_STORE_NOT_FOUND" in ran.out


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "java"])
def test_a_machine_without_it(simple: Repo, tmp_path: Path, missing: str) -> None:
    environment = dict(os.environ)
    environment.pop("JAVA_HOME", None)
    if missing == "java":
        only = tmp_path / "bin"
        only.mkdir()
        (only / "git").symlink_to(str(shutil.which("git")))
        environment["PATH"] = str(only)
        reason = "Java was not found: Spark needs Java 17 or newer"
    else:
        gone = f"raise ModuleNotFoundError('No module named {missing}', name='{missing}')"
        (tmp_path / f"{missing}.py").write_text(gone)
        environment["PYTHONPATH"] = str(tmp_path)
        reason = f"{missing} is not installed (pip install 'snapkv[spark]')"
    done = subprocess.run(
        command(simple), env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("\nArchive: not asked, pyarrow is not " in done.stdout) == (missing == "pyarrow")
    assert done.stdout.count("Spark") == 1 + (missing == "java")
    assert f"\nSpark: not asked, {reason}\n" in done.stdout
    assert "answers are equal to git's" in done.stdout
