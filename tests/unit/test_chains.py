"""The check of the causes of errors, which `tests/conftest.py` makes in every test."""

import pytest
from chains import check_ends, circle_of


def raised(error, cause=None):
    try:
        raise error from cause
    except type(error) as e:
        return e


def test_an_error_that_is_its_own_cause_is_a_circle():
    error = raised(ValueError("a"))
    assert circle_of(raised(error, error)) == [error, error]


def test_a_circle_behind_an_error_is_found():
    first, second = ValueError("a"), KeyError("b")
    first.__cause__, second.__context__ = second, first
    with pytest.raises(AssertionError, match=r"ValueError\(a\) <- KeyError\('b'\) <- ValueError"):
        check_ends(ExceptionGroup("both", [TypeError("c"), raised(OSError("d"), first)]))


def test_an_error_that_is_reached_in_two_ways_is_not_a_circle():
    first = ValueError("a")
    try:
        try:
            raise first
        except ValueError as e:
            raise KeyError("b") from e  # context, too
    except KeyError as e:
        check_ends(ExceptionGroup("both", [e, first]))


def test_what_a_test_catches_is_checked():
    error, found = ValueError("a"), ""
    error.__cause__ = error
    try:
        with pytest.raises(ValueError, match="a"):
            raise error
    except AssertionError as e:  # not `pytest.raises`, which would find the circle, too
        found = str(e)
    assert "form a circle" in found
