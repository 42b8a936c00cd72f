"""The decoding of stored bytes into what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from snapkv.base.arguments import wrong_type
from snapkv.base.text import counted, escaped, quoted, stored_text
from snapkv.errors import InvalidOptionError
from snapkv.rendering.decoded import KINDS, Decoded
from snapkv.rendering.decoder import Decoder, decoder_named
from snapkv.rendering.value_tree import (
    NotThisKindError,
    OtherText,
    Tree,
    as_tree,
    checked,
    float_of,
    scalar_text,
    unique,
)

STRUCTURED_BYTES_MAX = 8 << 20
"""The size of the largest value that is parsed; a larger one is text or hex, unless its kind is
given."""
CONTROL_CHARS_SHARE = 32
"""The least characters of a text for each control character in it (colours of terminals do not
count)."""

_KUBERNETES = {b"k8s\0": "kubernetes", b"k8s:": "encrypted"}
"""How values of an API server begin that are not JSON."""
_BOM = "\ufeff"
_LOOKS_TYPED = re.compile(r'"|(?:int|float|bool|bytes|nil|ext|Timestamp)\(')
_CONTROLS = re.compile(r"[\x01-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")


def decode(value: bytes, kind: str | None = None, decoder: Decoder | None = None) -> Decoded:
    r"""Return what a value says.

    `kind` is one of `KINDS` or the name of an installed decoder; without it, the kind is found:
    a value of Kubernetes, also an encrypted one, a JSON object or array, a YAML mapping (or list
    with a mapping or list in it) of several lines, text, a msgpack map or array, and hex for the
    rest. A `decoder` is asked first.

    A value that breaks a rule of a format (a key twice in one object, NaN in JSON, a tag in YAML),
    or a bound of `value_tree` (`DEPTH_MAX`, `NODES_MAX`), is text, or hex. Deterministic. Costs one
    parse of the value.

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
    if kind is not None:
        return _of_kind(kind, value)
    is_small = len(value) <= STRUCTURED_BYTES_MAX
    trimmed = value.removeprefix(_BOM.encode()).strip()
    may_be_json = trimmed[:1] + trimmed[-1:] in (b"{}", b"[]")
    kind = "json" if may_be_json else _KUBERNETES.get(value[:4], "")
    if is_small and kind and (made := _made(kind, value)) is not None:
        return made
    text = stored_text(value)
    if text and ("\0" in text or len(_CONTROLS.findall(text)) * CONTROL_CHARS_SHARE > len(text)):
        return Decoded("hex", value, "bytes", value)
    kind = "msgpack" if text is None and is_small and _begins_as_msgpack(value) else ""
    if text is not None and is_small and "\n" in text:
        from snapkv.rendering.yaml_text import looks_like_yaml

        kind = "yaml" if looks_like_yaml(text) else ""
    if kind and (made := _made(kind, value)) is not None:
        return made
    if text is not None:
        return Decoded("text", text, "text", value)
    return Decoded("hex", value, "bytes", value)


def _of_kind(kind: str, value: bytes) -> Decoded:
    """Return a value of a kind that was given; raises `InvalidOptionError` if it is not of it."""
    try:
        return (_MANIFEST if kind == "kubernetes" else _LOADERS[kind])(value)
    except NotThisKindError as e:
        raise InvalidOptionError(
            f"the value of {counted(len(value), 'byte')} cannot be shown as {kind}: it {e}; "
            "without a kind, it is shown as what it is"
        ) from e


def _made(kind: str, value: bytes) -> Decoded | None:
    try:
        return _LOADERS[kind](value)
    except NotThisKindError:
        return None


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
    found = decode(text.encode(errors="surrogatepass"))
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


def _load_yaml(value: bytes) -> Decoded:
    from snapkv.rendering import yaml_text

    text = _utf8(value)
    return Decoded("yaml", yaml_text.load(text), "tree", value, text)


def _load_msgpack(value: bytes) -> Tree:
    """Return the tree of one whole msgpack object; keys other than texts say their type."""
    import msgpack

    try:
        found: Any = msgpack.unpackb(
            value,
            strict_map_key=False,
            object_pairs_hook=_pairs,
            ext_hook=lambda code, data: OtherText(f"ext({code}) 0x{data.hex()}"),
        )
    except NotThisKindError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as e:
        reason = escaped(str(e)) or type(e).__name__
        raise NotThisKindError(f"breaks a rule of msgpack: {reason}") from e
    return checked(as_tree(found))


def _pairs(pairs: list[tuple[Any, Any]]) -> dict[str, Tree]:
    if any(isinstance(key, list | dict) for key, _ in pairs):
        raise NotThisKindError("has a key that is a list or a map")
    return unique((_key_text(key), part) for key, part in pairs)


def _key_text(key: Any) -> str:
    """Return a key as text; two keys of different types never have the same."""
    if isinstance(key, OtherText):
        return str(key)
    if isinstance(key, str):
        return quoted(key) if _LOOKS_TYPED.match(key) else key
    if key is None:
        return "nil()"
    if isinstance(key, bool | int | float | bytes):
        return f"{type(key).__name__}({scalar_text(key)})"
    return str(key)


def _load_kubernetes(value: bytes, *, as_manifest: bool = False) -> Tree:
    from snapkv.rendering import kubernetes

    tree = (_load_json if value[:1] == b"{" else kubernetes.load)(value)
    return kubernetes.manifest(tree) if as_manifest else tree


def _load_encrypted(value: bytes) -> Decoded:
    from snapkv.rendering import encryption

    return Decoded("encrypted", encryption.text_of(value), "text", value)


_LOADERS: dict[str, Callable[[bytes], Decoded]] = {
    "json": _tree("json", _load_json),
    "yaml": _load_yaml,
    "msgpack": _tree("msgpack", _load_msgpack),
    "kubernetes": _tree("kubernetes", _load_kubernetes),
    "encrypted": _load_encrypted,
    "text": lambda value: Decoded("text", _utf8(value), "text", value),
    "hex": lambda value: Decoded("hex", value, "bytes", value),
}
_MANIFEST = _tree("kubernetes", partial(_load_kubernetes, as_manifest=True))


# --- which kinds a value may be ---------------------------------------------------------


def _begins_as_msgpack(value: bytes) -> bool:
    """Check whether a value begins as a map or an array with at least one item."""
    first = value[0] if value else 0
    return 0x81 <= first <= 0x8F or 0x91 <= first <= 0x9F or 0xDC <= first <= 0xDF


def _utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as e:
        raise NotThisKindError(f"is not valid UTF-8 at byte {e.start:,}") from e
