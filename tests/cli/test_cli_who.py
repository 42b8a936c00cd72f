"""Who changed an object of Kubernetes: managers and the audit log, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import Cli
from rendering.deployments import IMAGE, KEY, PATCHED, REMOVED, SCALED, audit_log, kept

import snapkv
from snapkv.times import PHYSICAL_MS_MAX


@pytest.fixture
def revisions(cli: Cli) -> dict[int, int]:
    """The revisions of a store that has a deployment's versions, by those of the API server."""
    clock = snapkv.ManualClock(1_700_000_000_000)
    with snapkv.open(
        cli.url, clock=clock, writer="", max_clock_skew=PHYSICAL_MS_MAX // 1_000
    ) as store:
        return kept(store, clock)


@pytest.fixture
def audit(revisions: dict[int, int], tmp_path: Path) -> tuple[str, str]:
    return "--audit", str(audit_log(tmp_path / "audit.log", revisions=revisions))


def test_history_shows_managers(cli: Cli, revisions: dict[int, int]) -> None:
    lines = {line.split()[1]: line for line in cli.ok("history", KEY).lines}
    assert lines[str(revisions[IMAGE])].endswith("  kubectl-set")
    assert "kube" not in lines[str(revisions[SCALED])]
    shown = {each["revision"]: each for each in cli.ok("history", KEY, "--json").json}
    assert shown[revisions[IMAGE]]["managers"] == ["kubectl-set"]
    assert shown[revisions[IMAGE]]["writer"] is None
    assert "managers" not in shown[revisions[SCALED]]


def test_blame_shows_managers_and_users(
    cli: Cli, revisions: dict[int, int], audit: tuple[str, str]
) -> None:
    at = ("--at", f"rev:{revisions[SCALED]}")
    (image,) = [line for line in cli.ok("blame", KEY, *at).lines if ".image: " in line]
    assert image.split()[1:3] == [str(revisions[IMAGE]), "kubectl-set"]
    found = {each["place"]: each for each in cli.ok("blame", KEY, "--json", *at, *audit).json}
    assert found["spec.template.spec.containers[0].image"]["managers"] == ["kubectl-set"]
    assert found["spec.replicas"]["audit"]["user"] == "admin"
    shown = cli.ok("blame", KEY, *at, *audit).out
    assert "  admin via kubectl scale " in shown
    assert "  admin via kubectl-set " in shown


def test_log_and_show_name_the_user(
    cli: Cli, revisions: dict[int, int], audit: tuple[str, str]
) -> None:
    scaled = f"rev:{revisions[SCALED]}"
    assert "writer     admin via kubectl scale\n" in cli.ok("show", scaled, *audit).out
    assert "admin" not in cli.ok("show", scaled).out
    assert "writer     kubectl-set\n" in cli.ok("show", f"rev:{revisions[IMAGE]}").out
    bob = cli.ok("log", *audit, "--writer", "bob").lines
    assert len(bob) == 1
    assert bob[0].endswith("  admin as bob via kubectl")
    patched = cli.ok("log", "-p", *audit, "--writer", "bob", "--json").json
    assert patched[0]["revision"] == revisions[PATCHED]
    assert patched[0]["managers"] == ["kubectl-patch"]
    assert patched[0]["audit"]["impersonated"] == "bob"
    removal = cli.ok("log", KEY, "-n1", *audit).lines[0]
    assert removal.endswith(f"  {revisions[REMOVED]}  admin via kubectl (likely)")


def test_a_broken_line_is_reported_and_a_missing_file_is_an_error(
    cli: Cli, revisions: dict[int, int], audit: tuple[str, str]
) -> None:
    with open(audit[1], "a") as file:
        file.write('{"verb":"patch", "objectRef": {"na')
    answer = cli.ok("log", "-n1", *audit)
    assert "1 line of the audit log cannot be read" in answer.err
    refused = cli("log", "--audit", "nothing.log")
    assert refused.code == 2
    assert "--audit nothing.log: No such file or directory" in refused.err
