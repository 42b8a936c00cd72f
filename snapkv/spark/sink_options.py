"""Options of a sink, and which columns of its rows are what."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import types as T

from snapkv.errors import SnapKVError
from snapkv.layout import NOTE_BYTES_MAX, WRITER_BYTES_MAX
from snapkv.reading import arrow
from snapkv.spark import errors
from snapkv.spark.batch_commits import SPACE
from snapkv.spark.decoding import FORMATS, JSON, MSGPACK, UTF8, WHOLE
from snapkv.spark.errors import SourceError
from snapkv.spark.location import keyspace_of
from snapkv.spark.options import FORMAT, TEXT, key_formats
from snapkv.spark.source_options import SourceOptions, canonical_names, location_of

KNOWN = (
    "store",
    "path",
    "name",
    "space",
    "keyFormat",
    "keyPrefix",
    "valueFormat",
    "note",
    "writer",
    "txnAppId",
    "txnVersion",
)
NAME_BYTES_MAX = 200
"""It is part of a key, and so are the names of the store and of a space."""
_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of `writeStream` that Spark passes on."""
CHANGE, VERSION, ORDINAL = "_change_type", "_commit_version", "_change_ordinal"
OWN = {
    name
    for schema in (arrow.SNAPSHOT_TIMED, arrow.CHANGES, arrow.HISTORY)
    for name in schema.names
    if name != WHOLE
}
"""Columns of the views: they are never a part of a value, so what was read can be written."""


