"""Spark's part of the tour of everything, on a store that a history fills without captures."""

from pathlib import Path

import pytest

import snapkv
from cdcmeta.scheduler.runtime import changefeed_records as records
from snapkv.times import PHYSICAL_MS_MAX
from system.everything import sparked
from system.everything.clone_sparked import started
from system.everything.clones import History, clones_of
from system.everything.filling import Filler
from system.everything.place import CAPTURES, STORE, Place
from system.everything.replication import Sighting, Story
from system.everything.report import CHANGES, PLACES, STATES, Report
from system.tour_clones import Repo, simple_repo

pytestmark = pytest.mark.long

NOW_MS = 2_000_000_000_000


@pytest.fixture
def _one_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tours of this process share one Spark, which ends with it."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "__exit__", lambda *_: None)


def placed(place: Place) -> Story:
    """Write where a table is, as the scheduler does, and return the story that says so."""
    story = Story()
    with place.open_captures() as store:
        space = store.space(records.space_of("default"))
        for label in ("c1", "c2"):
            key = records.place_key("archive", "odd/")
            ts = space.commit(puts={key: records.encoded_place(label, "a test")}).ts
            story.sightings.append(Sighting(f"on {label}", ts, {("archive", "odd/"): label}))
    story.sightings.pop()  # of the present
    snapkv.record(place.captures_url, into=str(place.recorded_captures), name=CAPTURES).catch_up()
    return story


@pytest.mark.usefixtures("_one_spark")
def test_batches_a_stream_and_a_wrong_value(odd: Repo, tmp_path: Path) -> None:
    repos = odd, simple_repo(tmp_path / "simple")
    history = History(clones_of([str(repo.path) for repo in repos], NOW_MS))
    place, clock = Place(tmp_path / "place"), snapkv.ManualClock(0)
    place.folder.mkdir()
    options = {"clock": clock, "max_clock_skew": PHYSICAL_MS_MAX // 1_000}
    with (
        place.open_store(clock) as store,
        Filler(store, clock, history, place.request_bytes_max) as filler,
    ):
        filler.write(len(history.steps))
        into = str(place.recorded)
        snapkv.record(place.store_url, into=into, name=STORE, options=options).catch_up()
        with place.open_store() as aged:
            assert aged.compact(history.moments[-1].date).earliest > history.moments[-2].ts
        store.save("odd/README.md", b"wrong", writer="Mallory")
        report = Report()
        with started() as spark:
            sparked.ask_spark(report, history, placed(place), place, spark)
    found = {(wrong.question.partition(":")[0], wrong.key) for wrong in report.mismatches}
    wanted = {("Spark", "odd/README.md"), ("Spark's stream", "odd/README.md")}
    assert found == wanted, report.mismatches
    newest, before = history.moments[-1].date, history.moments[-2].date
    verdicts = {
        row: {way: answer.equal for way, answer in answers.items()}
        for row, answers in report.rows(STATES).items()
    }
    assert verdicts.pop(newest) == {"Spark": False, "Spark's stream": False}
    assert verdicts[before] == {"Spark": True, "Spark's stream": True}
    assert len(verdicts) == len(history.moments) - 1
    assert all(all(ways.values()) for ways in verdicts.values())
    assert any(wrong.store.endswith(" by Mallory") for wrong in report.mismatches)
    assert len(report.rows(CHANGES)) == 1
    places = report.rows(PLACES)
    assert [answers["Spark"].equal for answers in places.values()] == [True]
