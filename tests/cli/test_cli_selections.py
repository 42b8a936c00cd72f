"""Several --observe and --except, for what is read and what is recorded."""

import pytest
from cli_runner import Cli
from etcd_server import EtcdServer

pytestmark = pytest.mark.slow


@pytest.fixture
def cli(etcd_cli: Cli) -> Cli:
    return etcd_cli


SEVERAL = ["--observe", "/r/", "--observe", "/s/", "--except", "/r/e/"]


@pytest.fixture
def several(cli: Cli, etcd: EtcdServer) -> list[str]:
    """Three ticks with foreign writes before each; return their timestamps."""
    ticks = []
    for n in range(3):
        for key in (b"/r/a", b"/r/e/1", b"/s/1", b"/t/1"):
            etcd.gateway.put(key, b"%d" % n)
        ticks.append(cli.ok("tick", "--raw").out.strip())
    return ticks


def test_several_prefixes_are_read_as_one(cli: Cli, several: list[str]) -> None:
    first, second, third = several
    assert cli.ok("ls", *SEVERAL).lines == ["/r/a", "/s/1"]
    assert cli.ok("get", "/s/1", *SEVERAL, "--at", first).out == "0"
    assert cli.ok("diff", first, *SEVERAL).lines == [
        '~ /r/a  "0" -> "2"',
        '~ /s/1  "0" -> "2"',
    ]
    assert cli.ok("diff", second, third, "--prefix", "/s/", *SEVERAL).lines == [
        '~ /s/1  "1" -> "2"'
    ]
    rows = cli.ok("log", *SEVERAL, "-p", "--json").json
    changed = [change["key"] for row in rows for change in row["changes"]]
    assert changed == ["/s/1", "/r/a"] * 3
    assert [row["value"] for row in cli.ok("history", "/r/a", *SEVERAL, "--json").json] == list(
        "210"
    )
    watched = cli.ok("watch", *SEVERAL, "--since", second, "-n", "1", "--json").json
    assert [change["key"] for change in watched[0]["changes"]] == ["/r/a", "/s/1"]
    facts = cli.ok("status", *SEVERAL, "--json").json[0]
    assert (facts["prefixes"], facts["except"], facts["keys"]) == (["/r/", "/s/"], ["/r/e/"], 2)
    shown = cli.ok("show", third, *SEVERAL, "--json").json[0]
    assert [change["key"] for change in shown["changes"]] == ["/s/1"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["get", "/r/e/1", *SEVERAL], "'/r/e/1' is outside of the observed keys: '/r/' and '/s/'"),
        (["ls", "--except", "/r/e/"], "--except leaves keys out of what --observe names"),
        (
            ["ls", *SEVERAL, "--except", "/x/"],
            "the exception '/x/' is outside of the observed keys",
        ),
        (["ls", *SEVERAL, "--except", "/s/"], "the exception '/s/' leaves no keys"),
        (["ls", "--observe", "/r/", "--archive", "./a"], "--observe reads what the engine has"),
        (["record", "--except", "/r/", "--into", "./a"], "--except leaves keys out"),
    ],
)
def test_selections_that_make_no_sense(
    cli: Cli, several: list[str], words: list[str], says: str
) -> None:
    answer = cli(*words)
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err


def test_a_record_of_several_prefixes_goes_on_with_others(
    cli: Cli, etcd: EtcdServer, several: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SNAPKV_STORE")
    record = ["record", "--store", cli.url, "--into", "./archive", "--once"]
    cli.ok(*record, *SEVERAL)
    kept = ["--store", "archive:./archive"]
    assert cli.ok("ls", *kept).lines == ["/r/a", "/s/1"]
    (facts,) = cli.ok("archive", "status", "./archive", "--json").json
    assert (facts["prefixes"], facts["except"]) == (["/r/", "/s/"], ["/r/e/"])
    etcd.gateway.put(b"/s/1", b"3")
    cli.ok(*record, "--observe", "/r/")
    assert cli.ok("ls", *kept).lines == ["/r/a", "/r/e/1"]
    (row,) = cli.ok("log", *kept, "-n", "1", "--json").json
    assert row["note"] == "observes '/r/' from now on"
    (facts,) = cli.ok("archive", "status", "./archive", "--json").json
    assert facts["prefix"] == "/r/"
    assert "except" not in facts
    etcd.gateway.put(b"/r/a", b"4")
    refused = cli(*record, "--observe", "/s/")
    assert refused.code == 5
    assert "it observes '/r/', and none of that is in '/s/'" in refused.err
