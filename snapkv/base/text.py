"""Text that is safe to show: quoted, escaped, measured, shortened.

Below `snapkv.rendering`, because a command line needs it at once, and the rest for few commands.
"""

from __future__ import annotations

import json
import re
import unicodedata
from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal

PREVIEW_CHARS_MAX = 60
"""The most characters of a value that a line shows; binary values take two for each byte."""
NAME_CHARS_MAX = 200
"""The most characters that a message about keys shows of one."""

_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0"
_HIDDEN = re.compile(f"[^\\x20-\\x7e\\u00a1-\\u00ac\\u00ae-\\u02ff]|[{_INVISIBLE}]")
_JSON_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')
_JSON_CHARS_MAX = 1 << 16
_BOUNDARIES = re.compile(r"[,{\[(;&\s]")

_LOOK_ALIKE = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb"  # Cyrillic
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u0405\u0408"
    "\u03bf\u03bd\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7",
    "aeopcyxijsdhABEKMHOPCTXISJovABEZHIKMNOPTYX",
)
"""The letters that look like Latin ones in most fonts: Cyrillic ones, then Greek ones."""

Quote = Literal['"', "'"]


def counted(count: int, noun: str) -> str:
    """Return a number and the noun that it counts.

    >>> counted(1, "key"), counted(1_200, "key")
    ('1 key', '1,200 keys')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def escaped(text: str, keep: str = "") -> str:
    r"""Return a text in which every character can be seen; the characters in `keep` stay.

    Control, bidirectional, zero-width and other invisible characters become `\n`, `\u202e` and so
    on. A backslash stays as it is: use `quoted` where the text must be read back.

    >>> print(escaped("a\tb\u202ec\x1b[0m"), escaped("a\tb", keep="\t") == "a\tb")
    a\tb\u202ec\u001b[0m True
    """

    def shown(found: re.Match[str]) -> str:
        char = found[0]
        return char if char in keep or _visible(char) else json.dumps(char)[1:-1]

    return _HIDDEN.sub(shown, text)


def _visible(char: str) -> bool:
    if char in _INVISIBLE or "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef":
        return False
    return char.isprintable()


def quoted(text: str, quote: Quote = '"') -> str:
    r"""Return a text in quotes; characters that do not print are escaped.

    >>> print(quoted('say "hi"\n'), quoted('say "hi"', "'"))
    "say \"hi\"\n" 'say "hi"'
    """
    inner = text.replace("\\", "\\\\").replace(quote, "\\" + quote)
    return f"{quote}{escaped(inner) if _HIDDEN.search(inner) else inner}{quote}"


def told_apart(before: str, after: str) -> tuple[str, str]:
    r"""Return two texts; if they differ but look the same, with escapes where they differ.

    They look the same if they are one text in two normal forms of Unicode, or if Cyrillic or Greek
    letters take the place of Latin ones.

    >>> print(*told_apart("caf\u00e9", "cafe\u0301"), *told_apart("caf\u00e9", "cafe"))
    caf\u00e9 cafe\u0301 café cafe
    """
    if before == after or (before.isascii() and after.isascii()) or _look(before) != _look(after):
        return before, after
    head = common_head(before, after)
    tail = common_tail(before, after, head)
    return _ascii_between(before, head, tail), _ascii_between(after, head, tail)


def _look(text: str) -> str:
    return unicodedata.normalize("NFKC", text).translate(_LOOK_ALIKE)


def _ascii_between(text: str, head: int, tail: int) -> str:
    end = len(text) - tail
    middle = (char if char.isascii() else json.dumps(char)[1:-1] for char in text[head:end])
    return f"{text[:head]}{''.join(middle)}{text[end:]}"


def key_text(key: str) -> str:
    r"""Return a key as it is, or quoted if it does not print or looks quoted.

    >>> print(key_text("schema/users"), key_text("two\nlines"))
    schema/users "two\nlines"
    """
    prints = not _HIDDEN.search(key) or escaped(key) == key
    return key if prints and not key.startswith('"') else quoted(key)


def preview(value: bytes, chars_max: int = PREVIEW_CHARS_MAX) -> str:
    """Return a value on one line: quoted text, or hexadecimal; shortened if it is long.

    >>> print(preview(b"v1"), preview(bytes([0, 255])), preview(b"a" * 100, 5))
    "v1" 0x00ff "aaaaa"... (100 bytes)

    An object or an array of JSON has neither quotes nor spaces around it.

    >>> print(preview(b'{"kind": "Pod", "ports": [80, 81]}'))
    {"kind":"Pod","ports":[80,81]}
    """
    text = stored_text(value)
    if text is None:
        shown, whole = "0x" + value[: chars_max // 2].hex(), len(value) <= chars_max // 2
    elif (compact := _compact_json(text)) is not None:
        shown, whole = escaped(compact[:chars_max]), len(compact) <= chars_max
    else:
        shown, whole = quoted(text[:chars_max]), len(text) <= chars_max
    return shown if whole else f"{shown}... ({len(value):,} bytes)"


def _compact_json(text: str) -> str | None:
    """Return an object or an array of JSON without spaces; None for another or a large text."""
    if len(text) <= _JSON_CHARS_MAX and text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            json.loads(text)
            return _JSON_SPACE.sub(lambda found: found[1] or "", text)
    return None


def shortened(before: bytes, after: bytes, chars_max: int = PREVIEW_CHARS_MAX) -> tuple[str, str]:
    """Return one-line previews of two values that show the place where they first differ.

    Each shows at most `chars_max` characters of its value (a byte in hexadecimal takes two), in
    single quotes if the text has double ones, and `...` where more text is left out. The previews
    of two different values are never equal. Cost: one pass over both values.

    >>> old, new = b'{"kind":"Pod","image":"web:1","n":1}', b'{"kind":"Pod","image":"web:2","n":1}'
    >>> print("one side:", shortened(old, new, 20)[1])
    one side: ...'"image":"web:2","n":'...
    """
    chars_max = max(4, chars_max)
    old, new = stored_text(before), stored_text(after)
    if old is None or new is None or b"\0" in before or b"\0" in after:
        if common_head(before, after) == 0 and before and after:
            return preview(before, chars_max), preview(after, chars_max)
        start = window_start(before, after, chars_max // 2)
        return _hex_window(before, start, chars_max), _hex_window(after, start, chars_max)
    return shortened_texts(old, new, chars_max)


def shortened_texts(before: str, after: str, chars_max: int) -> tuple[str, str]:
    """Return two texts in quotes, shortened so that they show the place where they differ."""
    start = window_start(before, after, chars_max)
    if start:  # go on to the beginning of the word or field that differs, if that is within reach
        for boundary in _BOUNDARIES.finditer(before, start, common_head(before, after)):
            start = boundary.end()
    old, new = before[start : start + chars_max], after[start : start + chars_max]
    quote: Quote = "'" if '"' in old + new and "'" not in old + new else '"'
    head, end = "..." * (start > 0), start + chars_max
    first = f"{head}{quoted(old, quote)}{'...' * (end < len(before))}"
    second = f"{head}{quoted(new, quote)}{'...' * (end < len(after))}"
    return told_apart(first, second)


def text_of(value: bytes) -> str | None:
    r"""Return the text of a value if a terminal can show it as it is, else None.

    >>> text_of(b"two\nlines"), text_of(b"\x1b[31m"), text_of(b"\xff")
    ('two\nlines', None, None)
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\n\t" for char in text) else None


def stored_text(value: bytes) -> str | None:
    """Return a value as text, None if it is not valid UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def value_json(value: bytes | None) -> Any:
    r"""Return a value for JSON: its text when it is UTF-8, else base64; None for no value.

    >>> value_json(b"v1"), value_json(b"\xff"), value_json(None)
    ('v1', {'base64': '/w=='}, None)
    """
    text = None if value is None else stored_text(value)
    return {"base64": b64encode(value).decode()} if value is not None and text is None else text


def fields_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object of JSON; raise `ValueError` for a name that occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def key_json(key: str) -> Any:
    r"""Return a key for JSON: its text, or base64 of an observed key that is not UTF-8.

    >>> key_json("/r/a"), key_json("/r/\udcff")
    ('/r/a', {'base64': 'L3Iv/w=='})
    """
    return key if key.isascii() else value_json(key.encode(errors="surrogateescape"))


def shortened_text(text: str, chars_max: int) -> str:
    """Return a text of at most `chars_max` characters, with `...` in place of the rest.

    >>> shortened_text("abcdefgh", 6)
    'abc...'
    """
    return text if len(text) <= chars_max else text[: max(0, chars_max - 3)] + "..."


class LongerNames:
    """The keys that a prefix matches although they are neither its own nor below it.

    `a/x` matches `a/x2` and `a/x-old/1` beside `a/x` and `a/x/1`. A prefix that ends with a
    separator, such as `/` or `-`, has none, unless there is a key of that name. Keys come in order.

    >>> print(LongerNames("a/x", ["a/x", "a/x/1", "a/x2", "a/xy"]))
    prefix 'a/x' also matches 'a/x2' and 1 more key, which are not below 'a/x/'
    """

    def __init__(self, prefix: str, keys: Iterable[str] = ()) -> None:
        self._prefix, self._ends_in_name = prefix, prefix[-1:].isalnum()
        self._first, self._count = "", 0
        for key in keys:
            self.add(key)

    def add(self, key: str) -> None:
        """Count a key that begins with the prefix, if its name is longer."""
        if key == self._prefix and not key.endswith("/"):
            self._ends_in_name = True
        if self._ends_in_name and key[len(self._prefix) :][:1] not in ("", "/"):
            self._first, self._count = self._first or key, self._count + 1

    def __bool__(self) -> bool:
        return self._count > 0

    def __str__(self) -> str:
        more = self._count - 1
        keys = f" and {more:,} more key{'s' * (more > 1)}, which are" if more else ", which is"
        first, prefix = (
            shortened_text(each, NAME_CHARS_MAX) for each in (self._first, self._prefix)
        )
        return f"prefix {prefix!r} also matches {first!r}{keys} not below {prefix + '/'!r}"


def common_head(before: str | bytes, after: str | bytes) -> int:
    """Return how many items two texts or values have in common at their beginning.

    >>> common_head("abcd", "abxd"), common_head(b"ab", b"abc")
    (2, 2)
    """
    low, high = 0, min(len(before), len(after))
    while low < high:  # the first `low` are equal, the first `high + 1` are not
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_tail(before: str | bytes, after: str | bytes, head: int = 0) -> int:
    """Return how many items two texts or values have in common at their end, after `head`."""
    return common_head(before[head:][::-1], after[head:][::-1])


def width_of(text: str) -> int:
    """Return how many columns a terminal needs for an escaped text.

    >>> width_of("abc"), width_of("日本"), width_of("e\u0301")
    (3, 4, 1)
    """
    return len(text) if text.isascii() else sum(map(_char_width, text))


def split_at_width(text: str, width: int) -> tuple[str, str]:
    """Split an escaped text so that the first piece fills at most `width` columns.

    >>> split_at_width("日本語", 5)
    ('日本', '語')
    """
    if text.isascii():
        return text[:width], text[width:]
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[:index], text[index:]
    return text, ""


def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def window_start(before: str | bytes, after: str | bytes, size: int) -> int:
    """Return where a window of `size` begins that has the first difference in it."""
    longest = max(len(before), len(after))
    if longest <= size:
        return 0
    head = common_head(before, after)
    return max(0, min(head - size * 2 // 3, longest - size))


def _hex_window(value: bytes, start: int, chars_max: int) -> str:
    size = chars_max // 2
    shown = value[start : start + size].hex()
    return f"{'...' * (start > 0)}0x{shown}{'...' * (start + size < len(value))}"
