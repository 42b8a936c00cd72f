"""What others do cannot hold an import up: each look at them ends, and so does the watch."""

import itertools

import pytest

import snapkv
from snapkv.engine.contract import Event, KeyValue, Put, WatchBatch
from snapkv.engine.memory.engine import MemoryEngine
from snapkv.errors import CompactedError, EngineUnavailableError, InvalidURLError
from snapkv.importing.import_prefix import import_prefix
from snapkv.importing.writer import DRAIN_S_MAX, HEAR_S_MAX, Meanwhile
from snapkv.layout import Layout

from .engines import write_raw

LAYOUT = Layout("default")


class Watcher:
    """Says what it is told to, a tenth of a second for each, or is silent as long as it may."""

    def __init__(self, says, elapsed: list[float], reopened_after: int | None = None) -> None:
        self._says, self._elapsed, self._after = iter(says), elapsed, reopened_after
        self.said, self.closed = 0, False

    @property
    def reopened(self) -> int:
        return int(self._after is not None and self.said >= self._after)

    def next(self, timeout):
        assert timeout is not None, "a wait without a bound"
        batch = next(self._says, None)
        if isinstance(batch, Exception):
            raise batch
        self._elapsed[0] += timeout if batch is None else 0.1
        self.said += 1
        return batch

    def close(self) -> None:
        self.closed = True


def progress(revision: int) -> WatchBatch:
    return WatchBatch(revision, ())


def put(key: bytes, revision: int) -> WatchBatch:
    return WatchBatch(revision, (Event(KeyValue(key, b"", revision, revision, 1), False),))


@pytest.fixture
def elapsed(monkeypatch):
    elapsed = [0.0]
    monkeypatch.setattr("snapkv.importing.writer.monotonic", lambda: elapsed[0])
    return elapsed


def meanwhile(watcher: Watcher, monkeypatch) -> Meanwhile:
    engine = MemoryEngine()
    monkeypatch.setattr(engine, "watch", lambda *_, **__: watcher)
    return Meanwhile(engine, LAYOUT, "r/", 10)


def test_a_silent_watch_is_an_error_in_time(elapsed, monkeypatch) -> None:
    with pytest.raises(EngineUnavailableError, match="nothing of revision 12"):
        meanwhile(Watcher([], elapsed), monkeypatch).heard(12)
    assert elapsed[0] == pytest.approx(HEAR_S_MAX)


@pytest.mark.parametrize(
    "endless", [progress, lambda at: put(LAYOUT.data.encode("z"), at)], ids=["progress", "writes"]
)
def test_one_that_tells_other_things_for_ever_too(elapsed, monkeypatch, endless) -> None:
    says = (endless(at) for at in itertools.count(11))
    with pytest.raises(EngineUnavailableError, match="nothing of revision 12"):
        meanwhile(Watcher(says, elapsed), monkeypatch).heard(12)
    assert elapsed[0] == pytest.approx(HEAR_S_MAX, abs=0.2)


def test_commits_without_end_are_taken_for_a_while(elapsed, monkeypatch) -> None:
    watcher = Watcher((put(LAYOUT.ts, at) for at in itertools.count(11)), elapsed)
    others = meanwhile(watcher, monkeypatch)
    known, key = others.heard(12)
    assert (known, key) == (10 + watcher.said, None)
    assert elapsed[0] == pytest.approx(DRAIN_S_MAX, abs=0.2)
    assert others.heard(known + 5)[0] >= known + 5


def test_what_comes_after_the_commit_is_known_too(elapsed, monkeypatch) -> None:
    says = [put(LAYOUT.ts, 12), put(LAYOUT.ts, 13)]
    assert meanwhile(Watcher(says, elapsed), monkeypatch).heard(12) == (13, None)


def test_a_server_lost_while_it_told_is_not_relied_on(elapsed, monkeypatch) -> None:
    for says in ([put(LAYOUT.ts, 12)], [put(LAYOUT.data.encode("r/x"), 11)], []):
        watcher = Watcher(says, elapsed, reopened_after=1)
        assert meanwhile(watcher, monkeypatch).heard(12) is None


@pytest.fixture
def crowded(monkeypatch, elapsed):
    """A store whose commits others forestall, an engine to watch it with, and the watchers."""
    with snapkv.open("memory:crowded") as store, snapkv.open("memory:crowded") as other:
        engine, watchers, says = store._core.engine, [], []
        write_raw(engine, *(Put(b"f/%d" % n, b"1") for n in range(3)))
        real = type(store).commit

        def commit(self, **operations):
            if self is store:
                other.save("elsewhere", b"x")
            return real(self, **operations)

        def watch(*_, **__):
            watchers.append(Watcher(says, elapsed, reopened_after=1 if not says else None))
            return watchers[-1]

        with monkeypatch.context() as patch:
            patch.setattr("snapkv.importing.writer.Meanwhile.__init__", _init(watch))
            patch.setattr(type(store), "commit", commit)
            yield store, watchers, says


def _init(watch):
    real = Meanwhile.__init__

    class Watching:
        def __init__(self):
            self.watch = watch

    return lambda self, engine, *rest: real(self, Watching(), *rest)


@pytest.mark.parametrize(
    "error",
    [EngineUnavailableError("lost"), CompactedError(1, 2, unit="revision"), KeyboardInterrupt()],
    ids=lambda e: type(e).__name__,
)
def test_an_error_of_the_watch_ends_the_import_and_the_watch(crowded, monkeypatch, error) -> None:
    store, watchers, _ = crowded

    def fails(self, timeout):
        raise error

    monkeypatch.setattr(Watcher, "next", fails)
    with pytest.raises(type(error)):
        import_prefix(store, "memory:crowded", "f/")
    assert [watcher.closed for watcher in watchers] == [True]
    assert list(store.at().keys("f/")) == []


def test_a_lost_watch_gives_way_to_another_and_is_closed(crowded) -> None:
    store, watchers, _ = crowded
    with pytest.raises(snapkv.ConflictError, match="too often"):
        import_prefix(store, "memory:crowded", "f/")
    assert len(watchers) > 1
    assert all(watcher.closed for watcher in watchers)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:1/?password=PW", "'http:...'"),
        ("etcdd://user:PW@h:1", "'etcdd:...'"),
        ("odd:password=PW", "'odd:...'"),
        ("PW@h:1", "'...'"),
        ("h?password=PW", "'...'"),
        ("./meta", "'./meta'"),
        ("redis:x", "'redis:x'"),
    ],
)
def test_a_url_that_nobody_understands_keeps_its_secrets(url: str, shown: str) -> None:
    with snapkv.open("memory:") as store:
        for call in (lambda: import_prefix(store, url, "r/"), lambda: snapkv.open(url)):
            with pytest.raises(InvalidURLError, match="no engine for") as told:
                call()
            assert f"no engine for {shown};" in str(told.value)
            assert "PW" not in str(told.value) + told.value.url
