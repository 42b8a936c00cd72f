"""Values as Kubernetes stores them: `k8s`, a zero byte, and a `runtime.Unknown` of protobuf.

`kubernetes_fields.txt` has the number, the JSON name and the type of each field of the built-in
kinds. A field that it lacks is shown by its number.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial
from importlib.resources import files
from typing import Any, NamedTuple

from snapkv.base.text import text_of
from snapkv.rendering.paths import Patterns
from snapkv.rendering.value_tree import (
    DEPTH_MAX,
    NotThisKindError,
    Tree,
    bytes_text,
    checked,
    float_of,
    unique,
)

PREFIX = b"k8s\0"
STARTS = PREFIX, b"k8s:enc:", b'{"kind":"', b'{"apiVersion":"'
"""How values begin that have a shorter text than their bytes: objects, and encrypted values."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS_S = range(-62_135_596_800, 253_402_300_800)  # the years 1 to 9999
_META = "meta.v1.ObjectMeta"


class FieldType(NamedTuple):
    """How a field is shown: its JSON name, its type, and what repeats it."""

    name: str
    type: str
    many: str = ""
    """`[]` for a list, `{}` for a map, `{}items:` for a map of lists, else empty."""
    omits_zero: bool = False
    """Whether JSON leaves out 0, false and empty text, which protobuf always writes."""


class KubernetesSchema(NamedTuple):
    """The messages of the built-in kinds."""

    kinds: dict[tuple[str, str], str]
    messages: dict[str, dict[int, FieldType]]


def load(value: bytes) -> Tree:
    """Return the object that a stored value holds; raise `NotThisKindError`.

    `apiVersion` and `kind` come first. An object of a kind that is not built in has its `metadata`
    by name and its other fields by number.
    """
    if not value.startswith(PREFIX):
        raise NotThisKindError("does not begin with k8s and a zero byte")
    envelope = _entry(value[len(PREFIX) :])
    kind = _object(_bytes(envelope.get(1, b"")), "runtime.TypeMeta", 0)
    if not kind.get("kind"):
        raise NotThisKindError("does not say what kind of object it is")
    raw = _bytes(envelope.get(2, b""))
    if envelope.get(3) or envelope.get(4):  # another encoding than plain protobuf
        names = {3: "contentEncoding", 4: "contentType"}
        named = {name: _text(envelope.get(number, b"")) for number, name in names.items()}
        return checked({**kind, **named, "raw": raw})
    message = schema().kinds.get((kind.get("apiVersion", ""), kind.get("kind", "")), "unknown")
    return checked({**kind, **_object(raw, message, 0)})


def manifest(tree: Tree) -> Tree:
    """Return an object as a manifest; raise `NotThisKindError`.

    With its resourceVersion or uid, an API server rejects the replacement of a newer version, or of
    an object that was created anew: they are left out. A definition of custom resources is stored
    in the version v1beta1, which API servers do not have any more: it becomes v1.
    """
    if not isinstance(tree, dict) or not (tree.get("apiVersion") and tree.get("kind")):
        raise NotThisKindError("is JSON without an apiVersion and a kind, as redacted values are")
    if isinstance(about := tree.get("metadata"), dict):
        kept = about.keys() - {"resourceVersion", "uid"}
        tree = {**tree, "metadata": {name: about[name] for name in about if name in kept}}
    if (tree["apiVersion"], tree["kind"]) == _OLD_DEFINITION:
        return _definition(tree)
    return tree


_OLD_DEFINITION = "apiextensions.k8s.io/v1beta1", "CustomResourceDefinition"
_OF_ALL_VERSIONS = "validation", "subresources", "additionalPrinterColumns", "selectableFields"
"""What v1beta1 says once if it is the same for all versions; v1 says it of each."""


