"""Dashboard, alerts, document and code name the same metrics, with the same labels."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from cdcmeta.metrics import CaptureMetrics
from cdcmeta.metrics.captures import CAPTURE, FEED, OWNED
from snapkv.metrics import Metrics
from snapkv.metrics.prometheus import STORE, families

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "metrics.md").read_text()
ALERTS = DOCS / "alerts-snapkv.yaml"
ALERT_TESTS = Path(__file__).with_name("alerts_test.yaml")
ALERT_TESTS = Path(__file__).with_name("alerts_test.yaml")
DASHBOARD = json.loads((DOCS / "grafana-snapkv.json").read_text())
NAME = re.compile(r"\b(?:snapkv|cdcmeta)_\w+")
IMPLIED = {"url", "store", "into", "cluster"}
"""Labels that docs/metrics.md gives in a sentence, not in the tables."""


class Shown(NamedTuple):
    """A metric as Prometheus shows it."""

    kind: str
    labels: frozenset[str]


def of_code() -> dict[str, Shown]:
    """Return every metric by the name that queries use, without the suffixes of histograms."""
    metrics, captures = Metrics(None), CaptureMetrics(registry=None)
    kept = metrics._kept.values()
    described = [(each._name, each._type, each._labelnames) for each in kept]
    gauges = [*families().values(), *captures.describe()]
    described += [(each.name, each.type, each._labelnames) for each in gauges]
    assert {name for name, _, _ in described} == {
        each.name for each in [*metrics.describe(), *captures.describe()]
    }
    return {
        f"{name}_total" if kind == "counter" else name: Shown(kind, frozenset(labels))
        for name, kind, labels in described
    }


CODE = of_code()


def test_the_code_has_the_labels_that_it_declares() -> None:
    assert CODE["snapkv_commit_seconds"].labels == {*STORE, "outcome"}
    assert CODE["snapkv_open_stores"].labels == {*STORE}
    assert CODE["cdcmeta_tables"].labels == {*FEED}
    assert CODE["cdcmeta_capture_leading"].labels == {*CAPTURE}
    assert CODE["cdcmeta_changefeed_checkpoint_lag_seconds"].labels == {*OWNED}


def of_document() -> dict[str, Shown]:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|.*\|$", DOCUMENT, re.MULTILINE)
    return {
        name: Shown(kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows
    }


def test_every_metric_is_documented_and_none_else() -> None:
    expected = {name: Shown(kind, labels - IMPLIED) for name, (kind, labels) in CODE.items()}
    assert of_document() == expected


def queries() -> Iterator[tuple[str, str]]:
    """Yield each query of the dashboard with the title of its panel."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]
    for alert in alerts():
        yield alert["alert"], alert["expr"]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def shown(name: str) -> Shown | None:
    """Return the metric of a name in a query."""
    for suffix in ("_bucket", "_sum", "_count"):
        base = name.removesuffix(suffix)
        if base != name and CODE.get(base, Shown("", frozenset())).kind == "histogram":
            more = {"le"} if suffix == "_bucket" else set()
            return Shown("histogram", CODE[base].labels | more)
    found = CODE.get(name)
    return None if found is None or found.kind == "histogram" else found


@pytest.mark.parametrize(("title", "query"), list(queries()))
def test_every_query_of_the_dashboard_and_the_alerts_asks_what_exists(
    title: str, query: str
) -> None:
    names = NAME.findall(query)
    assert names, "a query without a metric"
    used = set(re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", query))
    for group in re.findall(r"\bby \(([\w, ]+)\)", query):
        used |= {label.strip() for label in group.split(",")}
    for name in names:
        found = shown(name)
        assert found is not None, f"{title}: no metric {name}"
        assert used <= found.labels, f"{title}: {name} has no {used - found.labels}"
        if found.kind == "counter" or name.endswith(("_bucket", "_sum", "_count")):
            assert re.search(rf"(?:rate|increase)\({name}\b", query), f"{title}: a bare {name}"


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_what_is_wrong_with_labels_that_it_has(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    grouped = re.search(r"\bby \(([\w, ]+)\)", alert["expr"])
    assert grouped, "without groups the alert is of everything together"
    used = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
    assert used <= {each.strip() for each in grouped[1].split(",")}


def test_no_two_alerts_have_one_name() -> None:
    names = [each["alert"] for each in alerts()]
    assert len({*names}) == len(names)


PROMQL = {
    r'\b(snapkv|cdcmeta)_\w+(\{\w+(=~|!=|=)"[^"]*"\})?': "VECTOR",
    r"\bVECTOR\[\d+[smhd]\]": "RANGE",
    r"\b\d+(\.\d+)?": "NUMBER",
    r"\b(rate|increase)\(RANGE\)": "VECTOR",
    r"\b(sum|max|min|count)( by \(\w+(, \w+)*\) )?\(VECTOR\)": "VECTOR",
    r"\bhistogram_quantile\(NUMBER, VECTOR\)": "VECTOR",
    r"\bVECTOR (==|!=|<|>|/) (VECTOR|NUMBER)(?!\[)\b": "VECTOR",
}
"""The forms of PromQL that alerts use, and what each becomes; an alert is a vector."""


def kind_of(query: str) -> str:
    """Return what a query becomes; what is not one word is not a query."""
    while (before := query) and (query := _reduced(query)) != before:
        pass
    return query


def _reduced(query: str) -> str:
    for form, kind in PROMQL.items():
        query = re.sub(form, kind, query)
    return query


def test_a_query_that_is_not_promql_is_found() -> None:
    assert kind_of("sum by (url) (rate(snapkv_ticks_total[5m])) > 0.5") == "VECTOR"
    for wrong in ("sum(snapkv_x", "rate(snapkv_x) > 1", "sum by url (snapkv_x)", "snapkv_x > "):
        assert kind_of(wrong) != "VECTOR", wrong


def test_prometheus_takes_the_alerts_and_they_fire_as_they_should() -> None:
    """Asks promtool, too, where it is: Debian's prometheus has it."""
    for alert in alerts():
        assert {"alert", "expr", "labels", "annotations"} <= alert.keys()
        assert re.fullmatch(r"\d+[smhd]", alert.get("for", "0s"))
        assert kind_of(alert["expr"]) == "VECTOR", alert["alert"]
    checks = [
        each
        for test in yaml.safe_load(ALERT_TESTS.read_text())["tests"]
        for each in test["alert_rule_test"]
    ]
    assert {each["alertname"] for each in checks} <= {alert["alert"] for alert in alerts()}
    if shutil.which("promtool") is None:
        return
    for words in (["check", "rules", ALERTS], ["test", "rules", ALERT_TESTS]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_panels_have_their_own_places_and_ids() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    for panel in panels:
        assert panel["type"] == "row" or panel["description"]


def test_a_query_of_a_metric_that_does_not_exist_is_found() -> None:
    assert shown("snapkv_commit_seconds") is None, "a histogram has no sample of its own name"
    assert shown("snapkv_commit_seconds_bucket") is not None
    assert shown("snapkv_no_such_thing") is None
