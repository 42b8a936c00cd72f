"""Paths into trees: `spec.containers[0].image`, and patterns of paths to ignore."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from snapkv.base.text import quoted
from snapkv.errors import InvalidOptionError

Step = str | int
"""A key of a dict, or the index of a list."""
Path = tuple[Step, ...]

_BARE = re.compile(r"[\w/$@-]+")
_STEPS = re.compile(r'\.?(?:(\*)|\[(\*|[0-9]{1,18}|"(?:[^"\\]|\\.)*")\]|([\w/$@-]+))')
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}

KUBERNETES_NOISE = (
    "metadata.generation",
    "metadata.managedFields",
    "metadata.resourceVersion",
    "spec.renewTime",
    "status.conditions[*].lastHeartbeatTime",
    "status.conditions[*].lastProbeTime",
    "status.observedGeneration",
)
"""The paths that the preset `kubernetes` ignores: bookkeeping of the API server, and heartbeats."""
AUTO, NONE = "auto", "none"
PRESETS = {"kubernetes": KUBERNETES_NOISE}


def path_text(path: Iterable[Step]) -> str:
    r"""Return a path as text; keys with other characters than `\w/$@-` are quoted.

    >>> print(path_text(("spec", "containers", 0, "image")), path_text(()))
    spec.containers[0].image .
    >>> print(path_text(("metadata", "labels", "app.kubernetes.io/name")))
    metadata.labels["app.kubernetes.io/name"]
    """
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _BARE.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{quoted(step)}]"
    return text or "."


class Patterns:
    """Paths to ignore, and what remains of them below each step."""

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Iterable[tuple[Step | None, ...]] = ()) -> None:
        self._patterns = tuple(patterns)

    @classmethod
    def parse(cls, texts: Sequence[str], *, kubernetes: bool = False) -> Patterns:
        """Return the patterns of texts; the name of a preset is replaced by its patterns.

        `auto` is the preset `kubernetes` for values of Kubernetes, which `kubernetes` says, and
        nothing for other values. Raises `InvalidOptionError` for a text that is not a path.
        """
        presets = {**PRESETS, AUTO: KUBERNETES_NOISE if kubernetes else ()}
        found = [text for each in texts for text in presets.get(each, (each,))]
        return cls(map(parse_pattern, found))

    def __bool__(self) -> bool:
        return bool(self._patterns)

    @property
    def covers(self) -> bool:
        """Whether a pattern ends here: everything from here on is ignored."""
        return any(not pattern for pattern in self._patterns)

    def cover(self, path: Path) -> bool:
        """Check whether a path or one above it is ignored."""
        left = self
        for step in path:
            if left.covers:
                return True
            left = left.below(step)
        return left.covers

    def below(self, step: Step | None) -> Patterns:
        """Return what remains of the patterns below a step; None: below each step."""
        if not self._patterns:
            return self
        return Patterns(p[1:] for p in self._patterns if p and p[0] in (None, step))


NO_PATTERNS = Patterns()


@lru_cache(maxsize=256)
def parse_pattern(text: str) -> tuple[Step | None, ...]:
    """Return the steps of a pattern; `*` (any step) is None.

    >>> parse_pattern('status.conditions[*]["last.seen"]')
    ('status', 'conditions', None, 'last.seen')

    Raises `InvalidOptionError`.
    """
    steps: list[Step | None] = []
    at = 0
    while at < len(text):
        found = _STEPS.match(text, at)
        if found is None or (at and found[3] and text[at] != ".") or (at and text[at] == "*"):
            raise InvalidOptionError(
                f"ignored path {text!r}: cannot read it from character {at + 1}; write a path such "
                'as metadata.managedFields, spec.*.image, items[0] or labels["app.name"]'
            )
        steps.append(_step(found))
        at = found.end()
    if not steps:
        raise InvalidOptionError("an ignored path is empty; write one such as metadata.labels")
    return tuple(steps)


def _step(found: re.Match[str]) -> Step | None:
    star, inner, name = found.groups()
    if name is not None:
        return name
    if star or inner == "*":
        return None
    if inner.isdigit():
        return int(inner)
    return _ESCAPE.sub(_unescaped, inner[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)
