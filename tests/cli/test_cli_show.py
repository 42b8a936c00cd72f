"""What one commit did: show, and log with changes; who wrote each part of a value: blame."""

import random
import re
from typing import Any

import pytest
from cli_runner import Cli
from etcd_server import EtcdServer

import snapkv
import snapkv.reading.log
from snapkv.times import PHYSICAL_MS_MAX

pytestmark = pytest.mark.slow

SEED = 7
KEYS = ["a", "b", "b/1", "c"]


@pytest.fixture
def cli(any_cli: Cli) -> Cli:
    """Everything here is the same on every engine."""
    return any_cli


def filled(cli: Cli) -> list[tuple[snapkv.Commit, dict[str, tuple[Any, Any]]]]:
    """Make random commits and ticks; return them with the values before and after."""
    rng, made = random.Random(SEED), []
    state: dict[str, str] = {}
    with snapkv.open(cli.url, writer="ann@laptop") as store:
        for _ in range(40):
            changed = rng.sample(KEYS, rng.choice([0, 1, 1, 2, 3]))
            after = {key: rng.choice([None, "x", rng.randbytes(3).hex()]) for key in changed}
            after = {key: new for key, new in after.items() if new or key in state}
            commit = store.commit(
                puts={key: new.encode() for key, new in after.items() if new is not None},
                deletes=[key for key, new in after.items() if new is None],
            )
            made.append((commit, {key: (state.get(key), after[key]) for key in sorted(after)}))
            state = {k: v for k, v in (state | after).items() if v is not None}
    return made


def rows(changes: dict[str, tuple[Any, Any]]) -> list[dict[str, Any]]:
    return [
        {"key": key, "before": before, "after": after}
        for key, (before, after) in changes.items()
        if before != after
    ]


@pytest.mark.long_on("etcd")
@pytest.mark.parametrize("pages", [(256, 4_096, 64), (3, 8, 2)])
def test_every_commit_is_shown_as_in_a_model(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, pages: tuple[int, int, int]
) -> None:
    print(f"seed {SEED}")
    monkeypatch.setattr(snapkv.reading.log, "LOG_PAGE_COMMITS", pages[0])
    monkeypatch.setattr(snapkv.reading.log, "DETAILED_COMMITS_MAX", pages[1])
    monkeypatch.setattr(snapkv.reading.log, "PAIRS_MAX", pages[2])
    made = filled(cli)
    wanted = [(commit.revision, rows(changes)) for commit, changes in made]
    logged = cli.ok("log", "-p", "--ticks", "--oldest-first", "--json").json
    assert [(row["revision"], row["changes"]) for row in logged] == wanted
    logged = cli.ok("log", "-p", "--json").json
    kept = [(c.revision, rows(changes)) for c, changes in made if changes]
    assert [(row["revision"], row["changes"]) for row in logged] == kept[::-1]
    logged = cli.ok("log", "-p", "--json", "b", "b/1").json
    mine = [
        (c.revision, rows({k: v for k, v in changes.items() if k in ("b", "b/1")}))
        for c, changes in made
        if {"b", "b/1"} & set(changes)
    ]
    assert [(row["revision"], row["changes"]) for row in logged] == mine[::-1]
    for commit, changes in made[::9]:
        for asked in (str(commit.ts), f"rev:{commit.revision}"):
            (row,) = cli.ok("show", asked, "--json").json
            assert (row["revision"], row["changes"]) == (commit.revision, rows(changes))
    (row,) = cli.ok("show", "--json").json
    assert row["revision"] == kept[-1][0]


def test_show_says_who_when_and_why(cli: Cli) -> None:
    cli.ok("put", "a", "1", "b", "x")
    said = ("--note", "why\nnot", "--writer", "bob@desk", "--meta", "ticket=17")
    cli.ok("put", "a", "2", "c", "3", *said)
    cli.ok("tick")
    answer = cli.ok("show", "--raw")
    (facts,) = cli.ok("show", "--json").json
    assert answer.lines == [
        f"commit     {facts['timestamp']}",
        f"revision   {facts['revision']}",
        "writer     bob@desk",
        'note       "why\\nnot"',
        "meta       ticket=17",
        "",
        '~ a  "1" -> "2"',
        '+ c  "3"',
    ]
    assert answer.err == "", "it is the newest that is not a tick"
    shown = cli.ok("show").lines
    assert shown[0] == f"commit     {facts['time']}"
    assert shown[1] == f"timestamp  {facts['timestamp']}"
    assert cli.ok("show", "--stat").lines[-1] == "2 keys: 1 added, 0 removed, 1 changed"
    assert cli.ok("show", "--name-only", "--json").json[0]["changes"] == [
        {"key": "a"}, {"key": "c"}
    ]  # fmt: skip
    assert facts["meta"] == {"ticket": "17"}
    head, *table = cli.ok("show", "-o", "table").lines
    assert (head.split(), len(table)) == (["KEY", "CHANGE"], 2)
    assert cli.ok("show", "--prefix", "c").lines[-1] == '+ c  "3"'
    assert cli.ok("show", "--prefix", "c", "--json").json[0]["changes"] == [
        {"key": "c", "before": None, "after": "3"}
    ]


