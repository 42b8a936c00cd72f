"""What `make test` leaves to `make soak`: cases on etcd of tests that also run elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import SAMPLED, first_of
from speeds import (
    ALL,
    FAST,
    LEFT_SLOW,
    LEFT_TO_ALL,
    LEFT_TO_LONG,
    LONG,
    ON_ONE_EMBEDDED,
    TEST,
    reason_to_leave_file,
)

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
FOLDER = "tests/changes"
ENGINE = re.compile(r"\b(?:etcd|lmdb|memory)\b")
ONE_IN = 6


def collected(*words: str, profile: str = "default") -> set[str]:
    """Return the names of the tests that pytest would run."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words],
        cwd=TESTS.parent,
        env={**os.environ, "HYPOTHESIS_PROFILE": profile},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return {line for line in done.stdout.split("\n") if "::" in line}


def without_case(name: str) -> str:
    return name.partition("[")[0]


def engines(name: str) -> set[str]:
    return set(ENGINE.findall(name.partition("[")[2]))


@pytest.fixture(scope="module")
def every() -> set[str]:
    return collected(FOLDER, profile="soak")


@pytest.fixture(scope="module")
def kept() -> set[str]:
    return collected(FOLDER)


@pytest.fixture(scope="module")
def by_day() -> set[str]:
    return collected(FOLDER, "--speed=test")


def test_only_cases_on_etcd_are_left_out(every: set[str], kept: set[str]) -> None:
    assert kept < every
    assert {frozenset(engines(name)) for name in every - kept} == {frozenset({"etcd"})}


def test_each_test_runs_somewhere(every: set[str], kept: set[str]) -> None:
    assert {without_case(name) for name in kept} == {without_case(name) for name in every}


def test_tests_of_etcd_alone_are_whole(every: set[str], kept: set[str]) -> None:
    elsewhere = {without_case(name) for name in every if engines(name) & {"lmdb", "memory"}}
    assert {without_case(name) for name in every - kept} <= elsewhere


def test_every_sixth_test_of_a_file_has_a_case_on_etcd(every: set[str], kept: set[str]) -> None:
    elsewhere = {without_case(name) for name in every if engines(name) & {"lmdb", "memory"}}
    shared = {
        name for name in every if engines(name) == {"etcd"} and without_case(name) in elsewhere
    }
    for file in {name.partition("::")[0] for name in shared}:
        tests = {without_case(name) for name in shared if name.startswith(f"{file}::")}
        still = [name for name in kept & shared if name.startswith(f"{file}::")]
        assert len(still) == len({*map(without_case, still)}) == -(-len(tests) // ONE_IN), file


def test_a_run_that_names_tests_has_all_cases(every: set[str]) -> None:
    file = f"{FOLDER}/test_life.py"
    of_file = {name for name in every if name.startswith(f"{file}::")}
    test = without_case(min(name for name in of_file if engines(name) == {"etcd"}))
    wanted = {name for name in of_file if without_case(name) == test}
    assert collected(test) == wanted
    assert collected(file, "-k", test.partition("::")[2]) >= wanted


def test_make_soak_runs_the_folders_whole() -> None:
    recipe = (TESTS.parent / "Makefile").read_text().partition("\nsoak:")[2].partition("\n\n")[0]
    leaving = ("from sampling import", "mark.soak")
    folders = {
        file.parent.name
        for file in TESTS.glob("*/test_*.py")
        if any(words in file.read_text() for words in leaving) and file != Path(__file__)
    }
    assert {f"tests/{name}" for name in SAMPLED | folders} <= set(recipe.split())


def test_folders_that_are_named_exist() -> None:
    folders = {path.name for path in TESTS.rglob("*") if path.is_dir()}
    assert folders >= SAMPLED | ON_ONE_EMBEDDED


def test_the_first_of_each_few_cases_stays() -> None:
    cases = first_of([1, 2, (3, "c"), 4, 5], one_in=2)
    assert [case.values for case in cases] == [(1,), (2,), (3, "c"), (4,), (5,)]
    assert [[mark.name for mark in case.marks] for case in cases] == [[], ["soak"]] * 2 + [[]]


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("", {LONG: LEFT_TO_LONG}),
        ("pytestmark = pytest.mark.slow", {FAST: LEFT_SLOW, LONG: LEFT_TO_LONG}),
        ("pytestmark = [\n    pytest.mark.slow,\n]", {FAST: LEFT_SLOW, LONG: LEFT_TO_LONG}),
        ("pytestmark = pytest.mark.slow\n@pytest.mark.long", {FAST: LEFT_SLOW}),
        ("@pytest.mark.slow", {LONG: LEFT_TO_LONG}),
        ("@pytest.mark.long", {}),
        ("@pytest.mark.long_after(1)", {}),
        ("pytestmark = pytest.mark.long", {FAST: LEFT_TO_ALL, TEST: LEFT_TO_ALL}),
        ("pytestmark = [\n    pytest.mark.long,\n]", {FAST: LEFT_TO_ALL, TEST: LEFT_TO_ALL}),
    ],
)
def test_a_file_that_is_left_out_as_a_whole_says_so(
    text: str, reasons: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(text)
    found = {speed: reason_to_leave_file(path, speed) for speed in (FAST, TEST, LONG, ALL)}
    assert {speed: reason for speed, reason in found.items() if reason} == reasons


def test_what_stores_are_used_for_is_shown_on_one_embedded_engine(
    kept: set[str], by_day: set[str]
) -> None:
    file = f"{FOLDER}/test_life.py"
    of_file = {name for name in kept if name.startswith(f"{file}::")}
    on_lmdb = {without_case(name) for name in of_file if engines(name) == {"lmdb"}}
    left = of_file - by_day
    assert left, "no test of the file is in memory"
    assert left == {
        name for name in of_file if engines(name) == {"memory"} and without_case(name) in on_lmdb
    }


def test_cases_on_engines_that_a_test_names_are_long(kept: set[str], by_day: set[str]) -> None:
    file = f"{FOLDER}/test_any_changes.py"
    assert 'long_on("etcd")' in (TESTS.parent / file).read_text()
    on_etcd = {name for name in kept if name.startswith(f"{file}::") and "etcd" in engines(name)}
    assert on_etcd
    assert not on_etcd & by_day
