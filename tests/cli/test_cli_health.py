"""The command health: its answer, and its exit codes."""

import pytest
from cli_runner import Cli

import snapkv
from snapkv.errors import EngineUnavailableError
from snapkv.timeline import Timeline

DAY_MS = 86_400_000


def test_a_healthy_store(any_cli: Cli) -> None:
    cli = any_cli
    written = cli.ok("put", "a", "1", "--json").json[0]
    found = cli.ok("health", "--json").json[0]
    assert found["answers"] is True
    assert found["newest"]["timestamp"] == written["timestamp"]
    rows = dict(line.split(maxsplit=1) for line in cli.ok("health", "--max-age", "1h").lines)
    assert rows["answers"] == "yes"
    assert written["time"] in rows["newest"]


def test_a_store_that_is_too_old(cli: Cli) -> None:
    clock = snapkv.ManualClock(snapkv.SystemClock().now_ms() - DAY_MS)
    with snapkv.open(cli.url, clock=clock) as store:
        answer = cli("health", "--max-age", "10s")
        assert (answer.code, answer.err) == (
            1,
            "snapkv: no commit; at most 10s is allowed\n",
        )
        store.save("a", b"1")
    assert cli.ok("health", "--max-age", "2d").code == 0
    answer = cli("health", "--max-age", "10s", "--json")
    assert answer.code == 1
    assert answer.json[0]["age_s"] > 86_000
    assert answer.err.startswith("snapkv: the newest commit is 86,4")


def test_a_store_that_does_not_answer(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(self: Timeline) -> None:
        raise EngineUnavailableError("no answer from nowhere")

    cli.ok("put", "a", "1")
    monkeypatch.setattr(Timeline, "head", dead)
    answer = cli("health", "--json")
    assert (answer.code, answer.json[0]["answers"]) == (7, False)
    assert answer.err == "snapkv: no answer from nowhere\n"
    assert cli("health").lines[0].split() == ["answers", "no"]
