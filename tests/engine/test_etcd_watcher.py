"""Following real servers over connections that break: no gap, no repetition, no hang."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import pytest
from etcd_engines import CALL_S, Background, events_until, get, head, opened, put, transact
from etcd_server import EtcdProxy, EtcdServer, eventually

from snapkv.base.waiting import monotonic
from snapkv.engine.contract import ALL_KEYS_END, Delete, KeyEvent, Put, Txn
from snapkv.engine.etcd import endpoint
from snapkv.engine.etcd import watch_stream as watcher_module
from snapkv.engine.etcd.engine import EtcdEngine
from snapkv.engine.etcd.watch_stream import QUEUE_BYTES_MAX, SILENCE_S_MAX
from snapkv.errors import CompactedError

pytestmark = pytest.mark.slow

LOOSELY_S = 5.0


@pytest.fixture
def engine(etcd: EtcdServer) -> Iterator[EtcdEngine]:
    with opened(etcd.url) as engine:
        yield engine


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def brief(events: list[KeyEvent]) -> list[tuple[int, bytes, bytes]]:
    return [(event.kv.mod_revision, event.kv.key, event.kv.value) for event in events]


# --- gaps and repetitions -------------------------------------------------------------------


def test_many_cuts_under_a_stream_of_writes(
    etcd: EtcdServer, proxy: EtcdProxy, rng: random.Random
) -> None:
    """Two watchers through a bad network see what one sees that is not disturbed."""
    with opened(etcd.url) as writer, opened(proxy.url) as reader:
        first = put(writer, b"w/start")
        watchers = [reader.watch(b"w/", b"w0", start_revision=first) for _ in range(2)]

        def write() -> int:
            for i in range(600):
                ops = tuple(Put(b"w/%d" % rng.randrange(50), b"%d" % i) for _ in range(1))
                transact(writer, Txn(success=ops if rng.random() < 0.8 else (Delete(b"w/1"),)))
            return put(writer, b"w/end")

        writing = Background(write)
        taken: list[list[KeyEvent]] = [[], []]
        cuts = 0
        while writing.running:
            for events, watcher in zip(taken, watchers, strict=True):
                if (batch := watcher.next(0.01)) is not None:
                    events += batch.events
            if rng.random() < 0.2:
                proxy.cut_all()
                cuts += 1
        last = writing.result()
        with opened(etcd.url) as calm:
            expected = brief(events_until(calm.watch(b"w/", b"w0", start_revision=first), last))
        for events, watcher in zip(taken, watchers, strict=True):
            if not events or events[-1].kv.mod_revision < last:
                events += events_until(watcher, last)
            assert brief(events) == expected
        assert cuts > 5


@pytest.mark.kills_etcd
def test_a_server_that_restarts(etcd: EtcdServer, engine: EtcdEngine) -> None:
    first = put(engine, b"k", b"1")
    watcher = engine.watch(b"k", b"", start_revision=first)
    assert len(events_until(watcher, first)) == 1
    waiting = Background(lambda: events_until(watcher, first + 1))
    etcd.kill()
    etcd.start()
    etcd.gateway.put(b"k", b"2")
    assert brief(waiting.result()) == [(first + 1, b"k", b"2")]


def test_the_rest_of_a_revision_is_not_lost_by_a_cut(proxy: EtcdProxy, rng: random.Random) -> None:
    """Fragments of a large revision: it comes whole or not at all, however often it breaks."""
    with opened(proxy.url) as engine:
        revisions = [put_large(engine, rng.randbytes(8)) for _ in range(4)]
        watcher = engine.watch(b"large/", b"large0", start_revision=revisions[0])
        cutting = threading.Event()

        def cut() -> None:
            while not cutting.wait(rng.uniform(0.02, 0.06)):
                proxy.cut_all()

        cuts = Background(cut)
        events = [] if (batch := watcher.next(0.5)) is None else list(batch.events)
        cutting.set()
        cuts.result()
        if not events or events[-1].kv.mod_revision < revisions[-1]:
            events += events_until(watcher, revisions[-1])
        assert [event.kv.mod_revision for event in events] == [r for r in revisions for _ in keys()]
        assert [event.kv.key for event in events] == keys() * len(revisions)


VALUE_BYTES = 30 << 10


def keys() -> list[bytes]:
    return [b"large/%02d" % i for i in range(48)]


def put_large(engine: EtcdEngine, seed: bytes) -> int:
    """Put 1.4 MiB in one revision: with what comes around it too much for one message."""
    value = (seed * VALUE_BYTES)[:VALUE_BYTES]
    return transact(engine, Txn(success=tuple(Put(key, value) for key in keys()))).header.revision


def test_revisions_too_large_together_come_one_by_one(
    engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "WATCH_ANSWER_BYTES_MAX", 4 << 20)
    revisions = [put_large(engine, b"%d" % i) for i in range(5)]
    watcher = engine.watch(b"\0", ALL_KEYS_END, start_revision=1)
    for revision in revisions:
        batch = watcher.next(20.0)
        assert batch is not None
        assert batch.revision == revision
        assert [event.kv.key for event in batch.events] == keys()


def test_a_revision_larger_than_a_message(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose messages are smaller than what a delete of many keys is told by.

    It comes whole where the client takes it, else in fragments.
    """
    folder = tmp_path_factory.mktemp("small")
    with (
        EtcdServer(folder, flags=["--max-request-bytes=16384", "--max-txn-ops=100"]) as server,
        opened(server.url) as engine,
    ):
        names = [b"d/" + b"n" * 400 + b"%04d" % i for i in range(3000)]
        for at in range(0, len(names), 30):
            transact(engine, Txn(success=tuple(Put(n, b"") for n in names[at : at + 30])))
        gone = transact(engine, Txn(success=(Delete(b"d/", b"d0"),))).header.revision
        fragments = seen_fragments(engine, gone)
        assert fragments > 3  # or this test shows nothing
        for bound, in_fragments in ((endpoint.WATCH_ANSWER_BYTES_MAX, False), (800_000, True)):
            monkeypatch.setattr(endpoint, "WATCH_ANSWER_BYTES_MAX", bound)
            with opened(server.url) as bounded:
                watcher = bounded.watch(b"d/", b"d0", start_revision=gone)
                events = events_until(watcher, gone)
                assert [event.kv.key for event in events] == names
                assert all(event.is_delete for event in events)
                assert watcher._reader._in_fragments == in_fragments