def _definition(tree: dict[str, Tree]) -> dict[str, Tree]:
    """Return a CustomResourceDefinition of v1beta1 as v1."""
    spec = {**tree["spec"]}
    common = {name: spec.pop(name) for name in _OF_ALL_VERSIONS if name in spec}
    versions = spec.get("versions") or [{"name": spec["version"], "served": True, "storage": True}]
    spec["versions"] = [_version({**each, **common}) for each in versions]
    spec.pop("version", None)
    if not spec.get("preserveUnknownFields"):
        spec.pop("preserveUnknownFields", None)
    if "webhookClientConfig" in (conversion := {**spec.get("conversion", {})}):
        webhook = {"clientConfig": conversion.pop("webhookClientConfig")}
        if reviews := conversion.pop("conversionReviewVersions", None):
            webhook["conversionReviewVersions"] = reviews
        spec["conversion"] = {**conversion, "webhook": webhook}
    return {**tree, "apiVersion": "apiextensions.k8s.io/v1", "spec": spec}


def _version(version: dict[str, Tree]) -> dict[str, Tree]:
    if "validation" in version:
        version["schema"] = version.pop("validation")
    for column in (columns := [{**each} for each in version.get("additionalPrinterColumns", ())]):
        column["jsonPath"] = column.pop("JSONPath")
    return {**version, "additionalPrinterColumns": columns} if columns else version


def _bytes(content: Any) -> bytes:
    if not isinstance(content, bytes):
        raise NotThisKindError("has no runtime.Unknown after k8s")
    return content


@cache
def schema() -> KubernetesSchema:
    """Return the table of fields. Read once in a process; costs some milliseconds."""
    text = files("snapkv.rendering").joinpath("kubernetes_fields.txt").read_text()
    kinds: dict[tuple[str, str], str] = {}
    messages: dict[str, dict[int, FieldType]] = {
        "runtime.TypeMeta": {1: FieldType("apiVersion", "string"), 2: FieldType("kind", "string")},
        "unknown": {1: FieldType("metadata", _META)},
    }
    fields: dict[int, FieldType] = {}
    for line in text.splitlines():
        if line.startswith(" "):
            number, name, typed = line.split()
            fields[int(number)] = _field_type(name, typed)
        elif " " in line:
            version, kind, message = line.split()
            kinds[version, kind] = message
        else:
            fields = messages[line] = {}
    return KubernetesSchema(kinds, messages)


def _field_type(name: str, typed: str) -> FieldType:
    many = next((each for each in ("{}items:", "{}", "[]") if typed.startswith(each)), "")
    typed = typed[len(many) :]
    return FieldType(name, typed.removesuffix("?"), many, typed.endswith("?"))


def _object(message: bytes, name: str, depth: int) -> dict[str, Tree]:
    """Return a message as its JSON would be, in the order of the bytes."""
    if depth > DEPTH_MAX:
        raise NotThisKindError(f"is nested deeper than {DEPTH_MAX} levels")
    known = schema().messages[name]
    found: dict[str, Tree] = {}
    for number, wire_type, content in fields_of(message):
        field = known.get(number)
        is_number = field and not field.many.startswith("{}") and field.type in ("int", "bool")
        if field is None or (wire_type == BYTES) == is_number:
            _append_raw(found, (number, wire_type, content), depth)
        elif field.name == "=":  # its fields belong to this object
            found.update(_object(content, field.type, depth + 1))
        else:
            _put(found, field, content, depth)
    return found


def _append_raw(found: dict[str, Tree], field: Field, depth: int) -> None:
    number, wire_type, content = field
    part = raw_value(wire_type, content, depth)
    name = str(number)
    if name in found:
        earlier = found[name]
        found[name] = [*earlier, part] if isinstance(earlier, list) else [earlier, part]
    else:
        found[name] = part


def _put(found: dict[str, Tree], field: FieldType, content: Any, depth: int) -> None:
    if field.many == "[]":
        found.setdefault(field.name, []).append(_item(field.type, content, depth))
    elif field.many:
        entry = _entry(content)
        of_key, inner = found.setdefault(field.name, {}), entry.get(2, b"")
        if field.many == "{}":
            value = _item(field.type, inner, depth)
        else:
            value = [_text(item) for _, _, item in fields_of(_bytes(inner))]
        of_key[_text(entry.get(1, b""))] = value
    else:
        part = _item(field.type, content, depth)
        if part is not None and (part or not field.omits_zero):
            found[field.name] = part


