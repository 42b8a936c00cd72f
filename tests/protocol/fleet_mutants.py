"""Mutants: functions of the library with one piece of their text replaced."""

from __future__ import annotations

import inspect
import textwrap
from types import FunctionType
from typing import Any, NamedTuple

import pytest


class Edit(NamedTuple):
    """A piece of the text of a function of a class or module, which has it once; and another."""

    owner: Any
    name: str
    old: str
    new: str = ""

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the function by one with the other piece."""
        owner, name = self.owner, self.name
        given = inspect.getattr_static(owner, name)
        function = given.fget if isinstance(given, property) else given
        assert isinstance(function, FunctionType)
        text = textwrap.dedent(inspect.getsource(function))
        count = text.count(self.old)
        assert count == 1, f"{owner.__name__}.{name} has {count} of {self.old!r}"
        text = "from __future__ import annotations\n" + text.replace(self.old, self.new)
        made: dict[str, Any] = {}
        exec(compile(text, f"a mutant of {name}", "exec"), function.__globals__, made)
        mutant = made[name]
        patch.setattr(owner, name, property(mutant.fget) if isinstance(given, property) else mutant)
