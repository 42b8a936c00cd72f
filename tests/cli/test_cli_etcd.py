"""What the command line does with keys that others write: import-prefix and --observe."""

import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
from cli_runner import PROCESS_TIMEOUT_S, Answer, Cli, Stream
from cli_terminal import following, terminal
from etcd_server import EtcdServer, enable_auth, eventually, make_certificates

import snapkv
from snapkv.base.waiting import monotonic
from snapkv.cli.terminal import progress_bar
from snapkv.engine.etcd.cluster_client import ClusterClient
from snapkv.engine.etcd.grpc_client import CallFailed

pytestmark = pytest.mark.slow


@pytest.fixture
def cli(etcd_cli: Cli) -> Cli:
    return etcd_cli


# --- import-prefix ---


def test_import_prefix_takes_over_what_others_wrote(cli: Cli, etcd: EtcdServer) -> None:
    etcd.gateway.put(b"/registry/a", b"\x00\xff")
    etcd.gateway.put(b"/registry/b", b"2")
    answer = cli.ok("import-prefix", "/registry/", "--note", "from the cluster")
    assert answer.err == "2 keys saved, 0 removed, of 2 in the source, in 1 commit\n"
    at = answer.out.strip()
    assert cli.ok("ls", "--at", at).lines == ["/registry/a", "/registry/b"]
    assert cli.ok("get", "/registry/a").raw == b"\x00\xff"
    assert cli.ok("log", "-n", "1", "--json").json[0]["note"] == "from the cluster"
    again = cli.ok("import-prefix", "/registry/")
    assert (again.out, again.err) == (
        "",
        "nothing to import: the store has all 2 keys already\n",
    )


def test_import_prefix_renames_and_goes_elsewhere(cli: Cli, etcd: EtcdServer) -> None:
    etcd.gateway.put(b"/registry/a", b"1")
    cli.ok("import-prefix", "/registry/", "--strip", "--under", "k8s/", "--name", "other")
    assert cli.ok("ls", "--name", "other").lines == ["k8s/a"]
    words = ["import-prefix", "/registry/", "--from", etcd.url, "--to", "lmdb:./copy", "--json"]
    (told,) = cli.ok(*words).json
    assert (told["keys"], told["saved"], told["removed"], told["commits"]) == (1, 1, 0, 1)
    assert cli.ok("ls", "--store", "lmdb:./copy").lines == ["/registry/a"]
    assert told["commit"]["writer"] == "ann@laptop"