def _item(typed: str, content: Any, depth: int) -> Tree:
    convert = _CONVERTED.get(typed)
    return convert(content) if convert else _object(_bytes(content), typed, depth + 1)


def _entry(content: Any) -> dict[int, Any]:
    """Return the fields of a message that has each at most once."""
    return {number: inner for number, _, inner in fields_of(_bytes(content))}


def _int(content: Any) -> int:
    if not isinstance(content, int):
        raise NotThisKindError("has another type than a number in a field of a number")
    return signed(content)


def _text(content: Any) -> str:
    try:
        return str(_bytes(content), "utf-8")
    except UnicodeDecodeError:
        return bytes_text(content)


def _time(content: Any, *, digits: int = 0) -> Tree:
    """Return a `Time`, or with six `digits` a `MicroTime`, as RFC 3339 in UTC."""
    entry = _entry(content)
    if not entry:
        return None  # never set
    seconds, nanos = _int(entry.get(1, 0)), _int(entry.get(2, 0))
    if seconds not in _YEARS_S or nanos not in range(10**9):
        return {"seconds": seconds, "nanos": nanos}
    date = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{nanos // 1000:06}" if digits else ""
    return f"{date}{fraction}Z"


def _int_or_string(content: Any) -> int | str:
    entry = _entry(content)
    return _text(entry.get(3, b"")) if entry.get(1) else _int(entry.get(2, 0))


def _embedded_json(content: Any) -> Tree:
    raw = _bytes(_entry(content).get(1, b""))
    try:
        return checked(json.loads(raw, object_pairs_hook=unique, parse_float=float_of))
    except (ValueError, RecursionError):
        return _base64(raw)


def _base64(content: Any) -> str:
    """Return bytes as the API has them in JSON and YAML."""
    return b64encode(_bytes(content)).decode()


_CONVERTED: dict[str, Callable[[Any], Tree]] = {
    "bool": lambda content: bool(_int(content)),
    "bytes": _base64,
    "int": _int,
    "int-or-string": _int_or_string,
    "json": _embedded_json,
    "micro-time": partial(_time, digits=6),
    "quantity": lambda content: _text(_entry(content).get(1, b"")),
    "string": _text,
    "time": _time,
}


# --- the wire format of Protocol Buffers ---


Field = tuple[int, int, Any]
"""Number, wire type, content: an unsigned int, bytes, or the fields of a group."""

VARINT, FIXED64, BYTES, GROUP, FIXED32 = 0, 1, 2, 3, 5


def fields_of(message: bytes) -> list[Field]:
    """Return the fields of a message in their order; raise `NotThisKindError`."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    empty = Empty()
    try:
        empty.ParseFromString(message)
    except DecodeError as e:
        raise NotThisKindError("is not a whole message of protobuf") from e
    return _fields(UnknownFieldSet(empty))


def _fields(found: Any) -> list[Field]:
    convert: dict[int, Callable[[Any], Any]] = {GROUP: _fields, BYTES: bytes}
    return [
        (each.field_number, kind := each.wire_type, convert.get(kind, int)(each.data))
        for each in found
    ]


def _raw(fields: list[Field], depth: int) -> dict[str, Tree]:
    found: dict[str, Tree] = {}
    for field in fields:
        _append_raw(found, field, depth)
    return found


def raw_value(wire_type: int, content: Any, depth: int = 0) -> Tree:
    """Return what one field of an unknown type most likely is.

    Bytes are shown as text if they are printable text, else as a message if they parse as one
    with at least one field, else as bytes. Raises `NotThisKindError`.
    """
    if depth >= DEPTH_MAX:
        raise NotThisKindError(f"is nested deeper than {DEPTH_MAX} levels")
    if wire_type == GROUP:
        return _raw(content, depth + 1)
    if wire_type != BYTES:
        return signed(content) if wire_type == VARINT else content
    if (text := text_of(content)) is not None:
        return text
    try:
        return _raw(fields_of(content), depth + 1)
    except NotThisKindError:
        return content


def signed(number: int) -> int:
    """Return the int64 that a varint holds.

    >>> signed(2**64 - 1), signed(5)
    (-1, 5)
    """
    return number - (1 << 64) if number >> 63 else number


# --- what remains of an object without some fields, compared as bytes ---

Plan = dict[int, Any]
"""For a field's number a plan of the message in it, or None: the field is left out."""


def remainder(value: bytes, ignored: Patterns) -> tuple[Any, ...] | None:
    """Return the bytes of a stored object that are not of ignored paths, None if it is not one.

    Paths below a map, or with the index of an item, remain. Reads only messages that have ignored
    paths; a field that is not known remains.
    """
    at = len(PREFIX)
    if value[at : at + 1] != b"\x0a":
        return None
    try:
        size, at = _varint(value, at + 1)
        parts: list[Any] = [value[:at], kind := value[at : at + size]]
        if value[at + size] != _RAW_TAG:
            return None
        size, at = _varint(value, at + size + 1)
        if at + size > len(value):
            return None
        _keep(value, at, at + size, _plan_of_kind(kind, ignored), parts)
    except (IndexError, NotThisKindError):
        return None
    parts.append(value[at + size :])
    return tuple(parts)


_RAW_TAG = 2 << 3 | BYTES


def _keep(message: bytes, at: int, end: int, plan: Plan, parts: list[Any]) -> None:
    """Append what remains of a message: runs of bytes, and tuples for messages with a plan.

    A hot path: each version of a Lease that a log passes.
    """
    kept = at
    while at < end:
        start, tag = at, message[at]
        at += 1
        if tag > _ONE_BYTE:
            tag, at = _varint(message, start)
        wire_type, number = tag & 7, tag >> 3
        if wire_type == BYTES:
            size, at = _varint(message, at)
            stop = at + size
        elif wire_type == VARINT:
            stop = _varint(message, at)[1]
        elif wire_type in (FIXED64, FIXED32):
            stop = at + (8 if wire_type == FIXED64 else 4)
        else:
            raise NotThisKindError("has a group")
        if stop > end:
            raise NotThisKindError("is not a whole message of protobuf")
        if number in plan:
            if kept < start:
                parts.append(message[kept:start])
            kept = stop
            if (below := plan[number]) is not None:
                inner: list[Any] = [number]
                _keep(message, at, stop, below, inner)
                parts.append(tuple(inner))
        at = stop
    if kept < end:
        parts.append(message[kept:end])


_ONE_BYTE = 0x7F
"""The largest number whose varint has one byte."""


def _varint(message: bytes, at: int) -> tuple[int, int]:
    byte = message[at]
    if byte <= _ONE_BYTE:
        return byte, at + 1
    found, shift = byte & _ONE_BYTE, 7
    while (byte := message[at := at + 1]) > _ONE_BYTE:
        found |= (byte & _ONE_BYTE) << shift
        shift += 7
    return found | byte << shift, at + 1


@lru_cache(maxsize=256)
def _plan_of_kind(type_meta: bytes, ignored: Patterns) -> Plan:
    kind = _object(type_meta, "runtime.TypeMeta", 0)
    name = schema().kinds.get((kind.get("apiVersion", ""), kind.get("kind", "")), "unknown")
    return _plan_of(name, ignored)


def _plan_of(message: str, ignored: Patterns) -> Plan:
    plan: Plan = {}
    for number, field in schema().messages.get(message, {}).items():
        below = ignored if field.name == "=" else ignored.below(field.name)
        if below.covers:
            plan[number] = None
            continue
        below = below.below(None) if field.many == "[]" else below
        is_message = field.type not in _CONVERTED and not field.many.startswith("{}")
        if below and is_message and (inner := _plan_of(field.type, below)):
            plan[number] = inner
    return plan
