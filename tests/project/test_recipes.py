"""Recipes of the how-to pages among threads; the page's own blocks run with the documentation."""

from __future__ import annotations

import snapkv
from tests.project.pages import blocks_of


def test_the_cache_of_an_informer_has_a_key_while_it_changes() -> None:
    """Another thread may look after each step of a change: here, this one does."""
    names: dict = {}
    exec(blocks_of("docs/howto/recipes.md")[0].code, names)
    informer, found = names["Informer"](snapkv.open("memory:")), []

    class Looked(dict):
        def pop(self, *arguments):
            value = super().pop(*arguments)
            found.append(informer.get("a"))
            return value

        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            found.append(informer.get("a"))

    informer._values = Looked(a=b"1")
    informer._change("a", b"2")
    assert found == [b"2"]
    informer._change("a", None)
    assert found == [b"2", None]
