"""The parts of the tour of everything, without processes: true answers, and wrong ones found."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import snapkv
from snapkv.cli.exits import AdvisedError
from system.everything import asking, page
from system.everything.clones import History, clones_of
from system.everything.filling import Filler
from system.everything.making import make_clones
from system.everything.place import MARK, Place, emptied
from system.everything.replication import Story
from system.everything.report import STATES, Report
from system.tour_clones import START, Repo, simple_repo

pytestmark = pytest.mark.slow

NOW_MS = 2_000_000_000_000


def history_of(*repos: Repo) -> History:
    return History(clones_of([str(repo.path) for repo in repos], NOW_MS))


@pytest.fixture
def history(odd: Repo, tmp_path: Path) -> History:
    return history_of(odd, simple_repo(tmp_path / "simple"))


@contextmanager
def filling(tmp_path: Path, history: History) -> Iterator[Filler]:
    """Give the filler of a new store, before the first step."""
    clock, place = snapkv.ManualClock(0), Place(tmp_path / "place")
    with (
        place.open_store(clock) as store,
        Filler(store, clock, history, place.request_bytes_max) as filler,
    ):
        yield filler


@pytest.fixture
def filled(tmp_path: Path, history: History) -> Iterator[Filler]:
    with filling(tmp_path, history) as filler:
        filler.write(len(history.steps))
        yield filler


def verdicts(report: Report) -> set[bool]:
    return {answer.equal for answer in report.given}


def test_every_date_of_every_clone(filled: Filler, history: History, odd: Repo) -> None:
    """Compared with git by the tests' own means."""
    last_of_second = {second: oid for oid, second in odd.dates()}
    for second, oid in last_of_second.items():
        date = snapkv.format_time(snapkv.pack(second * 1_000))
        tree = {path: found for path, found in odd.tree(oid).items() if is_key(path)}
        contents = {f"odd/{path.decode()}": content for path, (_, content) in tree.items()}
        found = dict(filled.store.at(date).items("odd/"))
        assert found == contents
        lines = {f"odd/{path.decode()}": line for path, (line, _) in tree.items()}
        assert asking.documents([filled.databases["odd"]], date) == lines
    assert history.left_out == {path for path in odd.tree("HEAD") if not is_key(path)}
    assert not filled.store.check().problems


def is_key(path: bytes) -> bool:
    return len(path) <= 200 and b"\xe9" not in path


def test_all_ways_give_gits_answers(filled: Filler, history: History) -> None:
    report = Report()
    asking.ask_store(report, history, filled.store, history.moments, "store")
    asking.ask_differences(report, history, filled.store, history.pairs(), "store")
    with closing(asking.Stream(filled.store)) as stream:
        stream.pass_by(report, history, history.moments, "watch")
        stream.differences(report, history, history.pairs(), "watch")
    asking.ask_log(report, history, filled.generations, filled.rows, history.moments)
    assert (report.mismatches, verdicts(report)) == ([], {True})
    assert report.ways(STATES) == ["store", "store's documents", "watch", "CDC log"]
    assert report.answers == 4 * len(history.moments) + 2 * len(history.pairs()) + 1


def test_a_wrong_value_a_wrong_author_and_a_wrong_document_are_found(
    tmp_path: Path, odd: Repo
) -> None:
    history = history_of(odd)
    with filling(tmp_path, history) as filler:
        filler.write(len(history.steps))
        store, now = filler.store, history.moments[-1:]
        pair = (history.moments[-2], history.moments[-1])
        store.save("odd/README.md", b"# Three\n", writer="Mallory")
        line = filler.databases["odd"].get("/clock")
        filler.databases["odd"].put(line | {"line": "100644 blob " + "0" * 40})
        filler.rows.write(b"odd/burst", None)
        report = Report()
        asking.ask_store(report, history, store, now, "store")
        assert [wrong.key for wrong in report.mismatches] == ["odd/README.md", "odd/clock"]
        asking.ask_differences(report, history, store, [pair], "tables")
        assert report.mismatches[2].key == "odd/README.md"
        assert report.mismatches[2].store.endswith(" by Mallory")
        with closing(asking.Stream(store)) as stream:
            stream.pass_by(report, history, history.moments, "watch")
        assert report.mismatches[3].question.startswith("watch: the contents at ")
        asking.ask_log(report, history, filler.generations, filler.rows, now)
        assert [wrong.key for wrong in report.mismatches[4:]] == ["odd/burst", "rows"]
        wrong = [answer.way for answer in report.given if not answer.equal]
        assert wrong == ["store", "store's documents", "tables", "watch", "CDC log"]


def test_the_page_is_compared(tmp_path: Path, odd: Repo) -> None:
    history, story = history_of(odd), Story()
    with filling(tmp_path, history) as filler:
        filler.write(len(history.steps))
        report = Report()
        page.ask_page(report, history, story, filler.store, filler.store)
        assert (report.mismatches, len(report.given), verdicts(report)) == ([], 7, {True})
        key = next(answer.row for answer in report.given if answer.row.startswith("/key:"))
        key = key.removeprefix("/key: the value of ").removesuffix(", and its author")
        filler.store.save(key, b"wrong", writer="Mallory")
        filler.store.save("more/a", b"1")
        report = Report()
        page.ask_page(report, history, story, filler.store, filler.store)
        wrong = [(each.question, each.key) for each in report.mismatches]
        assert ("/key", key) in wrong
        assert ("/key", "author") in wrong
        assert ("/changes", "more/a") in wrong
        assert ("/", "commit 0") in wrong
        assert {question for question, _ in wrong} == {"/key", "/changes", "/"}