def seen_fragments(engine: EtcdEngine, revision: int) -> int:
    """Count the messages that the server cuts a revision into."""
    from snapkv.engine.etcd import etcd_pb2 as pb

    create = pb.WatchCreateRequest(
        key=b"\0", range_end=b"\0", start_revision=revision, fragment=True
    )
    stream = engine._connection.watch(pb.WatchRequest(create_request=create), 10.0).stream
    try:
        return 1 + next(i for i, a in enumerate(stream) if a.events and not a.fragment)
    finally:
        stream.cancel()


# --- silence --------------------------------------------------------------------------------


def test_a_silent_endpoint_is_left_for_another(etcd: EtcdServer, proxy: EtcdProxy) -> None:
    with (
        EtcdProxy(etcd) as second,
        opened(f"etcd://{proxy.endpoint},{second.endpoint}") as engine,
    ):
        first = put(engine, b"k", b"1")
        watcher = engine.watch(b"k", b"", start_revision=first)
        events_until(watcher, first)
        proxy.pause()
        newest = etcd.gateway.put(b"k", b"2")
        began = monotonic()
        assert brief(events_until(watcher, newest)) == [(newest, b"k", b"2")]
        assert monotonic() - began < SILENCE_S_MAX + 2.5 + LOOSELY_S


