"""The questions of a clone's tour for Spark: true answers, held against git; no Spark at all."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from etcd_server import EtcdServer

import snapkv
from snapkv.cli.tour import tour_store
from snapkv.cli.tour.examiner import TourReport
from system.everything.clone_exam import filled
from system.everything.clone_sparked import SparkAnswer, ask, started
from system.everything.clones import clones_of
from system.test_tour_mismatch import corrupt
from system.tour_clones import Repo, simple_repo

pytestmark = pytest.mark.slow

NOW_MS = 2_000_000_000_000
START = """
from system.everything.clone_sparked import NoSpark, started
try:
    with started() as spark:
        print("started", spark.session.range(3).count())
except NoSpark as e:
    print("not asked,", e)
"""


@pytest.fixture
def _one_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tours of this process share one Spark, which ends with it."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "__exit__", lambda *_: None)


def asked(repo: Repo, path: str, name: str = "default") -> tuple[TourReport, list[SparkAnswer]]:
    """Return the report of Spark, and its answers."""
    (toured,) = clones_of([str(repo.path)], NOW_MS)
    with filled(toured, path) as (examiner, _), started() as spark:
        answers = ask(examiner, tour_store.url_of(path), name, spark)
        return examiner.report, answers


def inside(repo: Repo) -> str:
    """Return the folder of the store that `corrupt` changes."""
    return f"{repo.path}/.git/snapkv-tour"


@pytest.mark.long
@pytest.mark.usefixtures("_one_spark")
def test_a_strange_history(odd: Repo) -> None:
    report, (tree, difference) = asked(odd, inside(odd))
    assert (report.mismatches, report.answers) == ([], 2)
    _, _, _, then = tree.question.split()
    *_, now = difference.question.split()
    assert difference.question == f"what differs between {then} and {now}"
    with snapkv.open(f"lmdb:{inside(odd)}") as store:
        there, differing = store.at(then).count(), len(list(store.diff(then, now)))
    assert (tree.rows, difference.rows) == (there, differing)


@pytest.mark.long
@pytest.mark.usefixtures("_one_spark")
def test_sha256_repositories(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "new", "--object-format=sha256")
    for number in range(3):
        repo.write("README.md", b"%d" % number)
        repo.commit("some")
    _, answers = asked(repo, inside(repo))
    assert [each[1:] for each in answers] == [(1, True), (1, True)]


@pytest.mark.long
@pytest.mark.usefixtures("_one_spark")
def test_on_etcd(simple: Repo, etcd: EtcdServer) -> None:
    report, answers = asked(simple, etcd.url, tour_store.ETCD_NAME)
    assert report.mismatches == []
    assert [each.equal for each in answers] == [True, True]


@pytest.mark.long
@pytest.mark.usefixtures("_one_spark")
def test_one_commit_has_no_differences(tmp_path: Path) -> None:
    repo = simple_repo(tmp_path / "one", commits=1)
    _, answers = asked(repo, inside(repo))
    assert [each[1:] for each in answers] == [(2, True)]


@pytest.mark.usefixtures("_one_spark")
def test_what_spark_says_is_compared(simple: Repo) -> None:
    """A file that differs is found by its content alone: Spark names it as git would."""
    asked(simple, inside(simple))
    corrupt(simple, b"default/data/docs/0.md")
    report, answers = asked(simple, inside(simple))
    assert [each.equal for each in answers] == [False, True]  # it did not change
    assert [wrong.key for wrong in report.mismatches] == ["docs/0.md"]


@pytest.mark.usefixtures("_one_spark")
def test_a_question_that_fails_is_no_answer(simple: Repo) -> None:
    """Here because Spark reads a store that does not exist."""
    report, answers = asked(simple, inside(simple), "other")
    assert [each[1:] for each in answers] == [(0, False)] * 2
    assert all("SNAPKV_STORE_NOT_FOUND" in wrong.store for wrong in report.mismatches)
    assert len(report.mismatches) == 2


def started_in(environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", START], env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.long
def test_it_starts_a_spark() -> None:
    """Nothing of Spark's log is shown."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    assert started_in(environment) == "started 3\n"


@pytest.mark.long_after(1)
@pytest.mark.parametrize("missing", ["java", "pyspark", "pyarrow"])
def test_a_machine_without_it(tmp_path: Path, missing: str) -> None:
    tests = str(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{tests}"}
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
        reason = f"{missing} is not installed (pip install 'snapkv[spark]')"
    assert started_in(environment) == f"not asked, {reason}\n"
