"""What a server says of itself over plain HTTP: versions to warn of, and its clock."""

from __future__ import annotations

import http.server
import json
import threading
import warnings
from collections.abc import Iterator
from email.utils import formatdate

import pytest
from etcd_engines import events_until, opened, put
from etcd_server import EtcdProxy, EtcdServer, eventually

import snapkv
from snapkv.base.waiting import monotonic
from snapkv.clock import SystemClock
from snapkv.engine.etcd import server as server_module
from snapkv.engine.etcd.server import (
    ASK_AGAIN_S,
    FRESH_S,
    FRESH_WAIT_S,
    OPENING_S,
    SAMPLE_AGAIN_S,
    SAMPLE_S,
    ServerClock,
    advice_on,
)
from snapkv.errors import ClockSkewError, ServerWarning

pytestmark = pytest.mark.slow

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
    """The monotonic clock of the modules, to be set."""
    clock = [1_000.0]
    monkeypatch.setattr(server_module, "monotonic", lambda: clock[0])
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
    server = ServerClock(lambda: (fake.endpoint,), None)
    with pytest.warns(ServerWarning, match="3\\.5\\.1 is known to corrupt") as warned:
        server.look()
    assert len(warned) == 1
    with warnings.catch_warnings():  # whoever commits is told nothing new
        warnings.simplefilter("error")
        for version in ("3.5.27", "3.5.2", "3.5.30"):
            fake.version = version
            now[0] += SAMPLE_S + 1
            assert server.time_ms() is not None
            eventually(lambda v=version: server.version == v, "another look")
    assert fake.asked == 4


def test_a_warning_that_is_an_error_leaves_what_was_seen(fake: Fake) -> None:
    fake.version = "3.5.1"
    server = ServerClock(lambda: (fake.endpoint,), None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ServerWarning):
            server.look()
        assert server.version == "3.5.1"
        assert server.time_ms() is not None


def test_the_clock_is_looked_at_now_and_then(fake: Fake, now: list[float]) -> None:
    server = ServerClock(lambda: (fake.endpoint,), None)
    server.look()
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
    old = server.time_ms()
    assert old is not None
    assert old[0] - first[0] == 100_000 + 1_000 * SAMPLE_S, "the old look serves meanwhile"
    eventually(lambda: seen_skew(server) > HOUR_MS - 3_000, "another look")
    assert seen_skew(server) - HOUR_MS < 3_000
    assert fake.asked == 2


def seen_skew(server: ServerClock) -> int:
    """Return by how much the server's clock is seen to be ahead of ours."""
    found = server.time_ms()
    assert found is not None
    return found[0] - SystemClock().now_ms()


@pytest.mark.parametrize("wrong", ["no date", "no etcd", "nobody"])
def test_a_clock_that_cannot_be_seen(wrong: str, fake: Fake, now: list[float]) -> None:
    fake.date = wrong != "no date"
    endpoint = fake.endpoint if wrong != "nobody" else "127.0.0.1:1"
    if wrong == "no etcd":
        fake.version = None  # type: ignore[assignment]
        fake.RequestHandlerClass.do_GET, plain = _not_found, fake.RequestHandlerClass.do_GET  # type: ignore[attr-defined]
    try:
        server = ServerClock(lambda: (endpoint,), None)
        if wrong == "no date":
            with pytest.warns(ServerWarning, match="shows no clock"):
                server.look()
        else:
            server.look()
        assert server.time_ms() is None
        asked = fake.asked
        assert server.time_ms() is None
        assert fake.asked == asked  # not again so soon
    finally:
        if wrong == "no etcd":
            fake.RequestHandlerClass.do_GET = plain  # type: ignore[attr-defined]
    if wrong == "no date":
        assert server.version == fake.version
        fake.date = True
        now[0] += SAMPLE_AGAIN_S
        eventually(lambda: server.time_ms() is not None, "another look")


def test_a_clock_that_is_hidden_later_goes_on(fake: Fake, now: list[float]) -> None:
    """A look without a time takes nothing away: what was wrong by the last one stays so."""
    server = ServerClock(lambda: (fake.endpoint,), None)
    server.look()
    first = server.time_ms()
    fake.date = False
    now[0] += SAMPLE_S
    later = server.time_ms(fresh=True)
    assert fake.asked == 2
    assert first is not None
    assert later is not None
    assert later[0] - first[0] == 1_000 * SAMPLE_S


