"""What tests of rendering share."""

from snapkv.rendering import ValueDifference, compare, decode, plain


def text_of(difference: ValueDifference, view="auto", **options) -> list[str]:
    return [plain(line) for line in difference.lines(view, **options)]


def difference(before: bytes | None, after: bytes | None, **options) -> ValueDifference:
    sides = [None if value is None else decode(value) for value in (before, after)]
    return compare(*sides, **options)
