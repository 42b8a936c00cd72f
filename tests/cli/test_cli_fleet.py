"""The commands of a fleet that read: status, ls, get, diff; what they say of late members."""

import json
from pathlib import Path

import pytest
from cli_fleet import BEGAN_MS, Sites, at
from cli_runner import Cli

import snapkv
from snapkv import errors
from snapkv.cli.exits import Exit, code_of, message_of
from snapkv.cli.fleet.chosen_fleet import listed

OLD = "snapkv: the newest time that is final on all members is "


@pytest.fixture
def sites(cli: Cli) -> Sites:
    """Two members: eu has image v1, v2; us has v1 and one key more; both final up to second 9."""
    made = Sites(cli)
    made.describe(eu="lmdb:./eu", us="lmdb:./us")
    made.put("eu", 1, image="v1")
    made.put("us", 2, image="v1", app__us="yes")
    made.put("eu", 3, "release", image="v2", app__eu="{}")
    made.tick(9)
    return made


def said(err: str) -> list[str]:
    """Return the lines of the error stream, but for those about how old the stores of tests are."""
    return [line for line in err.splitlines() if not line.startswith(OLD)]


# --- ls, get ---


def test_keys_are_listed_by_member(sites: Sites) -> None:
    cli = sites.cli
    assert cli.ok("fleet", "ls").lines == [
        "eu  app/eu",
        "eu  image",
        "us  app/us",
        "us  image",
    ]
    assert cli.ok("fleet", "ls", "app/").lines == ["eu  app/eu", "us  app/us"]
    assert cli.ok("fleet", "ls", "--members", "u*").lines == ["us  app/us", "us  image"]
    rows = cli.ok("fleet", "ls", "-l", "image", "--json").json
    assert [(row["member"], row["key"], row["value"], row["version"]) for row in rows] == [
        ("eu", "image", "v2", 2),
        ("us", "image", "v1", 1),
    ]
    assert cli.ok("fleet", "ls", "-l", "app/", "-o", "table").lines == [
        "MEMBER  REVISION  SIZE  KEY     VALUE",
        "eu             4     2  app/eu  {}",
        'us             3     3  app/us  "yes"',
    ]
    assert (
        cli.ok("fleet", "ls", "-l", "app/", "--redact", "app/u")
        .lines[1]
        .endswith("redacted, 3 bytes")
    )


def test_now_is_the_newest_time_that_is_final_on_all(sites: Sites) -> None:
    """Not the newest commit of each: one that eu has beyond is not shown before us is as far."""
    cli = sites.cli
    sites.put("eu", 20, image="v3")
    answer = cli.ok("fleet", "get", "image")
    assert answer.lines == ['eu  "v2"', 'us  "v1"']
    assert answer.err.startswith(f"{OLD}{at(9)}, ")
    sites.tick(21, "us")
    assert cli.ok("fleet", "get", "image").lines == ['eu  "v3"', 'us  "v1"']


def test_a_recent_moment_is_not_called_old(cli: Cli) -> None:
    made = Sites(cli)
    made.describe(eu="lmdb:./eu")
    cli.ok("put", "a", "1", "--store", "lmdb:./eu")
    assert cli.ok("fleet", "ls").err == ""


def test_a_key_of_one_member_is_printed_alone(sites: Sites) -> None:
    cli = sites.cli
    with sites.store("eu", 10) as store:
        store.save("blob", bytes(range(256)) + b"\n\n")
    for words in (["--members", "eu"], ["--members", "e*"]):
        answer = cli("fleet", "get", "blob", *words)
        assert (answer.code, answer.raw) == (0, bytes(range(256)) + b"\n\n")
    assert cli.ok("fleet", "get", "app/eu", "--members", "eu", "--as", "json").out == "{}\n"


