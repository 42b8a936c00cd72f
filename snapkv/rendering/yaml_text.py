"""YAML to trees and back; the only module that imports PyYAML.

A plain scalar becomes null, a bool or a number if JSON would write it so, and stays the text it is
otherwise: `yes`, `0644`, `12:30` and dates are text. Aliases are followed, within the bounds of a
tree. Tags, merge keys (`<<`) and several documents in one value are left to the view as text.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from snapkv.base.text import escaped
from snapkv.rendering.value_tree import (
    NotThisKindError,
    OtherText,
    Tree,
    WrittenFloat,
    bytes_text,
    checked,
    float_of,
    scalar_text,
)

YAML_CHARS_MAX = 1 << 19
"""The most characters of a text that is read as YAML: PyYAML needs more than a second for a longer
one."""

_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,39})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]{0,39})(?:\.[0-9]{1,40})?(?:[eE][-+]?[0-9]{1,2})?")
_OTHER_READERS = re.compile(
    r"[yYnN]|[-+]?0[bBoOxX][0-9a-fA-F_]+|[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
)
"""Texts that PyYAML writes without quotes and readers in Go (kubectl) take for a bool or number."""
_CORE_TAG = "tag:yaml.org,2002:"
_KEY = r"""(?:"[^"\n]*"|'[^'\n]*')[ \t]*|[^\s"'#{\[&*!|>%@`][^\n]*?"""
_ENTRY = re.compile(rf"^[ \t]*(?:- +)*(?:{_KEY}):(?:[ \t\r]|$)", re.MULTILINE)


def looks_like_yaml(text: str) -> bool:
    """Check whether a text has several lines and an entry of a mapping, before PyYAML reads it."""
    return "\n" in text.strip() and _ENTRY.search(text) is not None


def load(text: str) -> Tree:
    r"""Return the tree of one YAML document; raise `NotThisKindError`.

    >>> load("port: 8080\nmode: 0644\nhosts: [a, ~]\n")
    {'port': 8080, 'mode': '0644', 'hosts': ['a', None]}
    """
    import yaml

    if len(text) > YAML_CHARS_MAX:
        raise NotThisKindError(f"has more than {YAML_CHARS_MAX:,} characters")
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=_c_or_python("SafeLoader")):
            builder.take(event)
    except yaml.YAMLError as e:
        raise NotThisKindError(f"breaks a rule of YAML: {_reason(e)}") from e
    return checked(builder.document)


def dump(tree: Tree) -> str:
    """Return a tree as YAML that shows every character; bytes as `bytes_text`."""
    import yaml

    text: str = yaml.dump(
        tree, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=1 << 30
    )
    return escaped(text.removesuffix("...\n"), keep="\n")


class _Builder:
    """Makes a tree of events, without recursion."""

    def __init__(self) -> None:
        self.document: Tree = None
        self._documents = 0
        self._open: list[dict[str, Tree] | list[Tree]] = []
        self._keys: list[str | None] = []
        self._anchors: dict[str, Tree] = {}

    def take(self, event: Any) -> None:
        name = type(event).__name__
        if name == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise NotThisKindError("has several YAML documents")
        elif name == "ScalarEvent":
            self._add(_scalar(event), event.anchor, is_scalar=True)
        elif name == "AliasEvent":
            self._add(self._anchors.get(event.anchor), None, is_scalar=False)
        elif name in ("MappingStartEvent", "SequenceStartEvent"):
            _check_tag(event)
            self._start({} if name == "MappingStartEvent" else [], event.anchor)
        elif name in ("MappingEndEvent", "SequenceEndEvent"):
            self._open.pop()
            self._keys.pop()

    def _start(self, container: dict[str, Tree] | list[Tree], anchor: str | None) -> None:
        self._add(container, anchor, is_scalar=False)
        self._open.append(container)
        self._keys.append(None)

    def _add(self, part: Tree, anchor: str | None, *, is_scalar: bool) -> None:
        if anchor is not None:
            self._anchors[anchor] = part
        if not self._open:
            self.document = part
            return
        container, key = self._open[-1], self._keys[-1]
        if isinstance(container, list):
            container.append(part)
        elif key is None:
            self._keys[-1] = _new_key(container, part, is_scalar=is_scalar)
        else:
            container[key] = part
            self._keys[-1] = None


def _new_key(mapping: dict[str, Tree], part: Tree, *, is_scalar: bool) -> str:
    if not is_scalar:
        raise NotThisKindError("has a key that is not a plain text")
    key = part if isinstance(part, str) else scalar_text(part)
    if key == "<<":
        raise NotThisKindError("has a merge key (<<)")
    if key in mapping:
        raise NotThisKindError(f"has the key {key!r} twice in one mapping")
    return key


def _scalar(event: Any) -> Tree:
    _check_tag(event)
    text: str = event.value
    if event.style not in (None, "") or (event.tag or "").endswith(":str"):
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float_of(text) if _FLOAT.fullmatch(text) else text


def _check_tag(event: Any) -> None:
    tag = event.tag
    if tag is None or tag == "!":
        return
    if tag.removeprefix(_CORE_TAG) not in ("str", "map", "seq"):
        raise NotThisKindError(f"has the tag {tag.replace(_CORE_TAG, '!!')}")


def _reason(error: Any) -> str:
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    where = "" if mark is None else f" in line {mark.line + 1}"
    return escaped((problem or str(error).partition("\n")[0]) + where)


def _c_or_python(name: str) -> Any:
    import yaml

    return getattr(yaml, f"C{name}", None) or getattr(yaml, name)


@cache
def _dumper() -> Any:
    class Dumper(_c_or_python("SafeDumper")):  # type: ignore[misc]
        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: Any, data: str) -> Any:
        style = "|" if "\n" in data.strip("\n") else None
        if data.endswith("\n\n"):
            style = '"'  # at the end of a document, newlines are trimmed
        if escaped(data, keep="\n") != data:
            style = '"'  # only there is an escape one
        elif _OTHER_READERS.fullmatch(data):
            style = "'"
        return dumper.represent_scalar(f"{_CORE_TAG}str", data, style=style)

    def number(dumper: Any, data: WrittenFloat) -> Any:
        import yaml

        tag = dumper.resolve(yaml.ScalarNode, data.written, (True, False))  # so no tag is shown
        return dumper.represent_scalar(tag, data.written)

    Dumper.add_representer(str, text)
    Dumper.add_representer(OtherText, text)
    Dumper.add_representer(WrittenFloat, number)
    Dumper.add_representer(bytes, lambda dumper, data: text(dumper, bytes_text(data)))
    return Dumper
