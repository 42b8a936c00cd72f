"""Views that other packages add to the page, and their links.

A package installs an entry point of the group `snapkv.ui.views`, which names its `ExtraViews`:

    [project.entry-points."snapkv.ui.views"]
    orders = "orders.ui:views"

Its templates extend `base.html`, and a view returns a `snapkv.ui.Page` whose template is
`NAME/FILE`. Its files are served as `/assets/NAME/FILE`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from snapkv.base.waiting import monotonic
from snapkv.errors import SnapKVError
from snapkv.store.store import SnapshotKV
from snapkv.times import When

GROUP = "snapkv.ui.views"
KEPT_S = 2.0
"""The time for which the facts of a source, and what a store has to show, are remembered, in
seconds."""
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Link:
    """A link beside the links to the other views, where a store has something to show.

    `present(store, when)` says whether it has, at a moment (None: now).
    """

    path: str
    label: str
    present: Callable[[SnapshotKV, When | None], bool]


@dataclass(frozen=True, slots=True, eq=False)
class ExtraViews:
    """What a package adds: views by path, links, and its own templates and files.

    `name` begins the names of its templates and files, which are in the folders `templates` and
    `assets` of `package`. `assets` has the media type of each file, `statuses` the HTTP status of
    each of its errors.
    """

    name: str
    package: str
    views: Mapping[str, Callable[[Any], Any]]
    links: Sequence[Link] = ()
    assets: Mapping[str, str] = field(default_factory=dict)
    statuses: Mapping[type[Exception], int] = field(default_factory=dict)

    def status_of(self, error: Exception) -> int | None:
        """Return the HTTP status of one of its errors, None for another error."""
        found = (status for kind, status in self.statuses.items() if isinstance(error, kind))
        return next(found, None)


def installed() -> list[ExtraViews]:
    """Return the views that packages install, by name.

    A package whose views cannot be loaded is left out, with a warning in the log. Costs a look at
    the metadata of each installed package, and their imports.
    """
    found = []
    for each in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        try:
            views = each.load()
        except Exception as e:  # an import may raise anything
            LOGGER.warning("the views %s (%s) are left out: %s", each.name, each.value, e)
            continue
        if isinstance(views, ExtraViews):
            found.append(views)
        else:
            LOGGER.warning("the views %s (%s) are not ExtraViews", each.name, each.value)
    return found


T = TypeVar("T")


class Remembered(Generic[T]):
    """What a call returns, remembered for two seconds; thread-safe."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call, self._lock = call, threading.Lock()
        self._found: tuple[float, T] | None = None

    def __call__(self) -> T:
        """Return it."""
        with self._lock:
            found = self._found
        if found is None or monotonic() - found[0] > KEPT_S:
            found = monotonic(), self._call()
            with self._lock:
                self._found = found
        return found[1]


class PresentLinks:
    """The links of extra views to what a store has."""

    def __init__(self, extra: Sequence[ExtraViews], store: SnapshotKV | None) -> None:
        self._store = store
        self._links = [] if store is None else [link for each in extra for link in each.links]
        self._now = Remembered(lambda: [each for each in self._links if self._has(each, None)])

    def at(self, when: When | None) -> list[tuple[str, str]]:
        """Return paths and labels of links to what the store has now, or had at a moment."""
        now = self._now()
        found = [each for each in self._links if each in now or (when and self._has(each, when))]
        return [(each.path, each.label) for each in found]

    def _has(self, link: Link, when: When | None) -> bool:
        assert self._store is not None
        try:
            return link.present(self._store, when)
        except SnapKVError:
            return False  # the view itself reports it
        except Exception:  # of another package, which must not take down every page
            LOGGER.exception("whether to link to %s cannot be found out", link.path)
            return False