def test_a_key_of_several_members_has_their_names(sites: Sites) -> None:
    cli = sites.cli
    assert cli.ok("fleet", "get", "app/us").lines == ['us  "yes"']
    shown = cli.ok("fleet", "get", "image", "-o", "table").lines
    assert shown == ["MEMBER  VALUE", 'eu      "v2"', 'us      "v1"']
    first, second = cli.ok("fleet", "get", "image", "--json").json
    assert (first["member"], first["value"], second["member"]) == ("eu", "v2", "us")
    assert first["at"] == {
        "timestamp": str(snapkv.pack(BEGAN_MS + 9_000)),
        "time": at(9),
        "final": True,
    }
    (redacted, _) = cli.ok("fleet", "get", "image", "--redact", "ima", "--json").json
    assert redacted["value"] == {"redacted": 2}
    (of_one,) = cli.ok("fleet", "get", "image", "--members", "us", "--json").json
    assert (of_one["member"], of_one["value"]) == ("us", "v1")


def test_a_key_outside_of_the_prefix_that_a_member_observes(sites: Sites) -> None:
    """The member does not have it, as in ls, log and `everywhere`; alone it is a missing key."""
    cli = sites.cli
    sites.describe(k8s='url = "lmdb:./eu", prefix = "reg/"')
    sites.tick(10, "eu", "us")
    assert cli.ok("fleet", "get", "image").lines == ['eu   "v2"', 'us   "v1"']
    rows = cli.ok("fleet", "get", "image", "--json").json
    assert [row["member"] for row in rows] == ["eu", "us"]
    for words in ([], ["--json"], ["-o", "table"]):
        answer = cli("fleet", "get", "image", "--members", "k8s", *words)
        assert (answer.code, "image  " in answer.out) == (1, False)
        assert "no key 'image' at 2023-11-14T22:13:30" in answer.err


@pytest.mark.parametrize("members", ["eu", "*"])
def test_a_missing_key_ends_as_in_get(sites: Sites, members: str) -> None:
    answer = sites.cli("fleet", "get", "none", "--members", members)
    assert (answer.code, answer.out) == (1, "")
    assert "no key 'none' at 2023-11-14T22:13:29" in answer.err
    assert ("snapkv: eu: no key" in answer.err) == (members == "eu")


def test_the_past_of_all_members(sites: Sites) -> None:
    cli = sites.cli
    assert cli.ok("fleet", "get", "image", "--at", at(2)).lines == ['eu  "v1"', 'us  "v1"']
    assert cli.ok("fleet", "ls", "--at", at(1)).lines == ["eu  image"], "us had no commit yet"
    exact = str(snapkv.pack(BEGAN_MS + 3_000))
    assert cli.ok("fleet", "get", "image", "--at", exact).lines == ['eu  "v2"', 'us  "v1"']
    answer = cli.ok("fleet", "ls", "--at", "2023-11-14T22:13:22Z")
    assert answer.err == "snapkv: 2023-11-14T22:13:22Z = 2023-11-14T22:13:22.999Z\n"


# --- who is late ---


def test_members_that_are_not_final_are_an_error_or_named(sites: Sites) -> None:
    cli = sites.cli
    sites.put("eu", 20, image="v3")
    answer = cli("fleet", "get", "image", "--at", at(15))
    assert (answer.code, answer.out) == (7, "")
    assert f"is not final on 1 of the fleet's members: us: final up to {at(9)}" in answer.err
    assert answer.err.endswith("; --behind leave-out or stale shows the rest\n")
    stale = cli.ok("fleet", "get", "image", "--at", at(15), "--behind", "stale")
    assert stale.lines == ['eu  "v2"', 'us  "v1"']
    assert stale.err == (
        "snapkv: 1 of 2 members is not final at that time, and shown as of the newest: "
        f"us (final up to {at(9)})\n"
    )
    left_out = cli.ok("fleet", "get", "image", "--at", at(15), "--behind", "leave-out")
    assert left_out.lines == ['eu  "v2"']
    assert left_out.err == f"snapkv: 1 of 2 members is left out: us (final up to {at(9)})\n"
    not_final = cli.ok("fleet", "get", "image", "--at", at(15), "--behind", "stale", "--json").json
    assert [row["at"]["final"] for row in not_final] == [True, False]


@pytest.mark.parametrize("words", [["ls"], ["get", "image"], ["diff", at(2), at(30)], ["log"]])
def test_an_answer_about_nobody_is_an_error(sites: Sites, words: list[str]) -> None:
    late = [] if words[0] == "diff" else ["--until" if words[0] == "log" else "--at", at(30)]
    answer = sites.cli("fleet", *words, *late, "--behind", "leave-out")
    assert (answer.code, answer.out) == (7, "")
    assert "is not final on 2 of the fleet's members" in answer.err