def test_a_time_without_a_commit_is_the_commit_in_force(cli: Cli) -> None:
    first = cli.ok("put", "a", "1", "--json").json[0]
    tick = cli.ok("tick", "--json").json[0]
    later = str(int(tick["timestamp"]) + 5 * 2**18)
    answer = cli.ok("show", later, "--json")
    assert answer.json[0]["revision"] == first["revision"]
    asked = snapkv.format_time(int(later))
    assert answer.err == f"snapkv: no commit at {asked}; this one was in force\n"
    answer = cli.ok("show", tick["timestamp"])
    assert answer.lines[-1] == "(it changed no keys)", "a tick that was asked for"
    assert answer.err == ""
    answer = cli("show", "-1d")
    assert answer.code == 1
    assert "the store has no commit up to 20" in answer.err


def test_an_empty_store_has_no_commit_to_show(cli: Cli) -> None:
    cli.ok("tick")
    answer = cli("show")
    assert (answer.code, answer.err) == (1, "snapkv: the store has no commit yet\n")


def test_log_in_text_and_table(cli: Cli) -> None:
    cli.ok("put", "a", "1", "--note", "first")
    cli.ok("put", "a", "2", "b", "x")
    cli.ok("rm", "b")
    with snapkv.open(cli.url) as store:
        store.commit(note="only a note")
    first, second, third, fourth = cli.ok("log", "--oldest-first").lines
    assert cli.ok("log", "-p", "--oldest-first").lines == [
        *(first, '  + a  "1"', ""),
        *(second, '  ~ a  "1" -> "2"', '  + b  "x"', ""),
        *(third, '  - b  "x"', ""),
        *(re.sub("  +", "  ", fourth), ""),
    ]
    assert cli.ok("log", "--stat", "-n", "1", "a").lines[1:] == [
        "  ~ a  +1 -1 lines",
        "  1 key: 0 added, 0 removed, 1 changed",
        "",
    ]
    head, *table = cli.ok("log", "-p", "-o", "table").lines
    assert head.split() == ["TIME", "REVISION", "WRITER", "NOTE", "META", "KEY", "CHANGE"]
    assert len(table) == 5
    assert cli.ok("log", "--name-only", "--json", "-n", "2").json[1]["changes"] == [{"key": "b"}]


def test_what_the_oldest_commit_left_did_is_not_known(cli: Cli) -> None:
    clock = snapkv.ManualClock(1_700_000_000_000)
    skew = PHYSICAL_MS_MAX // 1_000
    with snapkv.open(cli.url, clock=clock, max_clock_skew=skew) as store:
        made = [(clock.advance(1_000), store.save("a", b"%d" % n))[1] for n in range(3)]
    cli.ok("record", "--into", "./archive", "--once")
    cli.ok("compact", str(made[1]), "--past-recordings", "--yes")
    newest, oldest = cli.ok("log", "-p", "--json").json
    assert newest["changes"] == [{"key": "a", "before": "1", "after": "2"}]
    assert oldest["changes"] is None
    assert "  (what it changed was compacted)" in cli.ok("log", "-p").lines
    answer = cli("show", str(made[1]))
    assert answer.code == 4
    assert "was compacted" in answer.err
    (row,) = cli.ok("show", str(made[1]), "--json", "--archive", "./archive").json
    assert row["changes"] == [{"key": "a", "before": "0", "after": "1"}]


