"""The commits that changed keys, or that a writer made, in a span of time; history likewise."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from cli_runner import Cli
from etcd_server import EtcdServer
from hypothesis import given
from hypothesis import strategies as st

import snapkv
import snapkv.reading.history
import snapkv.reading.log
from snapkv.engine.bulk_reads import replayed
from snapkv.engine.contract import WatchBatch
from snapkv.model import Commit
from snapkv.reading.text_search import CommitFilter
from snapkv.times import PHYSICAL_MS_MAX

pytestmark = pytest.mark.slow

SEED = 20_260_131
KEYS = ["a", "b", "b/1", "b/2", "c"]
WRITERS = ["ann@laptop", "bob@desk", "ci"]
NOTES = [None, None, "add column", "Undo rm", "a [note]"]


@pytest.fixture
def cli(any_cli: Cli) -> Cli:
    """Everything here is the same on every engine."""
    return any_cli


def filled(cli: Cli, commits: int = 60) -> list[tuple[Commit, set[str]]]:
    """Make commits of random keys, writers and notes, and ticks; return them with their keys."""
    rng, made = random.Random(SEED), []
    stores = [snapkv.open(cli.url, writer=writer) for writer in WRITERS]
    for _ in range(commits):
        store = rng.choice(stores)
        changed = set(rng.sample(KEYS, rng.choice([0, 0, 1, 1, 2])))
        removed = {key for key in changed if rng.random() < 0.2 and key in store.at()}
        puts = {key: rng.randbytes(4).hex().encode() for key in changed - removed}
        note = rng.choice(NOTES)
        made.append((store.commit(puts=puts, deletes=removed, note=note), changed))
    for store in stores:
        store.close()
    return made


def revisions(cli: Cli, *words: str) -> list[int]:
    return [row["revision"] for row in cli.ok("log", "--json", *words).json]


@pytest.mark.long_on("etcd")
@pytest.mark.parametrize("pages", [(256, 65_536), (3, 8)])
def test_the_log_of_keys_is_that_of_a_model(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, pages: tuple[int, int]
) -> None:
    """With pages of few commits, too, so that a page ends anywhere."""
    print(f"seed {SEED}")
    monkeypatch.setattr(snapkv.reading.log, "LOG_PAGE_COMMITS", pages[0])
    monkeypatch.setattr(snapkv.reading.log, "PAGE_COMMITS_MAX", pages[1])
    made = filled(cli)
    middle, late = made[20][0], made[50][0]

    def expected(keys: set[str], since: int = 0, until: int = 2**62) -> list[int]:
        return [c.revision for c, changed in made if keys & changed and since < c.ts <= until]

    for key in KEYS:
        assert revisions(cli, key) == expected({key})[::-1]
        assert revisions(cli, key, "--oldest-first") == expected({key})
    assert revisions(cli, "a", "b/1", "b/1") == expected({"a", "b/1"})[::-1]
    assert revisions(cli, "--prefix", "b/") == expected({"b/1", "b/2"})[::-1]
    assert revisions(cli, "--prefix", "b", "--oldest-first") == expected({"b", "b/1", "b/2"})
    assert cli("log", "none").code == cli("log", "--prefix", "none").code == 1
    span = ("--since", str(middle.ts), "--until", str(late.ts))
    for keys, words in ({"a"}, ["a"]), ({"b/1", "b/2"}, ["--prefix", "b/"]):
        within = expected(keys, middle.ts, late.ts)
        assert revisions(cli, *words, *span) == within[::-1]
        assert revisions(cli, *words, *span, "-n", "2") == within[::-1][:2]
        assert revisions(cli, *words, *span, "-n", "2", "--oldest-first") == within[:2]


def test_filters_by_writer_and_note_combine(cli: Cli) -> None:
    made = filled(cli)

    def expected(**wanted: Any) -> list[int]:
        keep = CommitFilter(**wanted)
        return [c.revision for c, changed in made[::-1] if keep(c) and (changed or c.note)]

    assert revisions(cli, "--writer", "ann") == expected(writer="ann@laptop")
    assert revisions(cli, "--writer", "*@*") == expected(writer="*@*")
    assert revisions(cli, "--writer", "ann*@desk") == []
    assert revisions(cli, "--grep", "column") == expected(text="add column")
    assert revisions(cli, "--grep", "undo") == []
    assert revisions(cli, "--grep", "undo", "-i") == expected(text="Undo rm")
    assert revisions(cli, "--grep", "[note]") == expected(text="a [note]"), "text, not a pattern"
    both = expected(writer="BOB*", text="ADD", ignore_case=True)
    assert revisions(cli, "--writer", "BOB*", "--grep", "ADD", "-i") == both
    assert both
    assert revisions(cli, "--writer", "ci", "-n", "3") == expected(writer="ci")[:3]
    of_key = [c.revision for c, changed in made[::-1] if "a" in changed and c.writer == "ci"]
    assert revisions(cli, "a", "--writer", "ci") == of_key
    ticks = [c for c, changed in made if not (changed or c.note) and c.writer == "ci"]
    answer = cli.ok("log", "--writer", "ci")
    assert answer.err == f"snapkv: {len(ticks)} ticks left out: --ticks shows them\n"
    assert set(revisions(cli, "--writer", "ci", "--ticks")) == {
        c.revision for c, _ in made if c.writer == "ci"
    }


def test_keys_and_a_prefix_together_are_an_error(cli: Cli) -> None:
    answer = cli("log", "a", "--prefix", "b")
    assert (answer.code, answer.err) == (2, "snapkv: log takes either keys or --prefix\n")


@given(writer=st.text(), pattern=st.text(alphabet="ab*?[]!^-@"), ignore_case=st.booleans())
def test_any_pattern_is_answered(writer: str, pattern: str, ignore_case: bool) -> None:
    wanted = CommitFilter(writer=pattern, ignore_case=ignore_case)
    assert wanted(Commit(1, 0, 1, writer)) in (True, False)
    assert not wanted(Commit(1, 0, 1, None))
    assert CommitFilter(writer=writer)(Commit(1, 0, 1, writer)) or set(writer) & set("*?[")


def test_a_pattern_of_many_stars_is_answered_at_once() -> None:
    assert not CommitFilter(writer="*a" * 40 + "b")(Commit(1, 0, 1, "a" * 4_000))


def test_the_log_of_a_key_reads_its_versions_only(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []

    def counted(*words: Any) -> Iterator[WatchBatch]:
        for batch in replayed(*words):
            read.extend(event.kv.key for event in batch.events)
            yield batch

    with snapkv.open(cli.url) as store:
        store.save("rare", b"1")
        for n in range(300):
            store.save("often", b"%d" % n)
        store.save("rare", b"2")
    monkeypatch.setattr(snapkv.reading.change_replay, "replayed", counted)
    assert len(revisions(cli, "rare")) == 2
    assert len(read) == 2


def test_a_write_between_two_commits_belongs_to_the_later(etcd_cli: Cli, etcd: EtcdServer) -> None:
    """As in every read of a store: its timestamp is the one that shows it."""
    etcd_cli.ok("put", "a", "1")
    etcd.gateway.put(b"default/data/a", b"other")
    etcd.gateway.put(b"default/data/a", b"another")
    etcd_cli.ok("put", "b", "2")
    etcd.gateway.put(b"default/data/a", b"after all commits")
    newest, oldest = revisions(etcd_cli, "--prefix", "")
    assert revisions(etcd_cli, "a") == revisions(etcd_cli, "--prefix", "a") == [newest, oldest]


def test_what_was_compacted_is_in_the_archive(cli: Cli) -> None:
    clock = snapkv.ManualClock(1_700_000_000_000)
    with snapkv.open(
        cli.url, clock=clock, max_clock_skew=PHYSICAL_MS_MAX // 1_000, writer="ann"
    ) as store:
        made = [(clock.advance(1_000), store.save(key, b"1"))[1] for key in "abab"]
        cli.ok("record", "--into", "./archive", "--once")
        clock.advance(1_000)
        store.save("c", b"1")
    cli.ok("compact", str(made[2]), "--past-recordings", "--yes")
    assert len(revisions(cli, "a")) == 0, "what the oldest commit left did is not known"
    assert len(revisions(cli, "--prefix", "b")) == 1
    assert len(revisions(cli, "a", "--archive", "./archive")) == 2
    assert len(revisions(cli, "--prefix", "", "--archive", "./archive")) == 5
    assert len(revisions(cli, "a", "--store", "archive:./archive")) == 2
    answer = cli("log", "a", "--since", str(made[0]))
    assert answer.code == 4
    assert "no --archive has it" in answer.err
    answer = cli("history", "a", "--since", str(made[0]))
    assert answer.code == 4


def test_writes_of_other_programs_have_a_log(etcd_cli: Cli, etcd: EtcdServer) -> None:
    cli, put = etcd_cli, etcd.gateway.put
    cli.ok("tick", "--writer", "ticker")
    put(b"/r/a", b"1")
    put(b"/r/b", b"1")
    put(b"/other", b"1")
    first = cli.ok("tick", "--writer", "ticker", "--raw").out.strip()
    put(b"/r/a", b"2")
    cli.ok("tick", "--writer", "ticker")
    put(b"/r/a", b"not seen by a tick")
    observed = ("--observe", "/r/")
    rows = cli.ok("log", "--json", *observed).json
    assert [row["writer"] for row in rows] == [None] * 3
    written = [row["revision"] for row in rows]
    assert written == sorted(written, reverse=True)
    assert [row["timestamp"] for row in rows[1:]] == [first, first]
    assert revisions(cli, "/r/a", *observed) == [written[0], written[2]]
    assert revisions(cli, "/r/a", "/r/b", "--oldest-first", *observed) == written[::-1]
    assert revisions(cli, "--prefix", "/r/b", *observed) == [written[1]]
    assert revisions(cli, "--since", first, *observed) == written[:1]
    assert revisions(cli, "--until", first, "-n", "1", *observed) == written[1:2]
    assert [r["revision"] for r in cli.ok("history", "/r/a", "--json", *observed).json] == [
        written[0],
        written[2],
    ]
    assert cli("log", "/elsewhere", *observed).code == 2


def test_history_in_a_span_of_time(cli: Cli) -> None:
    times = [cli.ok("put", "a", str(n), "--raw").out.strip() for n in range(5)]

    def values(*words: str) -> list[str]:
        return [row["value"] for row in cli.ok("history", "a", "--json", *words).json]

    assert values("--since", times[1]) == ["4", "3", "2"]
    assert values("--until", times[1]) == ["1", "0"]
    assert values("--since", times[0], "--until", times[3], "--oldest-first") == ["1", "2", "3"]
    assert values("--since", times[0], "-n", "1") == ["4"]
    assert values("--since", "now") == values("--since", times[4]) == []
    assert cli("history", "none", "--since", times[0]).code == 1
