"""Texts of a page: keys, notes and values whose characters cannot deceive, times and sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any
from urllib.parse import quote, unquote

from markupsafe import Markup, escape

from snapkv.base.text import key_json, value_json
from snapkv.times import format_time, pack

KEY_CHARS_MAX = 600
LINE_CHARS_MAX = 4_000
DAY_MS = 86_400_000
SHORT_TEXT_MAX = 4_096
"""The longest text that an answer in JSON always has, in bytes."""
JSON_NUMBER_MAX = (1 << 53) - 1
TIMESTAMPS = frozenset({"timestamp", "ts"})


def visible(text: object, chars_max: int = KEY_CHARS_MAX) -> Markup:
    r"""Return a text as HTML; what does not print is shown as its escape, what is long is cut.

    Controls that turn the direction of text do not print, so they have no effect.

    >>> print(visible("<b>\n\u202e"))
    &lt;b&gt;<span class="esc">\n</span><span class="esc">\u202e</span>
    """
    whole = str(text)
    shown = whole[:chars_max]
    html = escape(shown) if shown.isprintable() else Markup("").join(_parts(shown))
    if len(whole) > chars_max:
        html += Markup('<span class="esc" title="{} characters">…</span>').format(len(whole))
    return html


def line(text: str) -> Markup:
    """Return a part of a line as HTML; rendering has made it safe, and only tabs are left."""
    return Markup("\t").join(visible(part, LINE_CHARS_MAX) for part in text.split("\t"))


def _parts(text: str) -> Iterator[Markup]:
    plain: list[str] = []
    for char in text:
        if char.isprintable():
            plain.append(char)
            continue
        yield escape("".join(plain))
        plain = []
        yield Markup('<span class="esc">{}</span>').format(escaped(char))
    yield escape("".join(plain))


def escaped(char: str) -> str:
    r"""Return a character that does not print as an escape; bytes that are not UTF-8 as `\xff`.

    >>> print(escaped("\0"), escaped("\udcff"))
    \u0000 \xff
    """
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return json.dumps(char)[1:-1]


def time_html(timestamp: int | None, ago: str = "") -> Markup:
    """Return a timestamp as a date in UTC that a script can turn into local time, or as `ago`."""
    if not timestamp:
        return Markup('<span class="dim">before the first commit</span>')
    text = format_time(timestamp)
    shown = f"{text[:10]} {text[11:23]}".removesuffix(".000")
    form = "ago" if ago else ""
    return Markup('<time datetime="{}" title="{}" data-form="{}">{}</time>').format(
        text, f"{text}, timestamp {timestamp}", form, ago or shown
    )


def iso_ms(ms: int) -> str:
    """Return milliseconds since 1970 as ISO text in UTC."""
    return format_time(pack(ms))


def form_text(text: str) -> str:
    """Return a text as ASCII, which browsers do not change in forms; `form_text_of` reads it."""
    return quote(text, safe="", errors="surrogateescape")


def form_text_of(text: str) -> str:
    """Return the text of a form's field."""
    return unquote(text, errors="surrogateescape")


def size_text(size: int | None) -> str:
    """Return a number of bytes for people.

    >>> size_text(12), size_text(20_480), size_text(5 << 20)
    ('12 B', '20 KiB', '5.0 MiB')
    """
    if size is None:
        return ""
    if size < 1 << 10:
        return f"{size} B"
    if size < 1 << 20:
        return f"{size / 1024:.0f} KiB"
    return f"{size / (1 << 20):.1f} MiB" if size < 1 << 30 else f"{size / (1 << 30):.1f} GiB"


def duration_text(ms: int | None) -> str:
    """Return a duration for people.

    >>> duration_text(80), duration_text(5_400), duration_text(7_200_000), duration_text(-80)
    ('80 ms', '5.4 s', '2.0 h', '-80 ms')
    """
    if ms is None:
        return ""
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if abs(ms) >= 2 * factor or (unit == "s" and abs(ms) >= factor):
            return f"{ms / factor:.1f} {unit}"
    return f"{ms} ms"


def ago_text(ms: int) -> str:
    """Return how long ago something was, for people.

    >>> ago_text(80), ago_text(5_400), ago_text(11_000_000), ago_text(90 * DAY_MS)
    ('just now', '5 s ago', '3 h ago', '3 months ago')
    """
    for unit, factor in (("years", 365 * DAY_MS), ("months", 30 * DAY_MS)):
        if ms >= 2 * factor:
            return f"{ms // factor} {unit} ago"
    for unit, factor in (("d", DAY_MS), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= factor:
            return f"{ms // factor} {unit} ago"
    return "just now"


class LongTexts:
    """The bytes of JSON that the long texts and values of one answer may still take."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    def fitting(self, text: bytes | str) -> Any:
        """Return a text or a value for JSON; if it does not fit, its size as `left_out`."""
        size = len(text)
        if size > self._left:
            return {"left_out": size}
        made = value_json(text) if isinstance(text, bytes) else key_json(text)
        if size > SHORT_TEXT_MAX:
            cost = len(json.dumps(made))
            if cost > self._left:
                return {"left_out": size}
            self._left -= cost
        return made


def as_json(found: Any, room: LongTexts | None = None) -> Any:
    """Return plain data for JSON: bytes as text or base64, numbers of more than 53 bits as text.

    Long texts that have no room are left out.
    """
    if is_dataclass(found) and not isinstance(found, type):
        named = ((each.name, getattr(found, each.name)) for each in fields(found))
        return {
            n: str(v) if n in TIMESTAMPS and v is not None else as_json(v, room) for n, v in named
        }
    if isinstance(found, bytes | str) and room is not None:
        return room.fitting(found)
    if isinstance(found, bytes):
        return value_json(found)
    if isinstance(found, str):
        return key_json(found)
    if isinstance(found, dict):
        return {_name(str(key)): as_json(value, room) for key, value in found.items()}
    if isinstance(found, list | tuple | set | frozenset):
        return [as_json(each, room) for each in found]
    if isinstance(found, int) and not isinstance(found, bool) and abs(found) > JSON_NUMBER_MAX:
        return str(found)
    return found


def _name(text: str) -> str:
    """Return a text as the name of a field of JSON: `base64:...` if it is not UTF-8."""
    found = key_json(text)
    return found if isinstance(found, str) else f"base64:{found['base64']}"