def test_another_endpoint_shows_the_clock(fake: Fake) -> None:
    with Fake() as hiding:
        threading.Thread(target=hiding.serve_forever, daemon=True).start()
        hiding.date = False
        server = ServerClock(lambda: (hiding.endpoint, fake.endpoint), None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            server.look()
        assert (hiding.asked, fake.asked) == (1, 1)
        assert server.time_ms() is not None
        hiding.shutdown()


def test_where_nobody_can_be_asked_for_the_time() -> None:
    with pytest.warns(ServerWarning, match="shows no clock") as warned:
        ServerClock(lambda: (), None).look()
    assert len(warned) == 1


def _not_found(self: Answers) -> None:
    self.server.asked += 1
    self.send_error(404)


@pytest.mark.parametrize("skew_ms", [-HOUR_MS, HOUR_MS])
def test_clocks_that_differ_stop_commits(skew_ms: int, etcd: EtcdServer, fake: Fake) -> None:
    with snapkv.open(etcd.url) as store:
        stamp = store.save("a", b"1")
        before = etcd.gateway.revision()
        fake.skew_ms = skew_ms
        store._core.engine._server = seen(fake)
        with pytest.raises(ClockSkewError) as raised:
            store.save("a", b"2")
        assert abs(raised.value.skew_ms + skew_ms) < 5_000
        assert etcd.gateway.revision() == before
        assert store.load("a", stamp) == b"1"  # reading goes on
        fake.date = False
        with pytest.warns(ServerWarning):
            store._core.engine._server = seen(fake)
        store.save("a", b"2")


def seen(fake: Fake) -> ServerClock:
    """Return a server after its first look."""
    server = ServerClock(lambda: (fake.endpoint,), None)
    server.look()
    return server


# --- looking again --------------------------------------------------------------------------


@pytest.mark.parametrize("skew_ms", [-HOUR_MS, HOUR_MS])
def test_a_look_that_grew_wrong_refuses_nothing(skew_ms: int, etcd: EtcdServer, fake: Fake) -> None:
    """A machine that slept, or a clock that was set right since."""
    with snapkv.open(etcd.url) as store:
        fake.skew_ms = skew_ms
        store._core.engine._server = seen(fake)
        fake.skew_ms = 0
        store.save("a", b"1")
        assert fake.asked == 2
        store.save("a", b"2")
        assert fake.asked == 2


def test_doubting_looks_again_but_not_all_the_time(
    etcd: EtcdServer, fake: Fake, now: list[float]
) -> None:
    with snapkv.open(etcd.url) as store:
        fake.skew_ms = HOUR_MS
        store._core.engine._server = seen(fake)
        for asked in (2, 3):
            for _ in range(3):
                with pytest.raises(ClockSkewError):
                    store.save("a", b"1")
                assert fake.asked == asked
            now[0] += FRESH_S
        fake.skew_ms = 0
        store.save("a", b"1")


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Looks that hang until the event: resolving a name has no bound."""
    go = threading.Event()

    def hangs(*_: object) -> None:
        go.wait(30.0)
        raise OSError("no such name")

    monkeypatch.setattr(server_module, "sample", hangs)
    yield go
    go.set()
    gone = lambda: "snapkv clock" not in {t.name for t in threading.enumerate()}  # noqa: E731
    eventually(gone, "the look to end")


def test_a_look_that_hangs_keeps_nobody(etcd: EtcdServer, request: pytest.FixtureRequest) -> None:
    with snapkv.open(etcd.url) as store:
        server = store._core.engine._server
        request.getfixturevalue("stuck")
        server._next_at = 0.0  # five minutes later
        began = monotonic()
        for _ in range(3):
            store.commit(puts={"a": b"1"}, timeout=2.0)
        assert server._looking.is_alive()
        assert monotonic() - began < 1.0
        assert server.time_ms(fresh=True) is not None  # waited for, for a while
        assert monotonic() - began < FRESH_WAIT_S + 1.0


def test_opening_is_bounded_where_names_hang(stuck: threading.Event, etcd: EtcdServer) -> None:
    began = monotonic()
    with snapkv.open(etcd.url) as store:
        assert monotonic() - began < OPENING_S + 1.0
        store.save("a", b"1")
        assert monotonic() - began < OPENING_S + 2.0


def test_a_forked_child_looks_for_itself(stuck: threading.Event, now: list[float]) -> None:
    server = ServerClock(lambda: ("anywhere:1",), None)
    assert server.time_ms() is None
    parents = server._looking
    server.after_fork()  # the thread is not in the child
    assert server.time_ms() is None
    assert server._looking is None  # it is not time
    now[0] += SAMPLE_AGAIN_S
    assert server.time_ms() is None
    assert server._looking is not None
    assert server._looking is not parents


def test_looks_in_a_forked_child(etcd: EtcdServer) -> None:
    """Forked while a look is on its way: the child has its own."""
    with snapkv.open(etcd.url) as store:
        server = store._core.engine._server
        server._next_at = 0.0
        assert server.time_ms() is not None
        server.after_fork()
        server._sample, server._next_at = None, 0.0
        server.time_ms()
        eventually(lambda: server.time_ms() is not None, "a look")


# --- whether progress is told truly ---------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "true"),
    [(None, False), ("", True), ("3.5.7", False), ("3.5.8", True), ("3.6.0", True), ("x", True)],
)
def test_what_a_version_says_about_progress(told: str | None, true: bool) -> None:
    assert ServerClock(lambda: (), None, lambda: told).tells_progress_truly() is true


def test_a_version_that_was_not_answered_is_asked_for_again(now: list[float]) -> None:
    answers = iter([None, "3.6.0"])
    server = ServerClock(lambda: (), None, lambda: next(answers))
    assert not server.tells_progress_truly()
    assert not server.tells_progress_truly()  # not so soon
    now[0] += ASK_AGAIN_S
    assert server.tells_progress_truly()
    assert server.version == "3.6.0"


def test_the_version_by_grpc(etcd: EtcdServer) -> None:
    """Where HTTP does not tell it, as for an etcd3 client over TLS."""
    with opened(etcd.url) as engine:
        version = engine.info()["version"]
        assert engine._connection.server_version() == version
        engine._server = ServerClock(lambda: (), None, engine._connection.server_version)
        assert engine.info()["version"] == version
        newest = put(engine, b"other")
        began = monotonic()
        events_until(engine.watch(b"idle", b"", start_revision=1), newest)
        assert monotonic() - began < 5.0, "the server by itself tells it every ten minutes"
    assert engine._connection.server_version() is None


def test_no_version_without_an_answer(etcd: EtcdServer) -> None:
    with EtcdProxy(etcd) as proxy, opened(proxy.url) as engine:
        proxy.pause()
        assert engine._connection.server_version() is None
