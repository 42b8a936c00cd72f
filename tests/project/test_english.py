"""Phrases that a newcomer has to decode become fewer, never more."""

import ast
import re
from collections import Counter

import pytest

from tests.project.english import (
    PHRASES,
    QUANTITY,
    QUESTION,
    ROOT,
    found_docstrings,
    found_phrases,
    phrases_of,
)

pytestmark = pytest.mark.xdist_group("sources")  # parsed once

LEFT = Counter({"those (?:of|that|who|which)": 2, "whoever|whomever|nobody|somebody|everybody": 1})
"""The number of each phrase that is left; lower it when you rewrite some."""

TEXTS = [
    "snapkv",
    "cdcmeta",
    "docs",
    "examples",
    "tools",
    *(path.name for path in ROOT.glob("*.md")),
]


@pytest.mark.slow
def test_phrases_of_the_list_become_fewer() -> None:
    found = list(found_phrases(*TEXTS))
    counts = Counter(each.phrase for each in found)
    more = {phrase: count for phrase, count in counts.items() if count > LEFT[phrase]}
    listed = [f"{each.path}:{each.line}: {each.text}" for each in found if each.phrase in more]
    assert not more, "\n".join([f"{more}, allowed are {LEFT}:", *listed])


def test_a_constant_says_what_it_counts() -> None:
    """Not "So many keys are shown", nor "How many are shown": "The most keys that are shown"."""
    found = found_docstrings(QUANTITY, ast.Expr, "snapkv", "cdcmeta", "benchmarks", "tools")
    assert not [each for each in found if not each.endswith("?")]  # the title of a benchmark


def test_the_title_of_a_module_is_a_noun_phrase() -> None:
    """A benchmark's title is the question that it answers."""
    assert not found_docstrings(QUESTION, ast.Module, "snapkv", "cdcmeta", "tools")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (QUANTITY, "So many are kept."),
        (QUANTITY, "How long it waits."),
        (QUESTION, "What a page shows."),
        (QUESTION, "Where it is."),
    ],
)
def test_titles_and_constants_are_found(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.match(text)
    assert not pattern.match("The most keys. What follows is left.")


# One for each pattern, in the order of the list.
EXAMPLES = [
    "A commit tells its timestamp.",
    "The lock belongs to nobody.",
    "It is for who asks first.",
    "The key 'x' is no text.",
    "The value stands in a log.",
    "The key is there.",
    "The request was refused.",
    "The write is given up.",
    "The store is made again.",
    "The year went by.",
    "Keys that others write.",
    "A word to the server.",
    "The options are those of the store.",
]


@pytest.mark.parametrize(("phrase", "sentence"), list(zip(PHRASES, EXAMPLES, strict=True)))
def test_each_pattern_finds_its_phrase(phrase: str, sentence: str) -> None:
    assert phrases_of(sentence) == [phrase]


def test_the_list_leaves_plain_sentences_alone() -> None:
    assert not phrases_of(
        "The caller that waits is no longer in the queue: it returns the outcome."
    )
