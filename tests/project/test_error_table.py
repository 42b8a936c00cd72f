"""docs/errors.md has each public error once, and says of each whether to try again."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
MODULES = ("snapkv.errors", "snapkv.spark", "snapkv.spark.local", "cdcmeta.errors")
BASES = {"SnapKVError", "CDCMetaError"}
ADVICE = {"yes", "no", "read again", "resolve", "reopen"}


def classes(part: str) -> set[str]:
    """Return the public errors (or warnings) of both packages."""
    found: set[str] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None)
        for each, cls in inspect.getmembers(module, inspect.isclass):
            is_public = each in public if public else cls.__module__ == name
            if is_public and issubclass(cls, BaseException):
                found.add(each)
    warnings = {each for each in found if each.endswith("Warning")}
    return warnings if part == "warnings" else found - warnings - BASES


def rows(columns: int) -> list[tuple[str, ...]]:
    """Return the cells of the rows that begin with a class."""
    lines = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
    cells = [(name, *(cell.strip() for cell in rest.split(" | "))) for name, rest in lines]
    return [each for each in cells if len(each) == columns]


@pytest.mark.parametrize(("part", "columns"), [("errors", 4), ("warnings", 3)])
def test_each_public_class_has_one_row(part: str, columns: int) -> None:
    named = [row[0] for row in rows(columns)]
    assert sorted(named) == sorted(classes(part))


def test_each_row_is_complete() -> None:
    for name, happened, again, what_to_do in rows(4):
        assert again in ADVICE, f"{name}: {again!r} is not explained in 'When to try again'"
        assert f"| {again} |" in PAGE.partition("## snapkv")[0]
        assert happened, name
        assert what_to_do, name


def test_attributes_that_a_row_names_exist() -> None:
    """Such as `earliest` of `CompactedError`, which its initializer sets."""
    for name, _, _, what_to_do in rows(4):
        for module in map(importlib.import_module, MODULES):
            cls = getattr(module, name, None)
            if cls is None or "errors" not in module.__name__:
                continue
            text = inspect.getsource(module)
            for attribute in re.findall(r"`([a-z_]+)` (?:has|names?|lists|is|says)\b", what_to_do):
                assert f"self.{attribute}" in text or f", self.{attribute}" in text, (
                    name,
                    attribute,
                )