def test_a_page_that_fails_is_a_mismatch(tmp_path: Path, odd: Repo) -> None:
    """The keys are those of the history, and the store is another one, which is empty."""
    report = Report()
    with snapkv.open("memory:") as empty:
        page.ask_page(report, history_of(odd), Story(), empty, empty)
    assert {answer.equal for answer in report.given} == {False}
    assert any("status 404" in wrong.store for wrong in report.mismatches)


def test_authors_are_those_of_the_newest_change(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "r")
    for number, author in enumerate(("Ada", "Zoë Çelik", "Ada")):
        repo.write(f"f{number}", b"%d" % number)
        repo.write("\nall", b"%d" % number)
        repo.git("add", "--all")
        repo.now += 60
        repo.git("commit", "--quiet", "--author", f"{author} <a@example.org>", "-m", "s")
    history = history_of(repo)
    first, second, third = ((START + 60 * n) * 1_000 for n in (1, 2, 3))
    assert history.authors(0, second) == {
        "r/f0": "Ada <a@example.org>",
        "r/f1": "Zoë Çelik <a@example.org>",
        "r/\nall": "Zoë Çelik <a@example.org>",
    }
    assert history.authors(first, third) == {
        "r/f1": "Zoë Çelik <a@example.org>",
        "r/f2": "Ada <a@example.org>",
        "r/\nall": "Ada <a@example.org>",
    }
    assert history.authors(third, third) == {}
    assert set(history.changes(0, third)) == {"r/f0", "r/f1", "r/f2", "r/\nall"}


def test_the_ring_changes_between_two_commits(tmp_path: Path, odd: Repo) -> None:
    history = history_of(odd)
    with filling(tmp_path, history) as filler:
        filler.write(2)
        at = filler.gap(0)
        assert at == 2
        made = filler.change_ring()
        filler.write(len(history.steps))
        first, second = filler.generations.generations()
        assert (made, first.streams < second.streams) == (second, True)
        assert history.steps[1].ms < made.time >> 18 < history.steps[2].ms
        report = Report()
        asking.ask_log(report, history, filler.generations, filler.rows, history.moments)
        assert report.mismatches == []


def test_commits_of_one_second_leave_no_gap(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "r")
    for number in range(3):
        repo.write("f", b"%d" % number)
        repo.commit(at=START)
    with filling(tmp_path, history_of(repo)) as filler:
        assert filler.gap(1) is None


def test_small_clones_are_the_same_each_time(tmp_path: Path) -> None:
    once, again = (make_clones(tmp_path / name, commits=30) for name in "ab")
    for one, other in zip(once, again, strict=True):
        clones = clones_of([one, other], NOW_MS)
        assert clones[0].clone.head == clones[1].clone.head
        assert (clones[0].name, clones[1].name) == (Path(one).name, f"{Path(one).name}-2")
    history = History(clones_of(once, NOW_MS))
    assert len(history.steps) == 3 * 30
    assert len({*history.authors(0, NOW_MS).values()}) > 3
    kinds = {"merge": b"Merge ", "rename": b"Rename ", "removal": b"Remove "}
    said = b"".join(subjects(path) for path in once)
    assert [kind for kind, words in kinds.items() if words not in said] == []


def subjects(path: str) -> bytes:
    repo = Repo.__new__(Repo)
    repo.path, repo.now = Path(path), START
    return repo.git("log", "--format=%s")


def test_names_of_clones_are_names_of_databases(tmp_path: Path) -> None:
    folders = ["A B.git", "9", "a-b", "é"]
    for folder in folders:
        simple_repo(tmp_path / folder, 1)
    found = clones_of([str(tmp_path / folder) for folder in folders], NOW_MS)
    assert [each.name for each in found] == ["a-b", "clone-9", "a-b-2", "clone"]


def test_commits_of_the_future_move_to_now(tmp_path: Path) -> None:
    repo = simple_repo(tmp_path / "r")
    last = repo.now
    history = History(clones_of([str(repo.path)], (last - 60) * 1_000))
    assert [step.ms // 1_000 for step in history.steps][-3:] == [last - 120, last - 60, last - 60]


def test_only_the_folder_of_a_tour_is_emptied(tmp_path: Path) -> None:
    made = emptied(tmp_path / "new")
    (made / "sub").mkdir()
    assert [each.name for each in emptied(made).iterdir()] == [MARK]
    (tmp_path / "other").mkdir()
    assert emptied(tmp_path / "other").name == "other"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    for path in (tmp_path / "precious", tmp_path / "precious" / "file"):
        with pytest.raises(AdvisedError, match="that no tour made"):
            emptied(path)
    assert (tmp_path / "precious" / "file").exists()
    for name in ("notes", "more/notes"):
        path = emptied(tmp_path / "new") / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        (made / "rows").mkdir()
        with pytest.raises(AdvisedError, match="that no tour made"):
            emptied(made)
        assert path.exists()
        assert (made / "rows").exists()
        path.unlink()


def test_a_clone_is_given_once(odd: Repo) -> None:
    with pytest.raises(AdvisedError, match="is given twice"):
        clones_of([str(odd.path), str(odd.path / "src")], NOW_MS)