def test_import_prefix_replaces_after_asking(cli: Cli, etcd: EtcdServer) -> None:
    etcd.gateway.put(b"r/a", b"1")
    cli.ok("put", "r/old", "1", "q", "2")
    answer = cli("import-prefix", "r/")
    assert (answer.code, answer.out) == (3, "")
    assert "'r/old'" in answer.err
    assert "--replace" in answer.err
    planned = cli.ok("import-prefix", "r/", "--replace", "--dry-run")
    assert planned.out == ("would be: 1 key saved, 1 removed, of 1 in the source, in 1 commit\n")
    answer = cli("import-prefix", "r/", "--replace")
    assert (answer.code, "pass --yes" in answer.err) == (2, True)
    assert cli.ok("ls").lines == ["q", "r/old"]
    with terminal(cli, "import-prefix", "r/", "--replace") as screen:
        screen.wait_for("Replace what differs of 1 key under 'r/' in etcd://")
        screen.press(b"y\n")
    assert screen.process.returncode == 0
    assert cli.ok("ls").lines == ["q", "r/a"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nothing/"], 1, "no key begins with 'nothing/'"),
        (["r/", "--strip"], 2, "b'r/'"),
        (["bad/"], 2, "bad/\\xff"),
        (["default/data/"], 2, "is inside the snapkv store 'default'"),
        (["r/", "--from", "lmdb:./nowhere"], 5, "no store at"),
        (["r/", "--from", "nowhere"], 2, "no engine for"),
        (["r/", "--note", "x" * 5_000], 2, "note"),
        ([], 2, "PREFIX"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_cannot_be_imported_is_told(
    cli: Cli, etcd: EtcdServer, words: list[str], code: int, says: str
) -> None:
    for key in (b"r/", b"r/a", b"bad/\xff", b"bad/a"):
        etcd.gateway.put(key, b"1")
    head = cli.ok("put", "mine", "1", "--raw").out.strip()
    answer = cli("import-prefix", *words)
    assert (answer.code, answer.out) == (code, "")
    assert says in answer.err
    assert answer.err.count("\n") == 1
    assert cli.ok("log", "-n", "1", "--raw").out.startswith(head)


def test_a_dry_run_makes_no_store(cli: Cli, etcd: EtcdServer) -> None:
    etcd.gateway.put(b"r/a", b"1")
    assert cli("import-prefix", "r/", "--dry-run").code == 5
    assert cli("status").code == 5


def test_what_is_too_large_needs_batches(cli: Cli, etcd: EtcdServer) -> None:
    for number in range(4):
        etcd.gateway.put(b"r/%d" % number, b"x" * 700_000)
    answer = cli("import-prefix", "r/")
    assert (answer.code, answer.out) == (2, "")
    assert "--batches" in answer.err
    assert cli("ls").lines == []
    answer = cli.ok("import-prefix", "r/", "--batches", "--note", "big")
    assert answer.err.startswith(
        "in 2 commits: until the last one, readers see a part of the keys\n"
    )
    assert len(cli.ok("ls").lines) == 4
    notes = [row["note"] for row in cli.ok("log", "--json").json]
    assert notes == ["import 2 of 2: big", "import 1 of 2: big"]


def test_an_interrupted_import_goes_on(
    cli: Cli, etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        etcd.gateway.put(b"r/%d" % number, b"x" * 700_000)
    real = snapkv.SnapshotKV.commit

    def commit(store: snapkv.SnapshotKV, **operations: Any) -> snapkv.Commit:
        if operations["note"].startswith("import 2 of"):
            raise KeyboardInterrupt
        return real(store, **operations)

    with monkeypatch.context() as patch:
        patch.setattr(snapkv.SnapshotKV, "commit", commit)
        answer = cli("import-prefix", "r/", "--batches")
    assert answer.code == 130
    assert "another import continues there" in answer.err
    assert len(cli.ok("ls").lines) == 2
    assert "2 keys saved, 0 removed, of 4 " in cli.ok("import-prefix", "r/", "--batches").err
    assert len(cli.ok("ls").lines) == 4


def test_keys_of_stores_are_left_out_and_counted(cli: Cli, etcd: EtcdServer) -> None:
    cli.ok("put", "mine", "1")
    etcd.gateway.put(b"r/a", b"1")
    answer = cli.ok("import-prefix", "", "--under", "all/")
    assert answer.err.splitlines()[0] == "left out: 3 keys of snapkv stores"
    assert cli.ok("ls").lines == ["all/r/a", "mine"]


# --- --observe ---


@pytest.fixture
def observed(cli: Cli, etcd: EtcdServer) -> list[str]:
    """Three ticks with foreign writes before each; return their timestamps."""
    ticks = []
    for changes in ({b"/r/a": b"1", b"/r/\xff": b"raw"}, {b"/r/a": b"2"}, {b"/r/b": b"3"}):
        for key, value in changes.items():
            etcd.gateway.put(key, value)
        ticks.append(cli.ok("tick", "--raw").out.strip())
    etcd.gateway.put(b"/r/late", b"4")
    return ticks


def test_observed_keys_are_read_at_ticks(cli: Cli, observed: list[str]) -> None:
    first, second, third = observed
    see = ["--observe", "/r/"]
    assert cli.ok("get", "/r/a", *see).out == "2"
    assert cli.ok("get", "/r/a", "--at", first, *see).out == "1"
    assert cli.ok("ls", *see).lines == ["/r/a", "/r/b", '"/r/\\udcff"']
    assert cli.ok("ls", "/r/a", *see).lines == ["/r/a"]
    raw_key = {"base64": "L3Iv/w=="}
    assert cli.ok("ls", *see, "--json").json[-1] == {"key": raw_key}
    assert cli.ok("ls", "-l", *see, "--json").json[-1]["key"] == raw_key
    assert cli.ok("ls", *see, "-o", "yaml").out.endswith("key:\n  base64: L3Iv/w==\n")
    for words in (["show", first, "--stat"], ["watch", "--since", "0", "-n", "1"], ["log", "-p"]):
        assert raw_key in [
            change["key"]
            for row in cli.ok(*words, *see, "--json").json
            for change in row["changes"]
        ]
    assert cli.ok("ls", "-l", *see, "--at", first).lines[0].endswith('1  /r/a  "1"')
    assert cli.ok("diff", first, *see).lines == ['~ /r/a  "1" -> "2"', '+ /r/b  "3"']
    assert cli.ok("diff", first, second, *see, "--prefix", "/r/b").lines == []
    versions = cli.ok("history", "/r/a", *see, "--json").json
    assert [(v["timestamp"], v["value"]) for v in versions] == [(second, "2"), (first, "1")]
    assert len(cli.ok("history", "/r/a", *see, "-n", "1").lines[0].split("  ")) == 3
    found = cli.ok("watch", *see, "--since", first, "-n", "2", "--json").json
    assert [(row["timestamp"], row["changes"][0]["value"]) for row in found] == [
        (second, "2"),
        (third, "3"),
    ]
    facts = cli.ok("status", *see, "--json").json[0]
    assert (facts["prefix"], facts["keys"], facts["ticks"]) == ("/r/", 3, 3)
    assert facts["newest"]["timestamp"] == third


def test_a_revision_is_shown_between_its_ticks(cli: Cli, etcd: EtcdServer) -> None:
    first = cli.ok("tick", "--json").json[0]
    etcd.gateway.put(b"/r/a", b"1")
    middle = etcd.gateway.put(b"/r/a", b"2")
    etcd.gateway.put(b"/r/a", b"3")
    second = cli.ok("tick", "--json").json[0]
    late = etcd.gateway.put(b"/r/a", b"4")

    def told(revision: int) -> tuple[str, str]:
        answer = cli.ok("get", "/r/a", "--observe", "/r/", "--at", f"rev:{revision}")
        return answer.out, answer.err.removeprefix(f"snapkv: rev:{revision} ")

    assert told(middle) == ("2", f"is between the ticks {first['time']} and {second['time']}\n")
    assert told(second["revision"]) == ("3", f"= {second['time']}\n")
    see = ["/r/a", "--observe", "/r/", "--json"]
    (row,) = cli.ok("blame", *see, "--at", f"rev:{middle}").json
    assert (row["text"], row["revision"]) == ("2", middle)
    found = cli.ok("history", *see, "--until", f"rev:{middle}", "--since", f"rev:{middle - 1}").json
    assert [row["value"] for row in found] == ["2"]
    assert told(late) == ("4", f"is after the newest tick, {second['time']}\n")


def test_a_time_before_the_first_tick_says_what_to_write(cli: Cli, observed: list[str]) -> None:
    answer = cli("diff", "-1h", "--observe", "/r/")
    assert (answer.code, answer.out) == (4, "")
    written = answer.err.rpartition(": write ")[2].removesuffix(" or a later time\n")
    assert cli.ok("diff", written, "--observe", "/r/").lines[-1] == '+ /r/b  "3"'


def test_a_watch_names_nobody_for_what_others_wrote(cli: Cli, etcd: EtcdServer) -> None:
    """It says what history says: no writer, and the revision of the write itself."""
    cli.patch.setenv("SNAPKV_WRITER", "ticker@mon")
    begun = cli.ok("tick", "--raw").out.strip()
    first = etcd.gateway.put(b"/r/a", b"1")
    second = etcd.gateway.put(b"/r/a", b"2")
    cli.ok("tick")
    etcd.gateway.delete(b"/r/a")
    removed = etcd.gateway.revision()
    cli.ok("tick")
    see = ["--observe", "/r/"]
    told = cli.ok("watch", *see, "--since", begun, "-n", "2", "--json").json
    by_nobody = {"writer": None, "note": None}
    assert [row["changes"] for row in told] == [
        [
            {"key": "/r/a", "value": "1", "revision": first, **by_nobody},
            {"key": "/r/a", "value": "2", "revision": second, **by_nobody},
        ],
        [{"key": "/r/a", "value": None, "revision": removed, **by_nobody}],
    ]
    assert [(row["revision"], row["writer"]) for row in told] == [(second, None), (removed, None)]
    versions = cli.ok("history", "/r/a", *see, "--oldest-first", "--json").json
    assert [each["revision"] for each in versions] == [first, second, removed]
    assert versions[1] == {
        **{name: told[0][name] for name in ("timestamp", "time", "revision", "writer", "note")},
        "value": "2",
    }
    lines = cli.ok("watch", *see, "--since", begun, "-n", "2").lines
    assert [line.split("  ", 1)[1] for line in lines] == [
        *(str(first), '+ /r/a  "1"'),
        *(str(second), '~ /r/a  "1" -> "2"'),
        *(str(removed), '- /r/a  "2"'),
    ]
    assert "ticker@mon" in cli.ok("log", "--ticks", "-n", "1").out, "who ticked is not forgotten"


READING = [["get", "a"], ["ls"], ["history", "a"], ["diff", "-0s"], ["status"]]
OBSERVING = [[*words, "--observe", "default/data/"] for words in (["ls"], ["status"])]


@pytest.mark.parametrize("words", [*READING, ["log"], *OBSERVING], ids=" ".join)
def test_a_server_that_hangs_is_given_up_in_time(
    cli: Cli, etcd: EtcdServer, words: list[str]
) -> None:
    """Without --timeout it would be after 12 s."""
    cli.ok("put", "a", "1")
    etcd.pause()
    try:
        began = monotonic()
        answer = cli(*words, "--timeout", "500ms")
        took_s = monotonic() - began
    finally:
        etcd.resume()
    assert (answer.code, answer.out) == (7, "")
    assert "longer than its timeout of 0.5 s" in answer.err
    assert took_s < 8


def test_everything_can_be_observed(cli: Cli, observed: list[str]) -> None:
    assert "default/sys/ts" in cli.ok("ls", "--observe", "").lines
    assert "/r/a" in cli.ok("ls", "--observe", "", "--at", observed[0]).lines


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["get", "/other"], 2, "outside of the observed prefix"),
        (["get", "/r/none"], 1, "no key '/r/none'"),
        (["get", "/r/late"], 1, "no key '/r/late'"),
        (["ls", "--at", "-1d"], 4, "no tick had been committed yet at 2"),
        (["put", "/r/a", "1"], 2, "--observe"),
        (["tick"], 2, "--observe"),
        (["restore", "-1h"], 2, "--observe"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_observed_is_told(
    cli: Cli, observed: list[str], words: list[str], code: int, says: str
) -> None:
    answer = cli(*words, "--observe", "/r/")
    assert (answer.code, answer.out) == (code, "")
    *understood, error = answer.err.splitlines()
    assert says in error
    assert [line.split(" = ")[0] for line in understood] == ["snapkv: -1d"] * ("-1d" in words)


def test_without_a_ticker_it_says_what_is_missing(cli: Cli, etcd: EtcdServer) -> None:
    etcd.gateway.put(b"/r/a", b"1")
    answer = cli("ls", "--observe", "/r/")
    assert answer.code == 5
    assert "snapkv tick --every 1s" in answer.err
    with snapkv.open(cli.url):
        pass  # a store that never ticked
    assert cli("ls", "--observe", "/r/").code == 4
    assert "keys" not in cli.ok("status", "--observe", "/r/", "--json").json[0]
    assert cli.ok("status", "--observe", "/r/").code == 0


def test_a_ticker_lets_another_process_watch(cli: Cli, etcd: EtcdServer) -> None:
    etcd.gateway.put(b"/r/a", b"1")
    with following(cli, "tick", "--every", "100ms", "--json") as (ticker, beats):
        assert beats.readline()
        with following(cli, "watch", "--observe", "/r/", "--since", "0", "--json") as (_, output):
            assert json.loads(output.readline())["changes"][0]["key"] == "/r/a"
            etcd.gateway.put(b"/r/b", b"2")
            assert json.loads(output.readline())["changes"][0]["key"] == "/r/b"
        eventually(lambda: cli("get", "/r/b", "--observe", "/r/").out == "2", "the tick")
        ticker.send_signal(signal.SIGTERM)
        assert ticker.wait(PROCESS_TIMEOUT_S) == 0


# --- the server's door ---

USERS = {
    "root": ("pw", None),
    "service": ("pw", [("plans/", "readwrite")]),
    "reader": ("pw", [("plans/", "read")]),
    "ticker": ("pw", [("plans/sys/", "readwrite")]),
    "auditor": ("pw", [("plans/sys/", "read"), ("/r/", "read")]),
    "mover": ("pw", [("plans/", "readwrite"), ("/r/", "read")]),
}
DENIED = "snapkv: the user lacks the right to these keys\n"


@pytest.mark.etcd_since("3.5.28", "rights inside nested transactions")
def test_the_rights_that_docs_etcd_tells_are_enough(cli: Cli, etcd: EtcdServer) -> None:
    etcd.gateway.put(b"/r/a", b"1")
    enable_auth(etcd, USERS)

    def run(user: str, *words: str) -> Answer:
        cli.patch.setenv("SNAPKV_ETCD_USER", user)
        cli.patch.setenv("SNAPKV_ETCD_PASSWORD", "pw")
        return cli("--name", "plans", *words)

    reads = [
        ["get", "a"],
        ["ls"],
        ["log"],
        ["history", "a"],
        ["diff", "-1h"],
        ["check"],
        ["status"],
    ]
    reads += [["watch", "--since", "0", "-n", "1"], ["dump", "-"]]
    for words in (["put", "a", "1"], ["tick"], ["restore", "-0s"], ["put", "a", "2"], *reads):
        assert run("service", *words).code == 0, words
    for words in reads:
        assert run("reader", *words).code == 0, words
    for words in (["put", "a", "3"], ["tick"]):
        assert run("reader", *words) == Answer(5, b"", DENIED)
    assert run("ticker", "tick", "--every", "100ms", "-n", "2").code == 0
    assert run("ticker", "put", "a", "3") == Answer(5, b"", DENIED)
    for user, allowed in {"service": True, "reader": True, "ticker": False}.items():
        (facts,) = run(user, "status", "--json").json
        assert facts["commits"] > 2
        assert facts["newest_revision"] > 2
        assert {"keys", "sessions", "leaders"} & facts.keys() == (
            {"keys", "sessions", "leaders"} if allowed else set()
        )
        assert run(user, "status").code == 0
    assert run("auditor", "status").code == 0
    see = ["--observe", "/r/"]
    for words in (["get", "/r/a"], ["ls"], ["ls", "-l"]):
        assert run("auditor", *words, *see).code == 0, words
    assert run("auditor", "get", "/r/a", *see).out == "1"
    assert run("auditor", "get", "a") == Answer(5, b"", DENIED)
    assert run("auditor", "import-prefix", "/r/").code == 5
    assert run("mover", "import-prefix", "/r/").code == 0
    assert run("service", "get", "/r/a").out == "1"
    assert run("service", "import-prefix", "/r/").code == 5
    with snapkv.open(cli.url, name="plans", user="root", password="pw") as store:
        store._core.engine.compact(3)
    assert run("service", "get", "/r/a").code == 0
    assert run("nobody", "get", "a").code == 5


def test_status_has_the_size_of_the_server_unless_it_does_not_say(
    etcd_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd_cli.ok("put", "a", "1" * 100_000)

    def status() -> dict[str, Any]:
        (facts,) = etcd_cli.ok("status", "--json").json
        assert facts["size_bytes"] == facts["engine"]["used_bytes"] <= facts["engine"]["bytes"]
        return dict(facts)

    eventually(lambda: status()["size_bytes"] > 100_000, "the server's file has the value")
    rows = dict(line.split(maxsplit=1) for line in etcd_cli.ok("status").lines)
    assert {"size_bytes", "engine.bytes", "engine.used_bytes"} <= rows.keys()

    def denied(self: ClusterClient) -> None:
        raise CallFailed("PERMISSION_DENIED", "etcdserver: permission denied")

    monkeypatch.setattr(ClusterClient, "status", denied)
    (facts,) = etcd_cli.ok("status", "--json").json
    assert (facts["size_bytes"], facts["keys"]) == (None, 1)
    assert not {"bytes", "used_bytes"} & facts["engine"].keys()


def test_tls_from_the_environment(
    make_cli: Callable[[str], Cli], tmp_path_factory: pytest.TempPathFactory
) -> None:
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"), client_auth=True)
    with EtcdServer(tmp_path_factory.mktemp("etcd") / "node", tls=certificates) as server:
        cli = make_cli(server.url)
        cli.patch.setenv("SNAPKV_ETCD_CACERT", str(certificates.ca))
        cli.patch.setenv("SNAPKV_ETCD_CERT", str(certificates.cert("client")))
        cli.patch.setenv("SNAPKV_ETCD_KEY", str(certificates.key("client")))
        cli.ok("put", "a", "1")
        assert cli.ok("get", "a").out == "1"
        shown = cli.ok("status").out + cli.ok("status", "--json").out
        assert certificates.key("client").name not in shown
        cli.patch.setenv("SNAPKV_ETCD_CACERT", str(tmp_path_factory.getbasetemp() / "missing"))
        answer = cli("get", "a")
        assert (answer.code, answer.err.count("\n")) == (2, 1)


def test_long_work_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    for after_s, shown in ((-1.0, True), (60.0, False)):
        screen = Stream(terminal=True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("snapkv.cli.terminal.BAR_AFTER_S", after_s)
        monkeypatch.setattr(sys, "stderr", screen)
        with progress_bar("importing") as move:
            for done in range(4):
                move(done, 12)
        assert (b"3/12" in screen.bytes.getvalue()) == shown
