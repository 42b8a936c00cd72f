"""The command fleet watch: whole timestamps, resumed anywhere, ended by signals."""

import json
import signal
from itertools import pairwise

import pytest
from cli_fleet import BEGAN_MS, Sites, at
from cli_runner import PROCESS_TIMEOUT_S, Cli
from cli_terminal import following

import snapkv
from snapkv.cli.exits import Exit
from snapkv.cli.fleet import watch_members
from snapkv.fleet import fleet_watch

pytestmark = pytest.mark.slow

IDLE = ["--timeout", "200ms"]


@pytest.fixture
def sites(cli: Cli) -> Sites:
    """Two members with an equal timestamp at second 3, and one commit that changes nothing."""
    made = Sites(cli)
    made.describe(eu="lmdb:./eu", us="lmdb:./us")
    made.put("eu", 1, image="v1")
    made.put("us", 2, image="v1", app="1")
    made.put("eu", 3, "both", image="v2")
    made.put("us", 3, "both", image="v2")
    made.tick(4)
    made.remove("us", 5, "app")
    made.tick(9)
    return made


def watched(sites: Sites, since: object = "0", *words: str) -> list[dict[str, object]]:
    return sites.cli.ok("fleet", "watch", "--since", str(since), *IDLE, "--json", *words).json


def test_each_timestamp_comes_whole_and_once(sites: Sites) -> None:
    items = watched(sites)
    assert [(item["time"], [each["member"] for each in item["members"]]) for item in items] == [  # type: ignore[attr-defined]
        (at(1), ["eu"]),
        (at(2), ["us"]),
        (at(3), ["eu", "us"]),
        (at(5), ["us"]),
    ]
    assert all(item["missing"] == [] for item in items)
    assert items[2]["members"][1] == {  # type: ignore[index]
        "member": "us",
        "revision": 4,
        "writer": "ann@us",
        "note": "both",
        "changes": [{"key": "image", "value": "v2"}],
    }
    text = sites.cli.ok("fleet", "watch", "--since", "0", *IDLE)
    assert text.lines == [
        f"{at(1)}  eu  3  ann@eu",
        '  + image  "v1"',
        f"{at(2)}  us  3  ann@us",
        '  + app  "1"',
        '  + image  "v1"',
        f'{at(3)}  eu  4  ann@eu  "both"',
        '  ~ image  "v1" -> "v2"',
        f'{at(3)}  us  4  ann@us  "both"',
        '  ~ image  "v1" -> "v2"',
        f"{at(5)}  us  6  ann@us",
        '  - app  "1"',
    ]
    end = snapkv.pack(BEGAN_MS + 9_000)
    assert text.err == f"snapkv: the next watch goes on with --since {end}\n"


def test_it_goes_on_after_each_item_as_if_nothing_had_happened(sites: Sites) -> None:
    whole = watched(sites)
    for number, item in enumerate(whole, 1):
        assert watched(sites, item["timestamp"]) == whole[number:]
    for count in range(len(whole) + 1):
        answer = sites.cli.ok("fleet", "watch", "--since", "0", *IDLE, "--json", "-n", str(count))
        assert answer.json == whole[:count]
        since = answer.err.split()[-1]
        assert watched(sites, since) == whole[count:], "what the error stream says goes on there"
    for before, after in pairwise(whole):
        assert int(str(before["timestamp"])) < int(str(after["timestamp"]))


def test_what_is_watched(sites: Sites) -> None:
    items = watched(sites, 0, "--members", "us")
    assert [item["time"] for item in items] == [at(2), at(3), at(5)]
    cli = sites.cli
    of_app = cli.ok("fleet", "watch", "app", "--since", "0", *IDLE, "--json", "-p").json
    assert [item["members"][0]["changes"] for item in of_app] == [
        [{"key": "app", "value": "1", "before": None, "after": "1"}],
        [{"key": "app", "value": None, "before": "1", "after": None}],
    ]
    table = cli.ok("fleet", "watch", "--since", at(4), *IDLE, "-o", "table").lines
    assert table[0].split() == (
        ["TIME", "MEMBER", "REVISION", "WRITER", "NOTE", "META", "KEY", "CHANGE"]
    )
    assert table[1].startswith(f"{at(5)}  us")


def test_a_time_waits_for_all_members(sites: Sites) -> None:
    end = snapkv.pack(BEGAN_MS + 9_000)
    sites.put("eu", 20, image="v3")
    assert watched(sites, end) == []
    sites.tick(20, "us")
    (item,) = watched(sites, end)
    assert item["time"] == at(20)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_between_two_times(sites: Sites, number: signal.Signals) -> None:
    cli = sites.cli
    with following(cli, "fleet", "watch", "--since", "0", "--json") as (process, output):
        items = [json.loads(output.readline()) for _ in range(4)]
        sites.put("us", 20, late="1")
        sites.tick(20, "eu")
        items.append(json.loads(output.readline()))
        process.send_signal(number)
        assert process.wait(PROCESS_TIMEOUT_S) == 0
        assert output.read() == b""
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert items == watched(sites)
    assert said == f"snapkv: the next watch goes on with --since {items[-1]['timestamp']}\n"


