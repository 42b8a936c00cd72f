"""Sources that fail or wait when a test wants, and commits of tables."""

import snapkv
from snapkv import Change, Changes, Commit


def commit(ts, **values):
    """Return a commit of the table `t/`."""
    head = Commit(ts, 0, ts, "ann@host", "why")
    changes = (Change(f"t/{key}", value, head) for key, value in values.items())
    return Changes(head, tuple(changes))


def content(store):
    return dict(store.at().items())


def below(store, tables):
    return {k: v for k, v in content(store).items() if k.startswith(tuple(tables))}


class Hooked:
    """A store whose reads call a function first, which may raise or wait.

    `before(since)` is called before a watch opens and before each of its commits, with the time
    that the watch began at (None: now); `before_read()` before each key of a state.
    """

    def __init__(self, store):
        self.store = store
        self.before, self.before_read = lambda since: None, lambda: None

    def watch(self, *, since=None):
        self.before(since)
        return HookedWatch(self, self.store.watch(since=since), since)

    def at(self, when):
        return HookedSnapshot(self, self.store.at(when))

    def __getattr__(self, name):
        return getattr(self.store, name)


class HookedWatch:
    def __init__(self, source, inner, since):
        self._source, self._inner, self._since = source, inner, since

    def next(self, timeout):
        self._source.before(self._since)
        return self._inner.next(timeout)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._inner.close()


class HookedSnapshot:
    def __init__(self, source, inner):
        self._source, self._inner, self.revision = source, inner, inner.revision

    def entries(self, prefix):
        for entry in self._inner.entries(prefix):
            self._source.before_read()
            yield entry


def stopping(errors):
    """Return a function that raises errors in turn, for None nothing, and nothing after them."""
    left = iter(errors)

    def call(*_):
        error = next(left, None)
        if error is not None:
            raise error

    return call


def open_source(kind, path):
    return snapkv.open("memory:" if kind == "memory" else f"lmdb:{path}")
