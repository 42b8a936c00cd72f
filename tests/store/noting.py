"""Hooks that keep their events."""

from __future__ import annotations

from typing import TypeVar

import snapkv
from snapkv import hooks as events
from snapkv.hooks import Event

E = TypeVar("E", bound=Event)
METHODS = [name for name in vars(snapkv.Hooks) if name.startswith("on_")]


class Noting(snapkv.Hooks):
    """Keeps every event, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def the(self, kind: type[E]) -> E:
        """Return the only event of one kind."""
        (event,) = self.of(kind)
        return event


def _noted(self: Noting, event: Event) -> None:
    self.events.append(event)


for _method in METHODS:
    setattr(Noting, _method, _noted)

KINDS = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]
