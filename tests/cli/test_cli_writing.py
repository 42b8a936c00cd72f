"""put, rm, restore, and what keeps a store, in this process."""

import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import Cli

import snapkv
from snapkv.engine.contract import KeyValue
from snapkv.store.diagnostics import CheckReport
from snapkv.timeline import Moment
from snapkv.times import PHYSICAL_MS_MAX

pytestmark = pytest.mark.slow


def test_put_takes_pairs_files_and_the_standard_input(any_cli: Cli, tmp_path: Path) -> None:
    cli = any_cli
    cli.ok("put", "a", "1", "b", "2", "c", "-", "--note", "three", stdin=b"\x00\n")
    (tmp_path / "value").write_bytes(b"\xff\r\n")
    cli.ok("put", "d", "@value")
    cli.ok("put", "--", "e", "-5")
    with snapkv.open(cli.url) as store:
        assert dict(store.at().items()) == {
            "a": b"1",
            "b": b"2",
            "c": b"\x00\n",
            "d": b"\xff\r\n",
            "e": b"-5",
        }
        notes = [commit.note for commit in store.commits()]
        assert notes[:2] == ["three", None]


META = ("--meta", "request=r-17", "--meta", "text=a = b")


def test_facts_for_the_log(any_cli: Cli) -> None:
    """--meta of each command that writes, in the log and the history, for programs and people."""
    cli, facts = any_cli, {"request": "r-17", "text": "a = b"}
    cli.ok("put", "a", "1")
    put = cli.ok("put", "a", "2", "--note", "why", "--writer", "alice", *META, "--json").json[0]
    assert (put["writer"], put["note"], put["meta"]) == ("alice", "why", facts)
    cli.ok("rm", "a", *META)
    assert cli.ok("restore", put["timestamp"], "-y", *META, "--json").json[0]["commit"]["meta"]
    cli.ok("dump", "all")
    cli.ok("load", "all", "--replace", "-y", *META)
    rows = cli.ok("log", "--json").json
    assert [row.get("meta") for row in rows] == [facts] * 4 + [None]
    assert "meta" not in rows[-1]
    assert cli.ok("history", "a", "--json").json[-2]["meta"] == facts
    expected = ["alice", '"why"', 'request=r-17 text="a = b"']
    for shown in (cli.ok("log"), cli.ok("history", "a")):
        assert re.split("  +", shown.lines[-2])[-3:] == expected
    watched = cli.ok("watch", "--since", "0", "--timeout", "0s", "--json").json
    assert [row.get("meta") for row in watched] == [row.get("meta") for row in rows][::-1]


def test_facts_that_make_no_sense(cli: Cli) -> None:
    wrong = {
        ("request",): "--meta takes NAME=TEXT, not 'request'",
        ("=r-17",): "--meta takes NAME=TEXT, not '=r-17'",
        ("a=1", "a=2"): "--meta takes each name once, not 'a' twice",
    }
    for facts, message in wrong.items():
        options = [word for fact in facts for word in ("--meta", fact)]
        for command in (["put", "a", "1"], ["import-prefix", "r/"], ["load", "-"]):
            answer = cli(*command, *options)
            assert (answer.code, answer.err) == (2, f"snapkv: {message}\n")
    assert not (cli.place / "meta").exists(), "no store was made"
    cli.ok("put", "a", "1", "--meta", "empty=")
    assert cli.ok("log", "--json").json[0]["meta"] == {"empty": ""}
    assert cli.ok("log").out.endswith('empty=""\n')
    assert cli("put", "a", "2", "--meta", "a=" + "x" * 5_000).code == 2
    assert cli.ok("get", "a").out == "1"


@pytest.mark.parametrize(
    ("source", "prefix"),
    [("lmdb:./none", "r/"), ("lmdb:./source", "absent/"), ("lmdb:./source", "default/data/")],
)
def test_an_import_that_cannot_begin_leaves_no_store(cli: Cli, source: str, prefix: str) -> None:
    with snapkv.open("lmdb:./source") as store:
        store.save("a", b"1")
    assert cli("import-prefix", prefix, "--from", source).code != 0
    assert not (cli.place / "meta").exists()


def test_writes_print_the_time_that_finds_them(any_cli: Cli) -> None:
    cli = any_cli
    for at in (cli.ok("put", "a", "1").out, cli.ok("put", "a", "2", "--raw").out):
        assert cli.ok("get", "a", "--at", at.strip()).code == 0
    written = cli.ok("put", "a", "3", "--json").json[0]
    assert cli.ok("get", "a", "--at", written["timestamp"]).out == "3"
    assert cli.ok("get", "a", "--at", written["time"]).out == "3"


