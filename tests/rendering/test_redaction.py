"""Redacted values are not shown, in no view and in no attribute."""

import pytest

from snapkv.errors import InvalidTypeError
from snapkv.rendering import Redaction, plain
from tests.rendering.shown import text_of

SECRETS = Redaction(["secrets/", "app/password"])


@pytest.mark.parametrize(
    ("key", "covered"),
    [
        ("secrets/db", True),
        ("secrets", False),
        ("app/password", True),
        ("app/password-old", True),
        ("app/user", False),
    ],
)
def test_a_prefix_is_the_beginning_of_a_key(key: str, covered: bool) -> None:
    assert SECRETS.covers(key) is covered


def test_an_empty_prefix_covers_all_and_no_prefix_none() -> None:
    assert Redaction([""]).covers("a")
    assert not Redaction().covers("a")
    with pytest.raises(InvalidTypeError, match="prefixes must be a list of prefixes, not str"):
        Redaction("secrets/")


def test_a_redacted_value_shows_its_size_alone() -> None:
    found = SECRETS.decoded(b'{"password": "hunter2"}')
    assert (found.text, found.preview()) == ("redacted, 23 bytes",) * 2
    assert [plain(line) for line in found.lines()] == ["redacted, 23 bytes"]
    assert "hunter2" not in repr(vars(found))


def test_a_redacted_difference_says_that_it_changed() -> None:
    found = SECRETS.difference(b"hunter2", b"hunter3")
    for view in ("auto", "paths", "unified", "full", "side-by-side", "words"):
        assert text_of(found, view) == ["redacted, 7 bytes -> redacted, 7 bytes"]
    assert plain(found.brief()) == "redacted, 7 bytes -> redacted, 7 bytes"
    assert (bool(found), found.changes, found.byte_edits) == (True, (), ())
    assert str(found.stat) == "+0 -0 bytes"
    assert "hunter" not in repr(vars(found)) + repr(vars(found.before)) + repr(vars(found.after))


def test_a_redacted_value_that_comes_goes_or_stays() -> None:
    assert text_of(SECRETS.difference(None, b"x")) == ["absent -> redacted, 1 byte"]
    assert text_of(SECRETS.difference(b"xy", None)) == ["redacted, 2 bytes -> absent"]
    assert not SECRETS.difference(b"x", b"x")
