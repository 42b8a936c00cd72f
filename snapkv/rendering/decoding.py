"""From stored bytes to what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from snapkv.base.arguments import wrong_type
from snapkv.base.text import counted, stored_text
from snapkv.errors import InvalidOptionError
from snapkv.rendering.decoded import KINDS, Decoded
from snapkv.rendering.decoder import Decoder, decoder_named
from snapkv.rendering.tree import NotThisKindError, Tree, as_tree, checked, float_of, unique

STRUCTURED_BYTES_MAX = 8 << 20
"""A larger value is text or hex, unless its kind is given."""
CONTROL_CHARS_SHARE = 32
"""Text has at most one control character in so many (colours of terminals do not count)."""

_BOM = "\ufeff"
_CONTROLS = re.compile(r"[\x01-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")


def decode(value: bytes, kind: str | None = None, decoder: Decoder | None = None) -> Decoded:
    r"""Return what a value says.

    `kind` is one of `KINDS` or the name of an installed decoder; without it, the kind is found:
    a value of Kubernetes, a JSON object or array, a YAML mapping (or list with a mapping or list
    in it) of several lines, text, a msgpack map or array, and hex for the rest. A `decoder` is
    asked first.

    A value that breaks a rule of a format (a key twice in one object, NaN in JSON, a tag in YAML),
    or a bound of `tree` (`DEPTH_MAX`, `NODES_MAX`), is text, or hex. Deterministic. Costs one parse
    of the value.

    >>> decode(b'{"image": "nginx:1.25"}').data
    {'image': 'nginx:1.25'}
    >>> decode(b"\x00\xff").kind, decode(b"42").kind, decode(b"42", kind="json").data
    ('hex', 'text', 42)

    Raises `InvalidOptionError` if the value is not of the `kind` that was given, if the decoder
    fails, or if no decoder has that name; never for a kind that is found.
    """
    if not isinstance(value, bytes):
        raise wrong_type("value", "bytes", value)
    if kind is not None and kind not in KINDS:
        decoder, kind = decoder_named(kind), None
    if decoder is not None and (made := _by_decoder(value, decoder)) is not None:
        return made
    if kind is None:
        return _found(value)
    try:
        return _LOADERS[kind](value)
    except NotThisKindError as e:
        raise InvalidOptionError(
            f"the value of {counted(len(value), 'byte')} cannot be shown as {kind}: it {e}; "
            "without a kind, it is shown as what it is"
        ) from e


def _found(value: bytes) -> Decoded:
    if len(value) <= STRUCTURED_BYTES_MAX:
        for finds, kind in _FINDERS:
            if finds(value):
                try:
                    return _LOADERS[kind](value)
                except NotThisKindError:
                    continue
    text = stored_text(value)
    if text is not None and _is_readable(text):
        return Decoded("text", text, "text", value)
    return Decoded("hex", value, "bytes", value)


def _by_decoder(value: bytes, decoder: Decoder) -> Decoded | None:
    made = decoder(value)
    if made is None:
        return None
    try:
        if isinstance(made, str):
            return _of_text(decoder.name, made, value)
        return Decoded(decoder.name, checked(as_tree(made)), "tree", value, None, True)
    except NotThisKindError as e:
        raise InvalidOptionError(f"what the decoder {decoder.name!r} returns {e}") from e


def _of_text(name: str, text: str, value: bytes) -> Decoded:
    """Return what a decoder printed: the tree of its JSON or YAML, or its text."""
    found = _found(text.encode(errors="surrogatepass"))
    if found.form == "tree" and found.kind in ("json", "yaml"):
        return Decoded(name, found.data, "tree", value, text, True)
    return Decoded(name, text, "text", value, None, True)


# --- one loader for each kind -----------------------------------------------------------


def _tree(kind: str, load: Callable[[bytes], Tree]) -> Callable[[bytes], Decoded]:
    return lambda value: Decoded(kind, load(value), "tree", value)


def _load_json(value: bytes) -> Tree:
    try:
        found = json.loads(
            _utf8(value).removeprefix(_BOM),
            object_pairs_hook=unique,
            parse_constant=_constant,
            parse_float=float_of,
        )
    except json.JSONDecodeError as e:
        raise NotThisKindError(f"breaks a rule of JSON: {e}") from e
    except RecursionError as e:
        raise NotThisKindError("is nested too deeply") from e
    except NotThisKindError:
        raise
    except ValueError as e:  # an integer of more digits than Python converts
        raise NotThisKindError("has a number with too many digits") from e
    return checked(found)


def _constant(name: str) -> Tree:
    raise NotThisKindError(f"has {name}, which JSON does not have")


def _load_yaml(value: bytes) -> Tree:
    from snapkv.rendering import yaml_text

    return yaml_text.load(_utf8(value))


def _load_msgpack(value: bytes) -> Tree:
    from snapkv.rendering import msgpack_bytes

    return msgpack_bytes.load(value)


def _load_kubernetes(value: bytes) -> Tree:
    from snapkv.rendering import kubernetes

    return kubernetes.load(value)


_LOADERS: dict[str, Callable[[bytes], Decoded]] = {
    "json": _tree("json", _load_json),
    "yaml": lambda value: Decoded("yaml", _load_yaml(value), "tree", value, value.decode()),
    "msgpack": _tree("msgpack", _load_msgpack),
    "kubernetes": _tree("kubernetes", _load_kubernetes),
    "text": lambda value: Decoded("text", _utf8(value), "text", value),
    "hex": lambda value: Decoded("hex", value, "bytes", value),
}


# --- which kinds a value may be ---------------------------------------------------------


def _may_be_json(value: bytes) -> bool:
    trimmed = value.removeprefix(_BOM.encode()).strip()
    return trimmed[:1] + trimmed[-1:] in (b"{}", b"[]")


def _may_be_yaml(value: bytes) -> bool:
    from snapkv.rendering import yaml_text

    text = stored_text(value)
    return text is not None and _is_readable(text) and yaml_text.looks_like_yaml(text)


def _may_be_msgpack(value: bytes) -> bool:
    from snapkv.rendering import msgpack_bytes

    return msgpack_bytes.looks_like_msgpack(value) and stored_text(value) is None


_FINDERS: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda value: value.startswith(b"k8s\0"), "kubernetes"),
    (_may_be_json, "json"),
    (_may_be_yaml, "yaml"),
    (_may_be_msgpack, "msgpack"),
)


def _utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as e:
        raise NotThisKindError(f"is not valid UTF-8 at byte {e.start:,}") from e


def _is_readable(text: str) -> bool:
    if "\0" in text:
        return False
    return len(_CONTROLS.findall(text)) * CONTROL_CHARS_SHARE <= len(text)