@pytest.mark.parametrize(
    "words",
    [
        ["a"],
        ["a", "1", "b"],
        ["a", "1", "a", "2"],
        ["a", "-", "b", "-"],
        ["a", "1", "@value"],
        ["a", "@missing"],
        ["a", "@."],
        ["a", "1", "b", "2", "--if-revision", "3"],
        [],
    ],
    ids=" ".join,
)
def test_a_put_that_makes_no_sense_makes_no_store(cli: Cli, words: list[str]) -> None:
    answer = cli("put", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("snapkv: ")
    assert answer.err.count("\n") == 1
    assert not (cli.place / "meta").exists()


def test_guards_end_with_conflict(any_cli: Cli) -> None:
    cli = any_cli
    cli.ok("put", "a", "1", "--if-absent")
    revision = str(cli.ok("get", "a", "--json").json[0]["revision"])
    assert cli("put", "b", "1", "a", "2", "--if-absent").code == 3
    assert cli("put", "a", "2", "--if-revision", "1").code == 3
    assert cli("rm", "a", "--if-revision", "1").code == 3
    assert cli.ok("ls", "-l", "--json").json[0]["value"] == "1"
    cli.ok("put", "a", "2", "--if-revision", revision)
    assert cli.ok("get", "a").out == "2"


def test_rm_removes_all_or_nothing(any_cli: Cli) -> None:
    cli = any_cli
    cli.ok("put", "a", "1", "b", "2", "c/1", "3")
    assert cli("rm", "a", "zz").code == 1
    assert cli.ok("ls").lines == ["a", "b", "c/1"]
    cli.ok("rm", "a", "zz", "--force")
    cli.ok("rm", "b", "--note", "gone")
    assert cli("rm", "--prefix", "zz", "--yes").code == 1
    cli.ok("rm", "--prefix", "zz", "--yes", "--force")
    cli.ok("rm", "--prefix", "c/", "--yes")
    assert cli.ok("ls").lines == []
    assert cli("rm").code == cli("rm", "a", "--prefix", "b").code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["rm", "--prefix", "a"],
        ["restore", "-1h", "--before-first"],
        ["compact", "-1h"],
        ["load", "d", "--replace"],
    ],
)
def test_without_a_terminal_a_question_needs_yes(any_cli: Cli, words: list[str]) -> None:
    cli = any_cli
    cli.ok("put", "a", "1")
    cli.ok("dump", "d")
    answer = cli(*words, stdin=b"y\n")
    assert (answer.code, answer.out) == (2, "")
    assert "pass --yes" in answer.err
    assert cli.ok("get", "a").out == "1"
    cli.ok(*words, "--yes")


def test_restore_shows_and_makes_the_past_present(any_cli: Cli) -> None:
    cli = any_cli
    then = cli.ok("put", "a", "1", "b", "2", "--raw").out.strip()
    cli.ok("put", "a", "x", "c", "3", *(word for n in range(30) for word in (f"k{n:02}", "v")))
    cli.ok("rm", "b")
    answer = cli.ok("restore", then, "--prefix", "b", "--yes", "--json")
    assert answer.json[0]["keys"] == 1
    answer = cli.ok("restore", then, "-y", "--note", "back")
    assert '~ a  "x" -> "1"' in answer.err
    assert "... and 12 more" in answer.err
    assert cli.ok("ls", "-l", "--json").json[0]["value"] == "1"
    assert cli.ok("ls").lines == ["a", "b"]
    assert cli.ok("log", "-n", "1", "--json").json[0]["note"] == "back"
    (nothing,) = cli.ok("restore", then, "--json").json
    assert (nothing["keys"], nothing["commit"]) == (0, None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["1", "xyz"], "'xyz' is not a nonce"),
        (["1", ""], "nonce"),
        (["soon", "00"], "int"),
        (["-1", "00"], "-1"),
        ([str(2**63), "00"], "ahead"),
    ],
)
def test_resolve_refuses_what_names_no_commit(any_cli: Cli, words: list[str], says: str) -> None:
    any_cli.ok("put", "a", "1")
    answer = any_cli("resolve", *words)
    assert (answer.code != 0, answer.out, says in answer.err) == (True, "", True), answer.err
    assert any_cli.ok("log").lines != []