def test_a_taker_with_little_time_is_not_kept(
    etcd: EtcdServer, proxy: EtcdProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_module, "SILENCE_S_MAX", 0.3)
    with opened(proxy.url) as engine:
        first = put(engine, b"k", b"1")
        watcher = engine.watch(b"k", b"", start_revision=first)
        events_until(watcher, first)
        proxy.pause()
        for timeout in (0.0, 0.05, 0.5, 1.0):
            began = monotonic()
            watcher.next(timeout)
            assert monotonic() - began < timeout + 0.7
        proxy.resume()
        newest = etcd.gateway.put(b"k", b"2")
        events_until(watcher, newest)


def test_progress_of_an_idle_range(etcd: EtcdServer, engine: EtcdEngine) -> None:
    watcher = engine.watch(b"idle/", b"idle0", start_revision=1)
    newest = etcd.gateway.put(b"elsewhere", b"1")
    for _ in range(3):
        batch = watcher.next(10.0)
        while batch is not None and batch.revision < newest:
            batch = watcher.next(10.0)
        assert batch is not None
        assert batch.events == ()
        assert batch.revision >= newest
        assert watcher.next(0.3) is None  # once per progress
        newest = etcd.gateway.put(b"elsewhere", b"2")


def test_an_idle_watcher_does_not_resume_in_what_was_compacted(
    etcd: EtcdServer, proxy: EtcdProxy
) -> None:
    """Progress is what lets a watcher of a quiet range live through compactions of a busy one."""
    with opened(proxy.url) as engine:
        watcher = engine.watch(b"idle/", b"idle0", start_revision=1)
        for i in range(5):
            newest = etcd.gateway.put(b"busy", b"%d" % i)
        assert events_until(watcher, newest) == []
        etcd.gateway.compact(newest)
        proxy.cut_all()
        last = etcd.gateway.put(b"idle/k", b"1")
        assert brief(events_until(watcher, last)) == [(last, b"idle/k", b"1")]


# --- a slow taker ---------------------------------------------------------------------------


def test_a_slow_taker_holds_the_reader_up_and_loses_nothing(engine: EtcdEngine) -> None:
    value = os.urandom(1 << 20)
    first = put(engine, b"s/0000", value)
    newest = [put(engine, b"s/%04d" % i, value) for i in range(1, 40)][-1]
    watcher = engine.watch(b"s/", b"s0", start_revision=first)
    full = lambda: watcher._reader.queued_bytes >= QUEUE_BYTES_MAX  # noqa: E731
    eventually(full, "a full queue")
    with pytest.raises(AssertionError):  # it stays at its bound, plus the one that overflowed it
        eventually(lambda: watcher._reader.queued_bytes > QUEUE_BYTES_MAX + (2 << 20), wait_s=0.5)
    began = monotonic()
    assert get(engine, b"s/0000") == value  # calls are not held up by it
    other = engine.watch(b"s/0039", b"", start_revision=newest)
    assert len(events_until(other, newest)) == 1
    assert monotonic() - began < LOOSELY_S
    events = events_until(watcher, newest)
    assert [event.kv.key for event in events] == [b"s/%04d" % i for i in range(40)]
    assert all(event.kv.value == value for event in events)


def test_watchers_that_nobody_reads_hold_no_call_up(engine: EtcdEngine) -> None:
    value = os.urandom(1 << 20)
    first = put(engine, b"s/0", value)
    newest = [put(engine, b"s/%d" % i, value) for i in range(1, 30)][-1]
    ignored = [engine.watch(b"s/", b"s0", start_revision=first) for _ in range(4)]
    for watcher in ignored:
        eventually(lambda w=watcher: w._reader.queued_bytes >= QUEUE_BYTES_MAX, "a full queue")
    began = monotonic()
    for i in range(50):
        put(engine, b"k", b"%d" % i)
        get(engine, b"k")
    assert monotonic() - began < LOOSELY_S
    for watcher in ignored:
        watcher.close()
    assert head(engine) == newest + 50


