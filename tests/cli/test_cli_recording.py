"""The commands record, archive and --archive, as a user of the command line sees them."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_runner import PROCESS_TIMEOUT_S, Cli
from cli_terminal import following
from etcd_server import EtcdServer, eventually
from store.engines import write_raw

import snapkv
from snapkv.archive.manifest import FORMAT
from snapkv.engine.contract import Put
from snapkv.times import PHYSICAL_MS_MAX

pytestmark = pytest.mark.slow

FIRST, SECOND, THIRD, REMOVED, *LATER = (f"2023-11-14T22:13:{20 + n}.000Z" for n in range(1, 8))


@contextmanager
def writing(cli: Cli, seconds: int = 0) -> Iterator[Callable[..., int]]:
    """Give a function that commits, one second after the commit before, long ago.

    What was committed in the last minute is not compacted.
    """
    clock = snapkv.ManualClock(1_700_000_000_000 + seconds * 1_000)
    with snapkv.open(
        cli.url, clock=clock, writer="ann@laptop", max_clock_skew=PHYSICAL_MS_MAX // 1_000
    ) as store:

        def commit(**changes: Any) -> int:
            clock.advance(1_000)
            return store.commit(**changes).ts

        yield commit


def written(cli: Cli) -> None:
    """Write a store whose history is compacted after it was recorded."""
    with writing(cli) as commit:
        commit(puts={"schema/users": b"id int"}, note="first")
        commit(puts={"schema/users": b"id int, email text"})
        commit(puts={"owner": b"ann"})
    cli.ok("record", "--into", "./archive", "--once")
    with writing(cli, 3) as commit:
        commit(deletes=["owner"])
    cli.ok("compact", REMOVED, "--past-recordings", "--yes")


def test_what_was_compacted_is_read_from_an_archive(any_cli: Cli) -> None:
    cli = any_cli
    written(cli)
    refused = cli("get", "schema/users", "--at", FIRST)
    assert refused.code == 4
    assert "no --archive has it" in refused.err
    with_archive = ("--archive", "./archive")
    assert cli.ok("get", "schema/users", "--at", FIRST, *with_archive).out == "id int"
    assert cli.ok("ls", "--at", THIRD, *with_archive).lines == ["owner", "schema/users"]
    assert cli.ok("ls", *with_archive).lines == ["schema/users"]
    assert len(cli.ok("log", "--json", *with_archive).json) == 4
    changed = cli.ok("diff", SECOND, THIRD, "--json", *with_archive).json
    assert [(each["key"], each["after"]) for each in changed] == [("owner", "ann")]
    versions = cli.ok("history", "schema/users", "--json", *with_archive).json
    assert sorted(version["value"] for version in versions) == ["id int", "id int, email text"]
    alone = ("--store", "archive:./archive")
    assert cli.ok("get", "schema/users", "--at", FIRST, *alone).out == "id int"
    assert len(cli.ok("log", "--json", *alone).json) == 3
    refused = cli("put", "a", "1", *alone)
    assert (refused.code, "takes no writes" in refused.err) == (5, True), refused.err
    cli.ok("restore", THIRD, "--yes", *with_archive)
    assert cli.ok("get", "owner").out == "ann"


def test_a_record_in_another_store(any_cli: Cli) -> None:
    cli = any_cli
    written(cli)
    cli.ok("record", "--into", "lmdb:./copy", "--once")
    theirs = ("--store", "lmdb:./copy")
    own = [commit["time"] for commit in cli.ok("log", "--json").json]
    copied = [commit["time"] for commit in cli.ok("log", "--json", *theirs).json]
    assert own == copied[: len(own)]
    recorded_to = cli.ok("status", "--json").json[0]["recordings"]
    assert len(recorded_to) == 2
    again = cli.ok("record", "--into", "lmdb:./copy", "--once", "--json").json
    assert again[-1]["time"] == own[0]
    assert [c["time"] for c in cli.ok("log", "--json", *theirs).json] == copied


@pytest.mark.parametrize(("into", "alone"), [("./kept", "archive:./kept"), ("lmdb:./kept",) * 2])
def test_only_history_within_keep_is_kept(cli: Cli, into: str, alone: str) -> None:
    written(cli)
    times = [commit["time"] for commit in cli.ok("log", "--json").json]
    cli.ok("record", "--into", into, "--once", "--keep", "9999d")
    read = ("--store", alone)
    assert [c["time"] for c in cli.ok("log", "--json", *read).json] == times
    with writing(cli, 4) as commit:
        commit(puts={"owner": b"bob"})
    cli.ok("record", "--into", into, "--once", "--keep", "90d")
    (newest,) = cli.ok("log", "--json", *read).json
    assert newest["time"] > max(times)
    assert cli.ok("get", "owner", *read).out == "bob"
    assert cli.ok("ls", *read).lines == ["owner", "schema/users"]
    refused = cli("get", "schema/users", "--at", REMOVED, *read)
    assert (refused.code, "is not kept, and " in refused.err) == (4, True), refused.err


def test_compaction_waits_for_a_recording(cli: Cli) -> None:
    with writing(cli) as commit:
        for n in range(3):
            commit(puts={"a": b"%d" % n})
    cli.ok("record", "--into", "./archive", "--once")
    with writing(cli, 3) as commit:
        for n in range(3):
            commit(puts={"b": b"%d" % n})
    facts = cli.ok("status", "--json").json[0]
    archived = cli.ok("status", "--json", "--store", "archive:./archive").json[0]
    assert archived["newest_writer"] is not None
    assert (archived["commits"], archived["sessions"], archived["leaders"]) == (3, 0, {})
    assert cli.ok("sessions", "--store", "archive:./archive").err == "no live sessions\n"
    assert all(lag > 0 for lag in facts["recordings_lag_s"].values())
    assert facts["recordings_lag_s"].keys() == facts["recordings"].keys() != set()
    waiting = cli.ok("compact", LATER[1], "--yes")
    assert waiting.err.startswith("snapkv: the recording into ")
    assert waiting.err.endswith("/archive has not copied more yet\n")
    assert waiting.out == f"{THIRD}\n"
    assert len(cli.ok("log", "--json").json) == 4
    cli.ok("record", "--into", "./archive", "--forget")
    assert cli.ok("status", "--json").json[0]["recordings"] == {}
    done = cli.ok("compact", LATER[1], "--yes")
    assert (done.out, done.err) == (f"{LATER[1]}\n", "")
    assert len(cli.ok("log", "--json").json) == 1


def test_the_status_of_an_archive(cli: Cli) -> None:
    written(cli)
    (status,) = cli.ok("archive", "status", "./archive", "--json").json
    assert status["store"] == "default"
    assert status["gaps"] == []
    assert (status["files"], status["rows"]) == (
        {"base": 1, "delta": 1, "log": 2},
        {"base": 0, "delta": 3, "log": 4},
    )
    assert status["bytes"] == {
        kind: sum(p.stat().st_size for p in (cli.place / "archive" / kind).iterdir())
        for kind in ("base", "delta", "log")
    }
    (behind,) = cli.ok("archive", "status", "./archive", "--store", cli.url, "--json").json
    assert behind["lag_s"] > 0
    cli.ok("record", "--into", "./archive", "--once")
    (behind,) = cli.ok("archive", "status", "./archive", "--store", cli.url, "--json").json
    assert behind["lag_s"] == 0
    shown = cli.ok("archive", "status", "./archive").out
    for word in ("since", "resolved", "files", "bytes"):
        assert word in shown


def test_the_lag_of_an_archive_is_to_its_own_store_only(cli: Cli) -> None:
    written(cli)
    other = ("--store", "lmdb:./other")
    cli.ok("put", "zz", "1", *other)
    refused = cli("archive", "status", "./archive", *other)
    assert (refused.code, refused.out) == (2, "")
    assert "archive='./archive' is of the store 'default' with the id " in refused.err
    assert refused.err == cli("ls", "--archive", "./archive", *other).err


def test_the_lag_of_an_archive_of_a_store_that_was_restored(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    cli.ok("backup", "./backup")
    cli.ok("put", "b", "1")
    cli.ok("record", "--into", "./archive", "--once")
    old = ("--store", "lmdb:./backup")
    refused = cli("archive", "status", "./archive", *old)
    assert (refused.code, refused.out) == (cli("ls", "--archive", "./archive", *old).code, "")
    assert "lmdb:./backup has another history than archive='./archive'" in refused.err


def test_a_whole_archive_is_verified_and_restored(cli: Cli) -> None:
    written(cli)
    assert cli.ok("archive", "verify", "./archive").out == "no problems in 4 files, 7 rows\n"
    cli.ok("archive", "restore", "./archive", "--into", "lmdb:./again")
    again = ("--store", "lmdb:./again")
    assert cli.ok("get", "schema/users", "--at", FIRST, *again).out == "id int"
    refused = cli("archive", "restore", "./archive", "--into", "./folder")
    assert (refused.code, "not a store" in refused.err) == (2, True)


def test_published_tables(cli: Cli) -> None:
    written(cli)
    tables = cli.ok("archive", "publish", "./archive", "--delta", "--iceberg", "--json").json
    assert [(t["format"], t["name"], t["rows"]) for t in tables] == [
        ("delta", "changes", 3),
        ("delta", "commits", 4),
        ("iceberg", "changes", 3),
        ("iceberg", "commits", 4),
    ]
    assert cli.ok("archive", "publish", "./archive", "--delta").lines[1].split() == (
        ["commits", "./archive/log", "4", "rows", "in", "2", "files"]
    )
    assert cli("archive", "publish", "./archive").code == 2


def test_a_file_that_is_missing_from_an_archive(cli: Cli) -> None:
    written(cli)
    [*_, delta] = sorted(Path("archive/delta").iterdir())
    delta.unlink()
    failed = cli("history", "schema/users", "--store", "archive:./archive")
    assert failed.code == 5
    assert "a file of the archive" in failed.err
    assert delta.name in failed.err
    assert "run `snapkv archive verify`" in failed.err
    shown = cli("archive", "verify", "./archive")
    assert f"delta/{delta.name} is missing" in shown.out + shown.err


@pytest.mark.parametrize("words", [["status"], ["verify"], ["publish", "--delta"]], ids=" ".join)
def test_where_there_is_no_archive(cli: Cli, words: list[str]) -> None:
    command, *others = words
    answer = cli("archive", command, "./none", *others)
    assert (answer.code, answer.out) == (5, "")
    assert "no archive in ./none" in answer.err
    assert not (cli.place / "none").exists()


def test_an_archive_of_a_newer_format(cli: Cli) -> None:
    written(cli)
    newest = max((cli.place / "archive/_manifest").glob("*.json"))
    newest.write_text(json.dumps({**json.loads(newest.read_text()), "format": FORMAT + 1}))
    for words in (
        ["archive", "status", "./archive"],
        ["archive", "verify", "./archive"],
        ["archive", "publish", "./archive", "--delta"],
        ["ls", "--archive", "./archive"],
        ["ls", "--store", "archive:./archive"],
        ["record", "--into", "./archive", "--once"],
    ):
        answer = cli(*words)
        assert (answer.code, answer.out) == (5, ""), words
        assert f"format {FORMAT + 1}" in answer.err, answer.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "needs --into"),
        (["--into", "./a", "--every", "often"], "often"),
        (["--into", "./a", "--flush", "-1s"], "-1s"),
        (["--into", "./a", "--flush", "0s"], "give 100 ms or more"),
        (["--into", "https://host/path"], "https"),
    ],
)
def test_what_makes_no_sense_writes_nothing(cli: Cli, words: list[str], why: str) -> None:
    cli.ok("put", "a", "1")
    answer = cli("record", "--once", *words)
    assert (answer.code, answer.out) == (2, ""), answer
    assert why in answer.err
    assert sorted(path.name for path in cli.place.iterdir()) == ["meta"]


def test_a_recorder_goes_on_until_a_signal(any_cli: Cli) -> None:
    cli = any_cli
    cli.ok("put", "a", "0")
    with following(cli, "record", "--into", "lmdb:./copy", "--json") as (process, output):
        seen = json.loads(output.readline())
        with snapkv.open(cli.url, create=False) as store:
            stamp = store.save("a", b"1")
        while int(seen["recorded"]["timestamp"] or 0) < stamp:
            seen = json.loads(output.readline())
        assert (seen["state"], seen["error"], seen["gaps"]) == ("recording", None, [])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROCESS_TIMEOUT_S) == 0
    assert cli.ok("get", "a", "--store", "lmdb:./copy").out == "1"


def test_one_recorder_works_and_another_takes_over(cli: Cli) -> None:
    cli.ok("put", "a", "0")
    words = ("record", "--into", "./archive", "--flush", "100ms", "--json")
    with following(cli, *words) as (first, of_first):
        while json.loads(of_first.readline())["state"] != "recording":
            pass
        with following(cli, *words) as (second, of_second):
            while json.loads(of_second.readline())["state"] != "standby":
                pass
            first.kill()
            while json.loads(of_second.readline())["state"] != "recording":
                pass
            stamp = int(cli.ok("put", "a", "1", "--json").json[0]["timestamp"])
            seen = json.loads(of_second.readline())
            while int(seen["recorded"]["timestamp"]) < stamp:
                seen = json.loads(of_second.readline())
            second.send_signal(signal.SIGTERM)
            assert second.wait(PROCESS_TIMEOUT_S) == 0
    assert cli.ok("archive", "verify", "./archive").out.startswith("no problems")
    assert cli.ok("get", "a", "--store", "archive:./archive").out == "1"


@pytest.mark.long_after(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_one_that_waits_for_another(cli: Cli, number: int) -> None:
    cli.ok("put", "a", "0")
    words = ("record", "--into", "lmdb:./copy")
    with following(cli, *words, "--json") as (_, output):
        while json.loads(output.readline())["state"] != "recording":
            pass
        with following(cli, *words, "--once") as (second, answer):
            assert second.stderr is not None
            assert second.stderr.readline().startswith(b"snapkv: another recorder writes there")
            second.send_signal(number)
            assert second.wait(PROCESS_TIMEOUT_S) == 130
            assert (answer.read(), second.stderr.read()) == (b"", b"")


def test_keys_of_other_programs(etcd_cli: Cli, etcd: EtcdServer) -> None:
    cli = etcd_cli
    etcd.gateway.put(b"/registry/pods/web-0", b"starting")
    observed = ("record", "--observe", "/registry/", "--into", "lmdb:./k8s", "--json")
    copy = ("--store", "lmdb:./k8s")
    with following(cli, *observed) as (process, output):
        while json.loads(output.readline())["state"] != "recording":
            pass
        etcd.gateway.put(b"/registry/pods/web-0", b"running")
        etcd.gateway.put(b"/other", b"is not recorded")
        eventually(lambda: cli("get", "/registry/pods/web-0", *copy).out == "running")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROCESS_TIMEOUT_S) == 0
    changes = cli.ok("history", "/registry/pods/web-0", "--json", *copy).json
    assert [change["value"] for change in changes] == ["running", "starting"]
    assert cli.ok("ls", *copy).lines == ["pods/web-0"]


@pytest.mark.parametrize("into", ["lmdb:./copy", "archive:./copy"])
@pytest.mark.parametrize("keys", [1, 20_000])
def test_a_record_says_where_it_begins(cli: Cli, into: str, keys: int) -> None:
    copy, found = ("--store", into), "1 key" if keys == 1 else "20,000 keys"
    says = f"(the recording begins here: it found {found})"
    record = "record", "--observe", "/r/", "--once", "--into", into.removeprefix("archive:")
    with snapkv.open(cli.url) as store:
        write_raw(store.reader.engine, *(Put(b"/r/%d" % n, b"1" * 99) for n in range(keys)))
        cli.ok(*record)
        assert cli.ok("show", *copy).lines[-1] == says
        (shown,) = cli.ok("show", "--json", *copy).json
        assert shown["changes"] is None
        assert cli.ok("show", shown["time"], "/r/0", *copy).lines[-1] == says
        write_raw(store.reader.engine, Put(b"/r/0", b"2"), Put(b"/r/new", b""))
        cli.ok(*record)
    assert f"  {says}" in cli.ok("log", "-p", *copy).lines
    assert cli.ok("show", shown["time"], *copy).lines[-1] == says
    (newest,) = cli.ok("show", "--json", *copy).json
    assert [each["key"] for each in newest["changes"]] == ["/r/0", "/r/new"]
    if into == "lmdb:./copy":  # later, the oldest commit left is not where it begins
        with snapkv.open(f"lmdb:{cli.place / 'copy'}") as kept:
            kept.reader.engine.compact(newest["revision"])
        assert cli("show", *copy).code == 4
        assert "  (what it changed was compacted)" in cli.ok("log", "-p", *copy).lines


def test_secrets_in_plain_text_are_said_once_and_redaction_keeps_digests(
    etcd_cli: Cli, etcd: EtcdServer
) -> None:
    cli, name = etcd_cli, b"/registry/secrets/shop/db"
    observed = ("record", "--observe", "/registry/", "--once", "--into")
    redaction = ("--redact", "/registry/secrets/", "--redact-key", "key")
    for password in (b"hunter2", b"hunter3"):
        etcd.gateway.put(name, b"k8s\0\n\x0c\n\x02v1\x12\x06Secret" + password)
        warned = cli.ok(*observed, "lmdb:./plain").err
        assert warned.count("\n") == 1
        assert "the record has Secrets of Kubernetes in plain text" in warned
        assert "--redact /registry/secrets/ --redact-key FILE" in warned
        assert cli.ok(*observed, "lmdb:./redacted", *redaction).err == ""
    copy = ("--store", "lmdb:./redacted")
    (row,) = cli.ok("ls", "--long", *copy).lines
    assert "hmac-sha256:" in row
    newer, older = (
        json.loads(r["value"]) for r in cli.ok("history", name.decode(), "--json", *copy).json
    )
    assert newer["redacted"] != older["redacted"]
    assert newer["bytes"] == older["bytes"] == 25  # of the object, not of its password


def test_commands_read_keys_that_are_too_long_for_the_record(cli: Cli) -> None:
    name = "/registry/configmaps/default/" + "n" * 500
    with snapkv.open("memory:long", writer="ann@laptop") as source:
        source.save(name, b'{"a": 1}')
        source.save(name, b'{"a": 2, "b": 3}')
        snapkv.record("memory:long", into="lmdb:./long").catch_up()
        snapkv.record("lmdb:./long", into="./archived").catch_up()
        source.remove(name)
        snapkv.record("memory:long", into="lmdb:./long").catch_up()
    for copy in (("--store", "lmdb:./long", "--at", "rev:6"), ("--store", "archive:./archived")):
        assert cli.ok("get", name, *copy).out == '{"a": 2, "b": 3}'
        blamed = [line.split("  ")[-1] for line in cli.ok("blame", name, *copy).lines]
        assert blamed == ["a: 2", "b: 3"]
    for copy in (("--store", "lmdb:./long"), ("--store", "archive:./archived")):
        values = [found["value"] for found in cli.ok("history", name, "--json", *copy).json]
        assert [value for value in values if value] == ['{"a": 2, "b": 3}', '{"a": 1}']
    copy = ("--store", "lmdb:./long")
    assert cli.ok("show", *copy).lines[-1] == "(it changed no keys, or only keys of spaces)"
    assert cli.ok("show", "--prefix", "/x", *copy).lines[-1] == "(it changed no keys below '/x')"
    removed, never = cli("get", name, *copy), cli("get", name + "x", *copy)
    assert (removed.code, removed.err) == (1, f"snapkv: no key {name!r}\n")
    assert never.code == 2
    assert "the engine accepts at most 501" in never.err


def test_a_record_shows_the_revisions_of_its_source_and_takes_them(cli: Cli) -> None:
    cli.ok("put", "k8s/a", "1")
    cli.ok("record", "--into", "lmdb:./copy", "--once")
    cli.ok("put", "k8s/a", "2")
    cli.ok("put", "k8s/b", "2")
    cli.ok("record", "--into", "lmdb:./copy", "--once")
    source = cli.ok("log", "-n", "2", "--json").json[-1]["revision"]
    copy = ("--store", "lmdb:./copy")
    (found,) = [
        each for each in cli.ok("log", "--json", *copy).json if each["source_revision"] == source
    ]
    own = f"{found['revision']} rv {source}"
    assert own in cli.ok("log", *copy).out
    assert f"revision   {own}\n" in cli.ok("show", f"rv:{source}", *copy).out
    assert own in cli.ok("history", "k8s/a", *copy).out
    assert own in cli.ok("blame", "k8s/a", *copy).out
    assert own in cli.ok("ls", "--long", *copy).out
    assert cli.ok("history", "k8s/a", "-n1", "--json", *copy).json[0]["source_revision"] == source
    assert cli.ok("ls", "--long", "--json", *copy).json[0]["source_revision"] == source
    assert cli.ok("get", "k8s/a", "--at", f"rv:{source}", *copy).out == "2"
    assert cli.ok("ls", "--at", f"rv:{source}", *copy).lines == ["k8s/a"]
    assert cli.ok("diff", f"rv:{source}", "--name-only", *copy).lines == ["k8s/b"]
    assert (
        cli.ok("log", "--since", f"rv:{source}", "-p", "--name-only", *copy).lines[1] == "  k8s/b"
    )
    refused = cli("get", "k8s/a", "--at", f"rv:{source}")
    assert refused.code == 2
    assert "is not a record" in refused.err


def test_a_record_takes_no_commits(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    cli.ok("record", "--into", "lmdb:./record", "--once")
    cli.ok("dump", "./dump")
    record = ("--store", "lmdb:./record")
    moment = cli.ok("log", "-n", "1", "--json", *record).json[0]["time"]
    for words in (
        ["put", "a", "2"],
        ["rm", "a"],
        ["rm", "--prefix", "a"],
        ["restore", moment],
        ["load", "--replace", "./dump"],
        ["import-prefix", "default/data/", "--from", "lmdb:./meta"],
        ["tick"],
        ["tick", "--every", "1s"],
    ):
        refused = cli(*words, *record)
        assert (refused.code, refused.out) == (5, ""), words
        assert "lmdb:./record is the record of the store 'default'" in refused.err
        assert "--force-fork makes the record a store of its own" in refused.err
    cli.ok("restore", moment, "--dry-run", *record)
    cli.ok("compact", "1h", "--yes", *record)
    cli.ok("put", "b", "1")
    cli.ok("record", "--into", "lmdb:./record", "--once")
    cli.ok("put", "a", "2", "--force-fork", *record)
    cli.ok("put", "a", "3", *record)
    assert cli.ok("get", "b", *record).out == "1"
    ended = cli("record", "--into", "lmdb:./record", "--once")
    assert (ended.code, "its history is its own now" in ended.err) == (5, True)


def test_a_store_from_an_archive_takes_commits(cli: Cli) -> None:
    written(cli)
    cli.ok("archive", "restore", "./archive", "--into", "lmdb:./again")
    again = ("--store", "lmdb:./again")
    assert cli.ok("log", "-n", "1", "--json", *again).json[0]["note"] == "restored from ./archive"
    cli.ok("put", "schema/users", "mine", *again)
    cli.ok("restore", FIRST, "--yes", *again)
    assert cli.ok("get", "schema/users", *again).out == "id int"