def test_writes_of_other_programs_are_shown(etcd_cli: Cli, etcd: EtcdServer) -> None:
    cli, put = etcd_cli, etcd.gateway.put
    cli.ok("tick")
    put(b"/r/a", b"one")
    put(b"/r/b", b"x")
    put(b"/r/a", b"two")
    tick = cli.ok("tick", "--raw").out.strip()
    put(b"/r/a", b"three")
    cli.ok("tick")
    observed = ("--observe", "/r/", "--json")
    rows = cli.ok("log", "-p", *observed).json
    assert [(row["writer"], row["changes"]) for row in rows] == [
        (None, [{"key": "/r/a", "before": "two", "after": "three"}]),
        (None, [{"key": "/r/a", "before": "one", "after": "two"}]),
        (None, [{"key": "/r/b", "before": None, "after": "x"}]),
        (None, [{"key": "/r/a", "before": None, "after": "one"}]),
    ]
    for row in rows:
        assert cli.ok("show", f"rev:{row['revision']}", *observed).json == [row]
    assert cli.ok("show", *observed).json == rows[:1]
    assert cli.ok("show", tick, *observed).json == rows[1:2], "the newest write that it stamps"
    others = f"rev:{rows[2]['revision']}, rev:{rows[3]['revision']}"
    assert (
        cli.ok("show", tick, *observed).err == f"snapkv: 2 more writes have this time: {others}\n"
    )
    assert cli.ok("show", f"rev:{rows[1]['revision']}", *observed).err.count("more") == 0
    of_b = cli.ok("show", tick, "--prefix", "/r/b", *observed).err
    assert of_b == f"snapkv: 1 more write has this time: rev:{rows[2]['revision']}\n"
    shown = cli.ok("show", "--observe", "/r/").lines
    assert not any(line.startswith("writer") for line in shown)
    assert shown[-1] == '~ /r/a  "two" -> "three"'
    assert cli("show", "rev:1", *observed).code == 1
    between = (f"rev:{rows[3]['revision']}", f"rev:{rows[1]['revision']}")
    found = cli.ok("log", "--since", between[0], "--until", between[1], *observed).json
    assert [row["revision"] for row in found] == [row["revision"] for row in rows[1:3]]
    watched = cli.ok("watch", "--observe", "/r/", "--since", "0", "-n", "2", "--timeout", "20s")
    assert '  ~ /r/a  "one" -> "two"' in watched.lines


def test_blame_names_the_commit_of_each_path(cli: Cli) -> None:
    cli.ok("put", "app", '{"image": "web:1", "env": {"A": 1}}')
    then = cli.ok("put", "app", '{"image": "web:2", "env": {"A": 1}}', "--raw").out.strip()
    cli.ok(
        "put",
        "app",
        '{"image": "web:2", "env": {"A": 1, "B": 2}}',
        "--writer",
        "bob",
        "--note",
        "b",
    )
    first, second, third = [
        row["revision"] for row in cli.ok("log", "--oldest-first", "--json").json
    ]
    found = cli.ok("blame", "app", "--json").json
    assert [(row["place"], row["text"], row["revision"]) for row in found] == [
        ("image", "web:2", second),
        ("env.A", "1", first),
        ("env.B", "2", third),
    ]
    assert (found[2]["writer"], found[2]["note"]) == ("bob", "b")
    lines = [line.split("  ", 1)[1] for line in cli.ok("blame", "app").lines]
    assert lines == [
        f"{second}  ann@laptop  image: web:2",
        f"{first}  ann@laptop  env.A: 1",
        f"{third}  bob         env.B: 2",
    ]
    earlier = cli.ok("blame", "app", "--at", then, "--json").json
    assert [row["place"] for row in earlier] == ["image", "env.A"]
    assert cli("blame", "none").code == 1
    assert cli("blame", "app", "--at", "-1d").code == 1
    cli.ok("rm", "app")
    assert cli("blame", "app").code == 1


def test_blame_of_text_is_by_line(cli: Cli) -> None:
    cli.ok("put", "notes", "".join(f"line {n}\n" for n in range(1, 11)))
    cli.ok("put", "notes", "".join(f"line {n}\n" for n in (1, 2, "3\x1b[31m", *range(4, 11))))
    lines = [line.split("ann@laptop  ")[1] for line in cli.ok("blame", "notes").lines]
    assert lines[1:3] == [" 2  line 2", " 3  line 3\\u001b[31m"]
    assert lines[9] == "10  line 10"
    by_line = cli.ok("blame", "notes", "--json").json
    assert len({row["revision"] for row in by_line}) == 2
    assert by_line[2]["revision"] > by_line[1]["revision"]
    head, *table = cli.ok("blame", "notes", "-o", "table").lines
    assert head.split() == ["TIME", "REVISION", "WRITER", "PLACE", "VALUE"]
    assert len(table) == 10


def test_blame_reads_values_as_is_said(cli: Cli) -> None:
    cli.ok("put", "c", "a: 1\nb: 2\n")
    cli.ok("put", "c", "a: 1\nb: 3\n")
    assert [row["place"] for row in cli.ok("blame", "c", "--json").json] == ["a", "b"]
    assert [row["place"] for row in cli.ok("blame", "c", "--as", "text", "--json").json] == [1, 2]
    upper = cli.ok("blame", "c", "--decoder", "tr a-z A-Z", "--json").json
    assert [row["place"] for row in upper] == ["A", "B"]