def test_a_missing_member_is_named_not_waited_for(sites: Sites) -> None:
    cli = sites.cli
    sites.describe(za="lmdb:./nowhere")
    answer = cli("fleet", "ls")
    assert (answer.code, answer.out) == (7, "")
    assert "no moment is known to be final on 1 of the fleet's members: za: no store" in answer.err
    for policy, state in (("leave-out", "left out"), ("stale", "missing")):
        shown = cli.ok("fleet", "ls", "--behind", policy)
        assert len(shown.lines) == 4
        (line,) = said(shown.err)
        assert line.startswith(f"snapkv: 1 of 3 members is {state}: za (no store at ")
    assert len(cli.ok("fleet", "ls", "--members", "eu,us").lines) == 4, "za is not asked"


def test_a_round_without_a_member_that_is_a_record(sites: Sites) -> None:
    cli = sites.cli
    cli.ok("record", "--store", "lmdb:./eu", "--into", "lmdb:./copy", "--once")
    before = cli.ok("log", "--store", "lmdb:./copy", "--ticks").out
    sites.describe(copy="lmdb:./copy")
    answer = cli("fleet", "tick")
    assert answer.code == 7
    assert "  2 of 3 members  " in answer.out
    assert "copy: lmdb:" in answer.err
    assert "is the record of the store 'default', which only its recorder writes" in answer.err
    assert cli.ok("log", "--store", "lmdb:./copy", "--ticks").out == before
    cli.ok("record", "--store", "lmdb:./eu", "--into", "lmdb:./copy", "--once")


def test_a_line_names_ten_members_at_most(sites: Sites) -> None:
    sites.describe(**{f"x{n:02}": f"lmdb:./nowhere{n}" for n in range(13)})
    answer = sites.cli.ok("fleet", "ls", "--behind", "leave-out")
    (line,) = said(answer.err)
    names = ", ".join(f"x{n:02}" for n in range(10))
    assert line == f"snapkv: 13 of 15 members are left out: {names}, and 3 more"
    answer = sites.cli("fleet", "ls")
    assert answer.err.count("no store at") == 10
    assert "; and 3 more; --behind" in answer.err


def test_names_for_one_line() -> None:
    assert listed([]) == ""
    assert listed(["a"] * 10) == ", ".join("a" * 10)


