"""Who changed an object of Kubernetes, on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from rendering.deployments import IMAGE, KEY, SCALED, audit_log, kept

import snapkv
from snapkv.rendering.audit_log import AuditLog
from snapkv.times import PHYSICAL_MS_MAX

from .served import Served

pytestmark = pytest.mark.slow


def test_the_page_shows_managers_and_users(tmp_path: Path) -> None:
    clock = snapkv.ManualClock(1_700_000_000_000)
    skew = PHYSICAL_MS_MAX // 1_000
    with (
        snapkv.open("memory:", clock=clock, writer="", max_clock_skew=skew) as store,
        Served(store) as served,
    ):
        revisions = kept(store, clock)
        image, scaled = (f"/commit?at=rev:{revisions[each]}" for each in (IMAGE, SCALED))
        assert "kubectl-set" in served.page(image).text
        assert "admin" not in served.page(scaled).text
        rows = {each["revision"]: each for each in served.json(f"/key.json?key={KEY}")["versions"]}
        assert rows[revisions[IMAGE]]["managers"] == ["kubectl-set"]
        assert rows[revisions[IMAGE]]["audit"] is None

        path = audit_log(tmp_path / "audit.log", revisions=revisions)
        served.site.audit = AuditLog([path])
        assert "admin via kubectl scale" in served.page(scaled).text
        assert "admin via kubectl-set" in served.page(f"/key?key={KEY}").text
        blame = served.page(f"/key?key={KEY}&tab=blame&at=rev:{revisions[SCALED]}").text
        assert "admin via kubectl scale" in blame
        assert "admin via kubectl-set" in blame
        found = served.json("/commits.json?writer=BOB")["steps"]
        assert [each["audit"]["impersonated"] for each in found] == ["bob"]