def test_the_end_of_its_reader_ends_it(sites: Sites) -> None:
    with following(sites.cli, "fleet", "watch", "--since", "0", "--json") as (process, output):
        output.readline()
        output.close()
        sites.put("us", 20, late="1")
        sites.tick(20, "eu")
        assert process.wait(PROCESS_TIMEOUT_S) == 141


def test_a_file_keeps_where_the_next_watch_goes_on(sites: Sites) -> None:
    everything = watched(sites)
    watch = ("fleet", "watch", "--since", "0", *IDLE, "--json", "--resume", "place.json")
    found = []
    for _ in range(len(everything) + 2):
        found += sites.cli.ok(*watch, "--count", "1").json
    assert found == everything
    sites.put("us", 12, image="v3")
    sites.tick(13)
    assert [item["time"] for item in sites.cli.ok(*watch).json] == [at(12)]
    place = json.loads((sites.cli.place / "place.json").read_text())
    assert snapkv.format_time(place["timestamp"]) == at(13)


def test_a_file_keeps_which_members_were_left_out(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the member that was away has changed comes late, and nothing comes twice."""
    monkeypatch.setattr(fleet_watch, "PATIENCE_S", 0.1)
    sites.describe(ap="lmdb:./ap")
    watch = ("fleet", "watch", "--since", "0", "--json", "--resume", "place.json")
    watch += ("--behind", "leave-out")
    first = sites.cli.ok(*watch, "--count", "4").json
    assert [item["missing"] for item in first] == [["ap"]] * 4
    sites.put("ap", 1, image="v1")
    sites.put("us", 11, image="v3")
    sites.tick(12)
    rest = sites.cli.ok(*watch, "--count", "2").json
    assert [item.get("late", item.get("time")) for item in rest] == ["ap", at(11)]
    assert [each["time"] for each in rest[0]["commits"]] == [at(1)]


def test_a_file_that_is_no_place_of_a_watch(sites: Sites) -> None:
    place = sites.cli.place / "place.json"
    place.write_text("12")
    answer = sites.cli("fleet", "watch", *IDLE, "--resume", "place.json")
    assert (answer.code, answer.out) == (2, "")
    assert "place.json does not say where a watch goes on" in " ".join(answer.err.split())
    assert "no/place.json" in sites.cli("fleet", "watch", "--resume", "no/place.json", *IDLE).err
    assert place.read_text() == "12"
    place.write_text("")  # as `mktemp` makes it
    assert len(watched(sites, "0", "--resume", "place.json")) == 4


def test_a_file_that_follows_other_members(sites: Sites) -> None:
    watched(sites, "0", "--resume", "place.json")
    answer = sites.cli("fleet", "watch", *IDLE, "--resume", "place.json", "--members", "eu")
    assert (answer.code, answer.out) == (2, "")
    assert "place.json follows us" in " ".join(answer.err.split())


def test_a_watch_that_fails_keeps_no_place(sites: Sites) -> None:
    """Or the next one would not begin where it is told to."""
    clock = snapkv.ManualClock(BEGAN_MS + 4_000_000)
    with snapkv.open(f"lmdb:{sites.cli.place / 'us'}", clock=clock) as store:
        early = store.tick().ts
        clock.advance(5_000_000)
        store.tick()
        assert store.compact(early).earliest == early
    sites.tick(9_001)
    answer = sites.cli("fleet", "watch", "--since", "0", *IDLE, "--resume", "place.json")
    assert (answer.code, answer.out) == (Exit.COMPACTED, "")
    assert not (sites.cli.place / "place.json").exists()


def test_members_that_a_file_does_not_name_are_not_silently_left_out(sites: Sites) -> None:
    watch = ("fleet", "watch", "--since", "0", *IDLE, "--json", "--resume", "place.json")
    sites.cli.ok(*watch)
    sites.describe(ap="lmdb:./ap")
    sites.put("ap", 20, image="v1")
    sites.tick(21)
    answer = sites.cli.ok(*watch)
    assert answer.json == []
    assert "1 member not followed, as place.json does not name them" in answer.err
    assert answer.err.split(": ")[2].startswith("ap")


def test_members_that_hold_it_back_are_named(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_members, "HELD_BACK_S", 0.2)
    sites.put("us", 11, image="v3")
    answer = sites.cli.ok("fleet", "watch", "--since", str(at(9)), "--timeout", "1s")
    assert answer.lines == []
    assert "1 member not final yet, while changes wait for it: eu" in answer.err