def test_an_error_about_a_member_begins_with_its_name(sites: Sites) -> None:
    (sites.cli.place / "bad").mkdir()
    (sites.cli.place / "bad" / "file").write_text("not a store")
    sites.describe(bad="lmdb:./bad")
    answer = sites.cli("fleet", "ls", "--behind", "leave-out")
    assert answer.code == 5
    assert answer.err.startswith("snapkv: bad: ")
    error = errors.EngineUnavailableError("eu-1 does not answer")
    assert message_of(error) == "eu-1 does not answer"
    error.member = "eu-1"
    assert message_of(error) == "eu-1 does not answer", "not twice"
    error.member = "eu"
    assert message_of(snapkv.MembersBehindError(0, {})).startswith("1970")
    assert code_of(snapkv.MembersBehindError(0, {})) is Exit.LATER


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["ls", "--fleet", "./none.toml"], 2, "none.toml"),
        (["ls", "--fleet", "./torn.toml"], 2, "torn.toml is not TOML"),
        (["ls", "--members", "x*"], 2, "no member is named 'x*'"),
        (["ls", "--behind", "later"], 2, "--behind takes error, stale, leave-out, not 'later'"),
        (["watch", "--behind", "stale"], 2, "--behind takes error, leave-out, not 'stale'"),
        (["ls", "--at", "rev:3"], 2, "each member has its own: give a time"),
        (["ls", "--at", "3"], 2, "3 is not a timestamp"),
        (["ls", "--timeout", "0s"], 2, "timeout"),
        (["diff", "--perfix", "-1h"], 2, "--perfix"),
        (["tick", "-n", "2"], 2, "--count needs --every"),
        (["tick", "--every", "99ms"], 2, "--every takes 100ms at least"),
        (["log", "image", "--stat"], 2, "leave options of differences out"),
        (["log", "image", "--prefix", "a"], 2, "leave --prefix out"),
        (["list"], 2, "Did you mean 'ls'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_one_line(
    sites: Sites, words: list[str], code: int, says: str
) -> None:
    (sites.cli.place / "torn.toml").write_text("[members")
    answer = sites.cli("fleet", *words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (code, "", 1), answer.err
    assert says in answer.err


def test_which_fleet(cli: Cli) -> None:
    answer = cli("fleet", "ls")
    assert (answer.code, answer.err) == (
        2,
        "snapkv: which fleet? Give --fleet FILE or set SNAPKV_FLEET\n",
    )
    shown = cli.ok("fleet")
    assert "diff" in shown.out, "the group alone shows its help"
    assert shown.out == cli.ok("fleet", "--help").out


def test_json_before_the_group_counts(sites: Sites) -> None:
    before = sites.cli.ok("--json", "fleet", "ls")
    assert before.json == sites.cli.ok("fleet", "ls", "--json").json


# --- status ---


def test_status_of_each_member_and_of_all(sites: Sites) -> None:
    cli = sites.cli
    sites.put("eu", 30, image="v3")
    sites.describe(
        old=f'url = "lmdb:./eu", prefix = "x/", left = "{at(5)}"',
        za="lmdb:./nowhere",
    )
    rows = cli.ok("fleet", "status", "--json").json
    members = {row["member"]: row for row in rows[:-1]}
    assert [(name, row["state"]) for name, row in members.items()] == [
        ("eu", "live"),
        ("old", "absent"),
        ("us", "live"),
        ("za", "missing"),
    ]
    assert members["eu"]["final"]["time"] == at(30)
    assert members["eu"]["lag_s"] > 1e7
    assert members["us"]["url"] == f"lmdb:{cli.place}/us"
    assert members["old"]["left"]["time"] == at(5)
    assert members["old"]["prefix"] == "x/"
    assert members["za"]["final"] == {"timestamp": None, "time": None}
    assert "no store at" in members["za"]["error"]
    assert rows[-1]["resolved"]["all"]["time"] is None, "nothing is known of za"
    known = cli.ok("fleet", "status", "--members", "eu,us", "--json").json[-1]["resolved"]
    assert (known["all"]["time"], known["99%"]["time"]) == (at(9), at(9))
    lines = cli.ok("fleet", "status").lines
    assert lines[0].startswith(f"eu     live     {at(30)}  ")
    assert lines[3].startswith("za     missing  -  -  lmdb:")
    assert [line.split()[0] for line in lines[4:]] == ["(all)", "(99%)"]
    table = cli.ok("fleet", "status", "-o", "table").lines
    assert table[0].split() == ["MEMBER", "STATE", "FINAL", "LAG", "WHERE", "ERROR"]
    assert len(table) == 7


@pytest.mark.slow
def test_all_and_most_of_many(cli: Cli) -> None:
    made = Sites(cli)
    made.describe(**{f"m{n:03}": f'url = "lmdb:./one", name = "s{n}"' for n in range(101)})
    for n in range(101):
        with made.store("one", 5 if n == 7 else 10, name=f"s{n}") as store:
            store.tick()
    resolved = cli.ok("fleet", "status", "--json").json[-1]["resolved"]
    assert (resolved["all"]["time"], resolved["99%"]["time"]) == (at(5), at(10))


# --- diff ---


def test_differences_have_their_member(sites: Sites) -> None:
    cli = sites.cli
    sites.remove("us", 10, "app/us")
    sites.tick(11)
    answer = cli.ok("fleet", "diff", at(2))
    assert answer.lines == [
        "eu  + app/eu  {}",
        'eu  ~ image  "v1" -> "v2"',
        'us  - app/us  "yes"',
    ]
    assert cli.ok("fleet", "diff", at(2), at(3)).lines == answer.lines[:2]
    assert cli.ok("fleet", "diff", at(3), at(2), "--prefix", "i").lines == [
        'eu  ~ image  "v2" -> "v1"'
    ]
    rows = cli.ok("fleet", "diff", at(2), "--json").json
    assert rows[-1] == {"member": "us", "key": "app/us", "before": "yes", "after": None}
    assert cli.ok("fleet", "diff", at(2), "--name-only").lines[0] == "eu  app/eu"
    assert cli.ok("fleet", "diff", at(2), "--stat").lines[-1] == (
        "3 keys: 1 added, 1 removed, 1 changed"
    )
    assert cli.ok("fleet", "diff", at(2), "-o", "table").lines[:2] == [
        "MEMBER     KEY     CHANGE",
        "eu      +  app/eu  {}",
    ]


def test_structured_differences_are_those_of_diff(sites: Sites) -> None:
    cli = sites.cli
    sites.put("eu", 10, conf='{"a": 1, "serial": 1}')
    sites.put("eu", 12, conf='{"a": 2, "serial": 2}')
    sites.tick(13)
    lines = cli.ok("fleet", "diff", at(11), "--ignore", "serial").lines
    assert lines == ["eu  ~ conf", "  (1 ignored path differs, too)", "  ~ a: 1 -> 2"]
    alone = cli.ok("diff", at(11), "--ignore", "serial", "--store", "lmdb:./eu").lines
    assert [lines[0].removeprefix("eu  "), *lines[1:]] == alone
    answer = cli.ok("fleet", "diff", at(11), "--ignore", "serial", "--ignore", "a")
    assert answer.lines == []
    assert said(answer.err) == [
        "snapkv: 1 key with only ignored paths was left out: --ignore none shows it"
    ]


def test_members_that_came_and_went_removed_nothing(sites: Sites) -> None:
    cli = sites.cli
    sites.put("fr", 4, image="v1")
    sites.put("late", 5, image="v1")
    sites.put("gone", 1, image="v1")
    sites.describe(
        fr=f'url = "lmdb:./fr", joined = "{at(4)}"',
        late="lmdb:./late",
        gone=f'url = "lmdb:./gone", left = "{at(6)}"',
    )
    sites.tick(9, "fr", "late", "gone")
    sites.described.pop("gone")
    answer = cli.ok("fleet", "diff", at(3), at(8))
    assert answer.lines == []
    assert answer.err.splitlines() == [
        "snapkv: 2 members joined between the two times: fr, late",
        "snapkv: 1 member left between the two times: gone",
    ]
    rows = cli.ok("fleet", "diff", at(3), at(8), "--json").json
    assert rows == [
        {"member": "fr", "change": "joined"},
        {"member": "late", "change": "joined"},
        {"member": "gone", "change": "left"},
    ]
    back = cli.ok("fleet", "diff", at(8), at(3), "--json").json
    assert [(row["member"], row["change"]) for row in back] == [
        ("gone", "joined"),
        ("fr", "left"),
        ("late", "left"),
    ]


def test_a_member_that_is_unknown_at_one_time_removed_nothing(sites: Sites) -> None:
    cli = sites.cli
    sites.put("eu", 20, image="v3")
    words = ["fleet", "diff", at(2), at(15), "--behind", "leave-out"]
    answer = cli.ok(*words)
    assert answer.lines == ["eu  + app/eu  {}", 'eu  ~ image  "v1" -> "v2"']
    assert answer.err.splitlines() == [
        f"snapkv: 1 of 2 members is left out: us (final up to {at(9)})",
        "snapkv: 1 member not compared, unknown at one of the two times: us",
    ]
    first = cli.ok(*words, "--json").json[0]
    assert (first["member"], first["change"]) == ("us", "unknown")
    assert first["error"]


@pytest.mark.parametrize(
    ("span", "code"), [((3, 9), 0), ((2, 9), 1), ((1, 2), 1)], ids=["same", "changed", "joined"]
)
def test_exit_code_of_differences(sites: Sites, span: tuple[int, int], code: int) -> None:
    answer = sites.cli("fleet", "diff", *map(at, span), "--exit-code")
    assert answer.code == code, answer


# --- the file ---


def test_a_file_in_another_folder_and_as_json(sites: Sites, tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    file = folder / "fleet.json"
    file.write_text(json.dumps({"members": {"eu": "lmdb:../eu", "us": f"lmdb:{tmp_path}/us"}}))
    shown = sites.cli.ok("fleet", "ls", "--fleet", str(file))
    assert shown.lines == sites.cli.ok("fleet", "ls").lines