# --- compaction -----------------------------------------------------------------------------


def test_a_start_below_the_compaction(etcd: EtcdServer, engine: EtcdEngine) -> None:
    newest = [put(engine, b"k", b"%d" % i) for i in range(5)][-1]
    etcd.gateway.compact(newest)
    watcher = engine.watch(b"k", b"", start_revision=2)
    for _ in range(2):  # and again
        with pytest.raises(CompactedError) as raised:
            watcher.next(10.0)
        assert (raised.value.requested, raised.value.earliest) == (2, newest)
        assert raised.value.unit == "revision"
    at = engine.watch(b"k", b"", start_revision=newest)
    assert len(events_until(at, newest)) == 1


def test_compaction_overtakes_a_watcher_that_is_cut_off(etcd: EtcdServer, proxy: EtcdProxy) -> None:
    with opened(proxy.url) as engine:
        first = put(engine, b"k", b"1")
        watcher = engine.watch(b"k", b"", start_revision=first)
        events_until(watcher, first)
        proxy.refuse()
        newest = [etcd.gateway.put(b"k", b"%d" % i) for i in range(5)][-1]
        etcd.gateway.compact(newest)
        proxy.resume()
        with pytest.raises(CompactedError) as raised:
            events_until(watcher, newest)
        assert first < raised.value.requested < newest
        assert raised.value.earliest == newest


def test_what_came_before_a_compaction_is_still_told(etcd: EtcdServer, proxy: EtcdProxy) -> None:
    """The error stands in the queue's order."""
    with opened(proxy.url) as engine:
        first = put(engine, b"k", b"1")
        watcher = engine.watch(b"k", b"", start_revision=first)
        eventually(lambda: watcher._reader.queue, "the first event")
        proxy.refuse()
        newest = [etcd.gateway.put(b"k", b"%d" % i) for i in range(5)][-1]
        etcd.gateway.compact(newest)
        proxy.resume()
        eventually(lambda: watcher._reader.error, "the refusal")
        batch = watcher.next(1.0)
        assert batch is not None
        assert batch.revision == first
        with pytest.raises(CompactedError):
            watcher.next(1.0)


def test_what_came_before_a_reconnect_does_not_count_as_after_it(
    etcd: EtcdServer, proxy: EtcdProxy
) -> None:
    """A caller that checks the history after a reconnect has to see where the new stream begins."""
    with opened(proxy.url) as engine:
        first = put(engine, b"k", b"1")
        watcher = engine.watch(b"k", b"", start_revision=first)
        eventually(lambda: watcher._reader.queue, "the first event")
        proxy.cut_all()
        eventually(lambda: watcher._reader.reopened, "the next stream")
        second = put(engine, b"k", b"2")
        eventually(lambda: len(watcher._reader.queue) == 2, "the second event")
        found = []
        while len(found) < 2:
            batch = watcher.next(CALL_S)
            assert batch is not None
            if batch.events:
                found.append((batch.revision, watcher.reopened))
        assert found == [(first, 0), (second, watcher._reader.reopened)]


def test_a_dead_connection_is_noticed_by_who_asks_for_moments(
    etcd: EtcdServer, proxy: EtcdProxy
) -> None:
    """None of its questions is long enough to try the connection: that is done beside them."""
    with (
        EtcdProxy(etcd) as second,
        opened(f"etcd://{proxy.endpoint},{second.endpoint}") as engine,
    ):
        first = put(engine, b"k", b"1")
        watcher = engine.watch(b"k", b"", start_revision=first)
        events_until(watcher, first)
        proxy.pause()
        newest = etcd.gateway.put(b"k", b"2")
        began, events = monotonic(), []
        while not events:
            assert monotonic() - began < SILENCE_S_MAX + 2.5 + LOOSELY_S
            found = watcher.next(0.2)
            events = list(found.events) if found is not None else []
        assert brief(events) == [(newest, b"k", b"2")]
