"""Forked children: locks that another thread of the parent held would stay held for ever."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """What must be renewed in a forked child before it is used."""

    def after_fork(self) -> None:
        """Make new locks, and drop what another thread may have left half-changed."""
        ...


_renewables: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(renewable: Renewable) -> None:
    """Call `after_fork` of an object in every child forked from now on, while it lives."""
    _renewables.add(renewable)


def _after_fork() -> None:
    for renewable in list(_renewables):
        renewable.after_fork()


os.register_at_fork(after_in_child=_after_fork)
