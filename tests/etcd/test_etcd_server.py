"""What a server says of itself over plain HTTP: versions to warn of, and its clock."""

from __future__ import annotations

import http.server
import json
import threading
import warnings
from collections.abc import Iterator
from email.utils import formatdate

import pytest
from etcd_server import EtcdServer

import snapkv
from snapkv.clock import SystemClock
from snapkv.engine.etcd import server as server_module
from snapkv.engine.etcd.server import SAMPLE_AGAIN_S, SAMPLE_S, Server, advice_on
from snapkv.errors import ClockSkewError, ServerWarning

HOUR_MS = 3_600_000


class Fake(http.server.ThreadingHTTPServer):
    """Answers /version like an etcd of some version, with a clock that may be wrong."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.version = "3.5.30"
        self.skew_ms = 0
        self.date = True
        self.asked = 0

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Answers(http.server.BaseHTTPRequestHandler):
    server: Fake

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response_only(200)
        if self.server.date:
            now_s = (SystemClock().now_ms() + self.server.skew_ms) / 1_000
            self.send_header("Date", formatdate(now_s, usegmt=True))
        self.end_headers()
        self.wfile.write(json.dumps({"etcdserver": self.server.version}).encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock of the module, to be set."""
    clock = [1_000.0]
    monkeypatch.setattr(server_module, "monotonic", lambda: clock[0])
    return clock


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("3.4.23", "older"),
        ("3.5.0", "corrupt"),
        ("3.5.1", "corrupt"),
        ("3.5.2", "corrupt"),
        ("3.5.3", "known bugs"),
        ("3.5.16", "known bugs"),
        ("3.5.27", "known bugs"),
        ("3.5.28", None),
        ("3.5.30", None),
        ("3.6.0-rc.1", "known bugs"),
        ("3.6.8", "known bugs"),
        ("3.6.9", None),
        ("3.7.1", None),
        ("4.0.0", None),
        ("garbage", None),
        ("", None),
        ("3.5", None),
        ("3.5.x", None),
    ],
)
def test_advice_on_versions(version: str, words: str | None) -> None:
    advice = advice_on(version)
    if words is None:
        assert advice is None
    else:
        assert advice is not None
        assert words in advice
        assert version in advice


def test_an_old_version_is_warned_of_once(fake: Fake, now: list[float]) -> None:
    fake.version = "3.5.1"
    server = Server(lambda: (fake.endpoint,), None)
    with pytest.warns(ServerWarning, match="3\\.5\\.1 is known to corrupt") as warned:
        server.look()
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            now[0] += SAMPLE_S + 1
            assert server.time_ms() is not None
        fake.version = "3.5.30"
        now[0] += SAMPLE_S + 1
        server.look()
    assert fake.asked == 5
    assert server.version == "3.5.30"


def test_the_clock_is_looked_at_now_and_then(fake: Fake, now: list[float]) -> None:
    server = Server(lambda: (fake.endpoint,), None)
    first = server.time_ms()
    assert first is not None
    now[0] += 100
    later = server.time_ms()
    assert later is not None
    assert later[0] - first[0] == 100_000
    assert later[1] > first[1]
    assert fake.asked == 1
    fake.skew_ms = HOUR_MS
    now[0] += SAMPLE_S
    skewed = server.time_ms()
    assert skewed is not None
    assert abs(skewed[0] - SystemClock().now_ms() - HOUR_MS) < 3_000
    assert fake.asked == 2


@pytest.mark.parametrize("wrong", ["no date", "no etcd", "nobody"])
def test_a_clock_that_cannot_be_seen(wrong: str, fake: Fake, now: list[float]) -> None:
    fake.date = wrong != "no date"
    endpoint = fake.endpoint if wrong != "nobody" else "127.0.0.1:1"
    if wrong == "no etcd":
        fake.version = None  # type: ignore[assignment]
        fake.RequestHandlerClass.do_GET, plain = _not_found, fake.RequestHandlerClass.do_GET  # type: ignore[attr-defined]
    try:
        server = Server(lambda: (endpoint,), None)
        assert server.time_ms() is None
        asked = fake.asked
        assert server.time_ms() is None
        assert fake.asked == asked  # not again so soon
    finally:
        if wrong == "no etcd":
            fake.RequestHandlerClass.do_GET = plain  # type: ignore[attr-defined]
    if wrong == "no date":
        fake.date = True
        now[0] += SAMPLE_AGAIN_S
        assert server.time_ms() is not None


def _not_found(self: Answers) -> None:
    self.server.asked += 1
    self.send_error(404)


@pytest.mark.parametrize("skew_ms", [-HOUR_MS, HOUR_MS])
def test_clocks_that_differ_stop_commits(skew_ms: int, etcd: EtcdServer, fake: Fake) -> None:
    with snapkv.open(etcd.url) as store:
        stamp = store.save("a", b"1")
        before = etcd.gateway.revision()
        fake.skew_ms = skew_ms
        store._core.engine._server = Server(lambda: (fake.endpoint,), None)
        with pytest.raises(ClockSkewError) as raised:
            store.save("a", b"2")
        assert abs(raised.value.skew_ms + skew_ms) < 5_000
        assert etcd.gateway.revision() == before
        assert store.load("a", stamp) == b"1"  # reading goes on
        fake.date = False
        store._core.engine._server = Server(lambda: (fake.endpoint,), None)
        store.save("a", b"2")
