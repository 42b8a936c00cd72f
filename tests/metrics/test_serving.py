"""Metrics of processes that serve nothing else: recorders, tickers, captures."""

import urllib.request

import pytest

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
        (cdcmeta_main, ["capture"]),
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
