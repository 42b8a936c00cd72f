"""Metrics of processes that serve nothing else: recorders, tickers, captures."""

import platform
import subprocess
import sys
import urllib.request
from collections.abc import Iterable

import httpx
import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from ui.served import Served as UiServed

import snapkv
from cdcmeta.cli import main as cdcmeta_main
from snapkv.cli import main as snapkv_main
from snapkv.cli import tick_command
from snapkv.errors import InvalidOptionError
from snapkv.metrics import Metrics, metrics_server


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def test_a_registry_is_served_until_the_block_ends():
    with metrics_server("127.0.0.1:0") as served:
        with snapkv.open("memory:", hooks=Metrics(served.registry)) as store:
            store.save("a", b"1")
            text = scraped(served.url)
        assert 'snapkv_commit_members_count{store="default",url="memory:"} 1.0' in text
        assert "process_resident_memory_bytes" in text
    with pytest.raises(OSError, match="refused"):
        scraped(served.url)


@pytest.mark.parametrize(
    "address",
    [
        *("", "9100", ":9100", "a:b", "127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1:1_0"),
        pytest.param("127.0.0.1:" + "9" * 5_000, id="5000-digits"),
    ],
)
def test_what_is_no_address(address):
    with pytest.raises(InvalidOptionError, match="is not HOST:PORT"), metrics_server(address):
        pass


def test_requests_of_the_page_are_counted_by_route_and_code():
    registry = CollectorRegistry()
    with snapkv.open("memory:") as store:
        served = UiServed(store)
        Metrics(registry).count_requests(served.server, "ui")
        with served:
            for path in ("/", "/commits.json", "/assets/style.css", "/no", "/nor", "/key?key=a"):
                served.http.get(path)
            served.http.get("/", headers={"Host": "elsewhere.example"})
    assert counted(registry.collect()) == {
        ("ui", "/", "200"): 1,
        ("ui", "/", "403"): 1,
        ("ui", "/commits", "200"): 1,
        ("ui", "/assets", "200"): 1,
        ("ui", "/key", "404"): 1,
        ("ui", "other", "404"): 2,
    }


def test_requests_of_a_database_are_counted_by_route_and_code():
    words = [sys.executable, "-m", "cdcmeta", "serve", "--store=memory:", "--port=0"]
    words.append("--metrics=127.0.0.1:0")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as serving:
        try:
            metrics, url = (serving.stderr.readline().split()[-1] for _ in range(2))
            with httpx.Client(base_url=url, timeout=20) as http:
                http.put("shop")
                http.put("shop/a%2Fb", json={})
                http.get("shop/none")
                http.get("shop/")
                http.get("shop/_changes")
                http.get("_nothing/of/the/kind/that/exists")
            text = scraped(metrics)
        finally:
            serving.terminate()
    assert 'snapkv_open_stores{store="default",url="memory:"} 1.0' in text
    assert counted(text_string_to_metric_families(text)) == {
        ("couch", "/{db}", "200"): 1,
        ("couch", "/{db}", "201"): 1,
        ("couch", "/{db}/{id}", "201"): 1,
        ("couch", "/{db}/{id}", "404"): 1,
        ("couch", "/{db}/_changes", "200"): 1,
        ("couch", "/{db}/{id}/{rest:path}", "501"): 1,
    }


def counted(metrics: Iterable[Metric]) -> dict[tuple[str, ...], int]:
    """Return the requests by server, route and code."""
    return {
        tuple(sample.labels[name] for name in ("server", "route", "code")): int(sample.value)
        for metric in metrics
        for sample in metric.samples
        if sample.name == "snapkv_http_request_seconds_count"
    }


def test_each_process_shows_its_version():
    registry = CollectorRegistry()
    Metrics(registry)
    labels = {"version": snapkv.__version__, "python": platform.python_version()}
    assert registry.get_sample_value("snapkv_build_info", labels) == 1


def test_an_address_in_use():
    with metrics_server("127.0.0.1:0") as served:
        taken = served.url.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(InvalidOptionError, match="cannot serve"), metrics_server(taken):
            pass


def test_a_ticker_serves_its_metrics(tmp_path, monkeypatch, capfd):
    found = []

    def scrape(self, stop):
        (line,) = [each for each in capfd.readouterr().err.splitlines() if "metrics at" in each]
        self.store = self.connect()
        self.store.tick()
        found.append(scraped(line.split()[-1]))

    monkeypatch.setattr(tick_command.RegularTicker, "_try", scrape)
    words = ["tick", "--every", "1s", "--count", "1", "--metrics", "127.0.0.1:0", "--quiet"]
    url = f"lmdb:{tmp_path / 'meta'}"
    assert snapkv_main([*words, "--store", url]) == 0
    assert f'snapkv_ticks_total{{outcome="committed",store="default",url="{url}"}} 1.0' in found[0]


def test_a_recorder_takes_the_option(tmp_path, capfd):
    url = f"lmdb:{tmp_path / 'meta'}"
    with snapkv.open(url) as store:
        store.save("a", b"1")
    words = ["record", "--store", url, "--into", f"lmdb:{tmp_path / 'copy'}", "--once"]
    assert snapkv_main([*words, "--metrics", "127.0.0.1:0"]) == 0
    assert "snapkv: metrics at http://127.0.0.1:" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (snapkv_main, ["tick", "--every", "1s"]),
        (snapkv_main, ["ui", "--port=0"]),
        (cdcmeta_main, ["capture"]),
        (cdcmeta_main, ["serve", "--port=0"]),
    ],
)
def test_an_invalid_address_is_a_usage_error(main, words, tmp_path, capfd):
    store = f"lmdb:{tmp_path / 'meta'}"
    code = main([*words, "--store", store, "--metrics", "nowhere"])
    assert code in (1, 2)
    assert "is not HOST:PORT" in capfd.readouterr().err
    assert not (tmp_path / "meta").exists()


def test_metrics_of_one_tick_are_a_usage_error(tmp_path, capfd):
    words = ["tick", "--store", f"lmdb:{tmp_path / 'meta'}", "--metrics", "127.0.0.1:0"]
    assert snapkv_main(words) == 2
    assert "--metrics needs --every" in capfd.readouterr().err
