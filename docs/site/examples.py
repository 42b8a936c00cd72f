"""An extension of griffe: examples in docstrings are shown as code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """Return a docstring whose examples are in blocks of code."""
    return EXAMPLE.sub(
        lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text.replace("\t", "    ")
    )


class Examples(griffe.Extension):
    """Put the sessions of each docstring into blocks of code."""

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:
        """Take one module, class or function as griffe has read it."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