def test_dump_and_load_carry_everything(any_cli: Cli, tmp_path: Path) -> None:
    cli = any_cli
    then = cli.ok("put", "a", "1", "--raw").out.strip()
    cli.ok("put", "b", "-", stdin=b"\xff")
    assert cli.ok("dump", "d", "--json").json[0]["keys"] == 2
    cli.ok("dump", "old", "--at", then)
    cli.ok("load", "d", "--store", "lmdb:./second", "--note", "moved")
    assert cli.ok("get", "b", "--store", "lmdb:./second").raw == b"\xff"
    assert cli("load", "old", "--store", "lmdb:./second").code == 3
    cli.ok("load", "old", "--store", "lmdb:./second", "--replace", "--yes")
    assert cli.ok("ls", "--store", "lmdb:./second").lines == ["a"]
    stream = cli.ok("dump", "-").raw
    assert stream == (tmp_path / "d").read_bytes()
    cli.ok("load", "-", "--store", "lmdb:./third", stdin=stream)
    assert cli.ok("ls", "--store", "lmdb:./third").lines == ["a", "b"]


def test_a_failed_dump_leaves_what_was_there(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("put", "a", "1")
    (tmp_path / "d").write_text("precious")

    def scan(*_: object, **__: object) -> Iterator[list[KeyValue]]:
        yield [KeyValue(b"default/data/a", b"1", 2, 2, 1)]
        raise snapkv.CompactedError(1 << 60, 2 << 60)

    with monkeypatch.context() as patch:
        patch.setattr(Moment, "pages", scan)
        assert cli("dump", "d").code == 4
    assert (tmp_path / "d").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "meta"]
    assert cli("dump", "nowhere/d").code == 2


def test_backup_copies_a_live_store_of_lmdb(any_cli: Cli, tmp_path: Path) -> None:
    cli = any_cli
    cli.ok("put", "a", "1")
    answer = cli("backup", "copy", "--json")
    if cli.engine == "etcd":
        assert (answer.code, (tmp_path / "copy").exists()) == (2, False)
        assert "etcdctl snapshot save" in answer.err
        return
    assert answer.json == [{"path": "copy", "url": "lmdb:copy"}]
    cli.ok("put", "a", "2")
    assert cli.ok("get", "a", "--store", "lmdb:copy").out == "1"
    assert cli.ok("log", "--store", "lmdb:copy", "--raw").lines == cli.ok("log", "--raw").lines[1:]
    answer = cli("backup", "copy")
    assert (answer.code, "exists" in answer.err) == (2, True)
    assert cli("backup", "other", "--store", "lmdb:none").code == 5