@dataclass(frozen=True, slots=True)
class SinkOptions(SourceOptions):
    """Where to write, and what is the same for the sinks of all formats."""

    @property
    def batch(self) -> tuple[str, int] | None:
        """The names that options give a batch: of what writes it, and its number.

        Raises `SourceError`.
        """
        name, text = self.text("txnAppId"), self.text("txnVersion")
        if name is None and text is None:
            return None
        if not name or text is None:
            raise SourceError(errors.MISSING_OPTION, "give txnAppId and txnVersion, or neither")
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise SourceError(
                errors.INVALID_OPTION, f"txnVersion is a whole number, 0 or more, not {text!r}"
            )
        return name, int(text)

    def check(self) -> None:
        """Raise `SourceError` for an invalid option."""
        _ = self.batch  # raises for an invalid name or number
        for name, most in (
            ("note", NOTE_BYTES_MAX // 2),
            ("writer", WRITER_BYTES_MAX),
            ("txnAppId", NAME_BYTES_MAX),
        ):
            if len(self.texts.get(name, "").encode()) > most:
                raise SourceError(errors.INVALID_OPTION, f"{name} has more than {most} bytes")
        if self.location.url.startswith("archive:"):
            raise SourceError(errors.INVALID_OPTION, "an archive cannot be written: name its store")


def sink_texts(raw: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Return the options of a sink by their names. Raises `SourceError` for unknown ones."""
    given = {name: text for name, text in raw.items() if name.lower() not in _OF_SPARK}
    if any(name.lower() == "fleet" for name in given):
        raise SourceError(
            errors.INVALID_OPTION,
            "a fleet only reads: write to the store of one member, by its url",
        )
    return canonical_names(given, known)


@dataclass(frozen=True, slots=True)
class KeyOptions(SinkOptions):
    """Which keys are written, and how values look."""

    replace: bool
    """Whether rows replace the keys with the prefix, rather than being added."""

    @property
    def is_text(self) -> bool:
        """Whether keys are text."""
        return self.choice("keyFormat", *key_formats(self.location.space is not None)) == TEXT

    @property
    def format(self) -> str:
        """The encoding of values."""
        return self.choice("valueFormat", *FORMATS)

    @property
    def prefix(self) -> str | bytes | None:
        """What all keys begin with; None: anything. Raises `SourceError`."""
        text = self.text("keyPrefix")
        if text is None or self.is_text:
            return text
        try:
            return bytes.fromhex(text)
        except ValueError as e:
            raise SourceError(
                errors.INVALID_OPTION, f"keyPrefix is hexadecimal when keys are binary, not {text}"
            ) from e


def key_options(raw: Mapping[str, str], *, replace: bool) -> KeyOptions:
    """Return the options of a sink that Spark passes. Raises `SourceError`."""
    texts = sink_texts(raw, KNOWN)
    location = location_of(texts, raw, FORMAT)
    options = KeyOptions(location, texts, None, replace)
    options.check()
    try:
        keyspace_of(location, text=True)
    except SnapKVError as e:
        raise SourceError(errors.INVALID_OPTION, str(e)) from e
    if location.space == SPACE:
        raise SourceError(
            errors.INVALID_OPTION, f"the space {SPACE} says which batches are written"
        )
    if replace and options.prefix is None:
        raise SourceError(
            errors.MISSING_OPTION,
            "overwriting (and outputMode complete) replaces the keys with a prefix: give "
            "keyPrefix, which is '' for all keys",
        )
    if options.location.space is None and not options.is_text:
        raise SourceError(
            errors.INVALID_OPTION, "keyFormat=binary is for a space; a store's own keys are text"
        )
    return options


def value_fields(schema: T.StructType, options: KeyOptions) -> list[str]:
    """Return the columns that make the value. Raises `SourceError` for a schema without it."""
    kinds = {field.name: field.dataType for field in schema}
    check_names(schema, {*OWN, WHOLE})
    for name, number in ((VERSION, T.LongType), (ORDINAL, T.IntegerType)):
        if name in kinds and not isinstance(kinds[name], T.IntegralType):
            check_kind(kinds, name, number())
    check_kind(kinds, "key", T.StringType() if options.is_text else T.BinaryType())
    fields = [name for name in kinds if name not in OWN]
    if options.format in (JSON, MSGPACK):
        if not fields:
            raise SourceError(errors.INVALID_SCHEMA, f"no columns for a value: {_shown(schema)}")
        if WHOLE in fields and len(fields) > 1:
            raise SourceError(
                errors.INVALID_SCHEMA,
                f"a column value is the whole value, so no other can be a member: {fields}",
            )
        return fields
    check_kind(kinds, WHOLE, T.StringType() if options.format == UTF8 else T.BinaryType())
    if len(fields) > 1:
        raise SourceError(
            errors.INVALID_SCHEMA,
            f"valueFormat={options.format} writes the columns key and value, so nothing would "
            f"keep {', '.join(name for name in fields if name != WHOLE)}: drop them, or give "
            "valueFormat=json",
        )
    return [WHOLE]


def check_names(schema: T.StructType, special: Collection[str]) -> None:
    """Raise `SourceError` for names that differ in case only, from each other or a special one.

    Spark keeps the case that was typed, and a removal must not become a save by it.
    """
    if len({name.lower() for name in schema.names}) < len(schema.names):
        raise SourceError(errors.INVALID_SCHEMA, f"two columns have one name: {schema.names}")
    known = {name.lower(): name for name in special}
    for name in schema.names:
        meant = known.get(name.lower(), name)
        if meant != name:
            raise SourceError(errors.INVALID_SCHEMA, f"column {name} is written {meant}")


def check_kind(kinds: Mapping[str, T.DataType], name: str, kind: T.DataType) -> None:
    """Raise `SourceError` unless a column exists with this type."""
    found = kinds.get(name)
    if type(found) is not type(kind):
        given = "missing" if found is None else found.simpleString().upper()
        what = f"column {name} must be {kind.simpleString().upper()}, and is {given}"
        also = {"key": ", or give keyFormat", WHOLE: ", or give valueFormat"}.get(name, "")
        raise SourceError(errors.INVALID_SCHEMA, f"{what}: cast it{also}")


def _shown(schema: T.StructType) -> str:
    return ", ".join(f"{each.name} {each.dataType.simpleString().upper()}" for each in schema)