def test_who_may_read_a_dump_and_a_backup(cli: Cli, tmp_path: Path) -> None:
    cli.ok("put", "a", "1")

    def mode_of(path: str) -> int:
        return stat.S_IMODE((tmp_path / path).stat().st_mode)

    for words, mode in (
        ([], 0o600),
        (["--mode", "640"], 0o640),
        ([], 0o640),
        (["--mode", "0o600"], 0o600),
    ):
        cli.ok("dump", "d", *words)
        assert mode_of("d") == mode, words
    cli.ok("backup", "plain")
    cli.ok("backup", "shared", "--mode", "0660")
    assert (mode_of("plain"), mode_of("plain/data.mdb")) == (0o700, 0o600)
    assert (mode_of("shared"), mode_of("shared/data.mdb")) == (0o770, 0o660)
    for wrong in ("rw", "888", "", "-640", "1" * 99):
        answer = cli("dump", "new", "--mode", wrong)
        assert (answer.code, "such as 640" in answer.err) == (2, True)
    answer = cli("backup", "new", "--mode", "400")
    assert (answer.code, "mode must be 0o600" in answer.err) == (2, True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("how", ["junk", "flipped", "cut off", "longer"])
@pytest.mark.parametrize("file", ["d", "-"])
def test_a_damaged_dump_makes_no_store(any_cli: Cli, tmp_path: Path, file: str, how: str) -> None:
    cli = any_cli
    cli.ok("put", "a", "1")
    dump = cli.ok("dump", "-").raw
    damaged = {
        "junk": b"junk",
        "flipped": dump[:-20] + bytes([dump[-20] ^ 1]) + dump[-19:],
        "cut off": dump[:-1],
        "longer": dump + b"\0",
    }[how]
    (tmp_path / "d").write_bytes(damaged)
    other = ("--store", cli.url, "--name", "other")
    if cli.engine == "lmdb":
        other = ("--store", "lmdb:./other")
    refused = cli("load", file, *other, stdin=damaged)
    assert (refused.code, "the dump" in refused.err or "not a dump" in refused.err) == (5, True)
    assert cli("ls", *other).code == 5
    assert not (tmp_path / "other").exists()
    cli.ok("load", "-", *other, stdin=dump)
    assert cli.ok("ls", *other).lines == ["a"]
    assert cli("load", file, "--replace", "--yes", stdin=damaged).code == 5
    assert cli.ok("ls").lines == ["a"]  # a store that existed stays


def test_a_dump_that_is_too_large_makes_no_store(cli: Cli, tmp_path: Path) -> None:
    with snapkv.open(
        f"lmdb:{tmp_path / 'large'}", request_bytes_max=80 << 20, durability="none"
    ) as store:
        store.commit(puts={"a": bytes(33 << 20), "b": bytes(33 << 20)})
        store.dump(tmp_path / "d")
    refused = cli("load", "d", "--store", "lmdb:./other")
    assert (refused.code, "the dump in bytes" in refused.err) == (2, True), refused.err
    assert not (tmp_path / "other").exists()


def test_load_refuses_what_is_no_dump(any_cli: Cli, tmp_path: Path) -> None:
    cli = any_cli
    assert cli("load", "missing").code == 2
    assert cli("status").code == 5
    assert not (tmp_path / "meta").exists()
    cli.ok("put", "a", "1")
    (tmp_path / "d").write_text("not a dump")
    answer = cli("load", "d", "--replace", "--yes")
    assert (answer.code, answer.err.count("\n")) == (5, 1)
    assert cli.ok("get", "a").out == "1"


def test_a_compaction_that_forgets_nothing_says_so(any_cli: Cli) -> None:
    any_cli.ok("put", "a", "1")
    answer = any_cli.ok("compact", "-0s", "--yes")
    assert answer.lines == ["all history remains"]
    assert answer.err.endswith("no commit is old enough; the newest minute or so is always kept\n")
    assert any_cli.ok("compact", "-0s", "--yes", "--json").json[0]["timestamp"] == "0"


def test_an_import_of_a_path_that_does_not_exist_says_so(cli: Cli) -> None:
    for words in (["nothere"], ["nothere.json"], ["nothere/"]):
        answer = cli("import", *words)
        assert (answer.code, answer.out) == (2, "")
        assert f"{words[0]!r} does not exist: name a folder" in answer.err


def test_what_was_compacted_is_told_as_such(any_cli: Cli) -> None:
    cli = any_cli
    clock = snapkv.ManualClock(1_700_000_000_000)
    stamps = []
    with snapkv.open(cli.url, clock=clock, max_clock_skew=PHYSICAL_MS_MAX // 1_000) as store:
        for n in range(4):
            clock.advance(1_000)
            stamps.append(store.save("a", b"%d" % n))
    third = "2023-11-14T22:13:23.000Z"
    assert cli.ok("compact", third, "--yes").out == f"{third}\n"
    assert cli.ok("get", "a", "--at", third).out == "2"
    for words in (["get", "a"], ["ls"], ["dump", "d"]):
        answer = cli(*words, "--at", "2023-11-14T22:13:22Z")
        assert (answer.code, answer.out) == (4, "")
        assert answer.err.endswith(f"; the earliest that remains is {third} ({stamps[2]})\n")
    for words in (["diff"], ["restore", "-y"], ["watch", "--since"], ["log", "--since"]):
        assert cli(*words, "2023-11-14T22:13:22Z").code == 4
    assert cli.ok("compact", "2023-11-14T22:13:22Z", "-y", "--json").json[0]["time"] == third
    assert [row["value"] for row in cli.ok("history", "a", "--json").json] == ["3", "2"]
    assert cli("compact", "now", "--yes").code == 2


def test_check_ends_with_one_on_problems(any_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = any_cli
    cli.ok("put", "a", "1")
    assert cli.ok("check").out.startswith("no problems in ")
    report = CheckReport(3, 1, ("revision 4 is odd",))
    monkeypatch.setattr(snapkv.SnapshotKV, "check", lambda *_, **__: report)
    answer = cli("check")
    assert (answer.code, answer.lines) == (
        1,
        ["revision 4 is odd", "1 problem in 3 commits and 1 key"],
    )
    assert cli("check", "--json").json == [
        {"commits": 3, "keys": 1, "problems": ["revision 4 is odd"]}
    ]


def test_status_shows_facts(any_cli: Cli) -> None:
    cli = any_cli
    written = cli.ok("put", "a", "1", "--json").json[0]
    facts = cli.ok("status", "--json").json[0]
    assert facts["newest"]["timestamp"] == written["timestamp"]
    assert facts["keys"] == 1
    assert facts["engine"]["engine"] == cli.engine
    rows = dict(line.split(maxsplit=1) for line in cli.ok("status", "--raw").lines)
    assert rows["newest"] == written["timestamp"]
    assert (rows["newest_writer"], rows["writers.ann@laptop"]) == ("ann@laptop", "1")
    assert float(rows["newest_age_s"]) < 3_600
    assert (rows["sessions"], facts["sessions"], facts["leaders"]) == ("0", 0, {})


def test_sessions_and_leaders_are_shown_as_long_as_they_live(any_cli: Cli) -> None:
    cli = any_cli
    cli.ok("put", "a", "1")
    with snapkv.open(cli.url, writer="bob@host") as store:
        with store.session(60, b"host:80") as session:
            store.election("jobs/daily", session=session).campaign(b"v", timeout=30)
            with store.session(30):
                first, second = cli.ok("sessions", "--json").json
                shown = [re.split(r"  +", line)[1:] for line in cli.ok("sessions").lines]
                rows = dict(line.split(maxsplit=1) for line in cli.ok("status").lines)
        assert [first["writer"], first["leads"], first["value"]] == [
            "bob@host",
            ["jobs/daily"],
            "host:80",
        ]
        assert (first["ttl_s"], second["ttl_s"], second["leads"]) == (60.0, 30.0, [])
        assert first["started"]["time"] <= second["started"]["time"]
        assert shown == [
            ["bob@host", "jobs/daily", "60 s", '"host:80"'],
            ["bob@host", "-", "30 s", '""'],
        ]
        assert (rows["sessions"], rows["leaders.jobs/daily"]) == ("2", "bob@host")
    none = cli.ok("sessions")
    assert (none.out, none.err) == ("", "no live sessions\n")


# --- prefixes that do not end a name ---

LONGER = (
    "snapkv: warning: prefix 'a/x' also matches 'a/x-old' and 1 more key, which are not below "
    "'a/x/'"
)


def test_a_preview_says_first_that_a_prefix_matches_longer_names(any_cli: Cli) -> None:
    cli = any_cli
    cli.ok("put", "a/x", "1", "a/x/below", "1", "a/x2", "1", "a/x-old", "1", "a/other", "1")
    cli.ok("put", "a/x", "2", "a/x/below", "2", "a/x2", "2", "a/x-old", "2", "a/other", "2")
    answer = cli("restore", "rev:3", "--prefix", "a/x", "--dry-run")
    assert answer.err.splitlines()[1] == LONGER
    answer = cli("restore", "rev:3", "--prefix", "a/x")
    assert answer.err.splitlines()[1] == LONGER
    assert "Restore" in answer.err.splitlines()[-1]
    assert cli("rm", "--prefix", "a/x").err.splitlines()[0] == LONGER
    assert cli.ok("diff", "rev:3", "--prefix", "a/x").err.splitlines()[-1] == LONGER
    replace = cli("import-prefix", "a/", "--under", "a/x", "--strip", "--replace")
    assert replace.err.splitlines()[0] == LONGER
    assert cli.ok("restore", "rev:3", "--prefix", "a/x", "--yes").err.splitlines()[1] == LONGER
    assert cli.ok("get", "a/x2").out == "1"
    assert cli.ok("get", "a/other").out == "2"


@pytest.mark.parametrize("prefix", ["a/x/", "a/", "", "a/x-"])
def test_a_prefix_that_ends_with_a_separator_needs_no_warning(cli: Cli, prefix: str) -> None:
    cli.ok("put", "a/x/1", "1", "a/x-old", "1", "a/x2", "1")
    for answer in (
        cli.ok("diff", "rev:2", "--prefix", prefix),
        cli.ok("restore", "rev:2", "--before-first", "--prefix", prefix, "--dry-run"),
        cli("rm", "--prefix", prefix),
    ):
        assert "also matches" not in answer.err


def test_a_prefix_whose_longer_names_do_not_change_needs_no_warning(cli: Cli) -> None:
    cli.ok("put", "a/x", "1", "a/x2", "1")
    cli.ok("put", "a/x", "2")
    assert "also matches" not in cli.ok("restore", "rev:3", "--prefix", "a/x", "-y").err


def test_a_value_with_an_at_sign_is_the_content_of_a_file(cli: Cli) -> None:
    answer = cli("put", "a", "@my value", "b", "2")
    assert (answer.code, answer.err) == (2, "snapkv: my value: No such file or directory\n")
    assert not (cli.place / "meta").exists(), "no store was made"
    (cli.place / "my value").write_bytes(b"content\xff\n")
    cli.ok("put", "a", f"@{cli.place}/my value", "b", "2")
    assert cli.ok("get", "a").raw == b"content\xff\n"
    assert cli("put", "a", "@").code == 2
    assert cli.ok("put", "a", "-", stdin=b"@my value").err == ""
    assert cli.ok("get", "a").out == "@my value"
