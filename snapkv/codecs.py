"""Codecs: values as bytes and back, for stores whose values are more than bytes.

A `Codec` has two methods, `encode(value) -> bytes` and `decode(data) -> value`. `store.with_codec`
and `open(codec=...)` take one. Three are here:

* `json`: what JSON has, as canonical UTF-8: names sorted by code point, no spaces, no NaN or
  infinity. Equal values have equal bytes, so an update to the same value commits nothing.
* `msgpack`: the same, and bytes and aware datetimes, smaller; maps sorted by their packed names.
* `pydantic_model(Model)`: models of pydantic, as canonical JSON.

A codec of your own raises any exception for a value that it cannot encode, or data that it cannot
decode; the store raises `InvalidValueError` or `DecodeError` from it. `None` is not a value: it
means that a key is absent.

>>> import snapkv
>>> from snapkv import codecs
>>> with snapkv.open("memory:", codec=codecs.json) as store:
...     ts = store.save("users/ann", {"name": "Ann", "age": 7})
...     store.load("users/ann"), store.raw.load("users/ann")
({'age': 7, 'name': 'Ann'}, b'{"age":7,"name":"Ann"}')
"""

from __future__ import annotations

import json as _json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, Protocol, Self, TypeVar

import msgpack as _msgpack

from snapkv.base.arguments import wrong_type

T = TypeVar("T")


class Codec(Protocol[T]):
    """Turns values into bytes and back.

    Errors name it by its attribute `name`, or else by its class.
    """

    def encode(self, value: T, /) -> bytes:
        """Return the bytes of a value; raise any exception for one that is not valid."""

    def decode(self, data: bytes, /) -> T:
        """Return the value of some bytes; raise any exception for bytes that are not valid."""


@dataclass(frozen=True, slots=True)
class JsonCodec:
    """Values of JSON as canonical UTF-8; see `snapkv.codecs`."""

    name: str = "json"

    def encode(self, value: Any, /) -> bytes:
        """Return canonical JSON.

        Tuples become arrays. Raises `ValueError` for NaN and infinity, for text that is not valid
        Unicode, and for a circle; `TypeError` for types that JSON lacks and for names of objects
        that are not str, which Python's `json` would change silently.

        >>> json.encode({"b": [1, 2.5, None], "a": "\u00e9"}).decode()
        '{"a":"é","b":[1,2.5,null]}'
        """
        text = _json.dumps(
            value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=True
        )
        _check_names(value)
        return text.encode()

    def decode(self, data: bytes, /) -> Any:
        """Return the value of JSON in UTF-8; raises `ValueError`, also for NaN and infinity."""
        return _json.loads(data.decode(), parse_constant=_reject_constant)


@dataclass(frozen=True, slots=True)
class MsgpackCodec:
    """Values of msgpack with sorted maps; see `snapkv.codecs`."""

    name: str = "msgpack"

    def encode(self, value: Any, /) -> bytes:
        r"""Return canonical msgpack; aware datetimes become timestamps.

        Raises `TypeError` for types that msgpack lacks, and for names of maps that are neither str
        nor bytes; `ValueError` for a naive datetime, and for values that are nested too deeply.

        >>> msgpack.encode({"b": b"\0", "a": 1}).hex()
        '82a16101a162c40100'
        """
        packed: bytes = _msgpack.packb(_sorted(value), datetime=True)
        return packed

    def decode(self, data: bytes, /) -> Any:
        """Return the value of msgpack; raises `ValueError`. Timestamps become datetimes in UTC."""
        return _msgpack.unpackb(data, timestamp=3)


json: Final = JsonCodec()
"""Values of JSON; equal values have equal bytes."""
msgpack: Final = MsgpackCodec()
"""Values of msgpack; equal values have equal bytes."""


class Model(Protocol):
    """The part of a pydantic model that the codec uses."""

    @classmethod
    def model_validate_json(cls, json_data: bytes, /) -> Self:
        """Return the model of some JSON."""

    def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]:
        """Return the model as plain values."""


M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class PydanticCodec(Generic[M]):
    """Models of one class of pydantic 2, as canonical JSON; see `pydantic_model`."""

    model: type[M]

    @property
    def name(self) -> str:
        """The codec in messages."""
        return f"pydantic_model({self.model.__name__})"

    def encode(self, value: M, /) -> bytes:
        """Return a model as canonical JSON; raises `TypeError` for another class, `ValueError`."""
        if not isinstance(value, self.model):
            raise TypeError(f"it is a {type(value).__name__}, not a {self.model.__name__}")
        config: Mapping[str, Any] = getattr(self.model, "model_config", {})
        by_alias = config.get("validate_by_alias", True)  # as it will be read
        return json.encode(value.model_dump(mode="json", by_alias=by_alias))

    def decode(self, data: bytes, /) -> M:
        """Return the model of some JSON; raises pydantic's `ValidationError`, a `ValueError`."""
        return self.model.model_validate_json(data)


def pydantic_model(model: type[M]) -> PydanticCodec[M]:
    """Return the codec of a pydantic model: values are its instances, validated when they are read.

    Stored are the fields as JSON, by their aliases unless the model is validated by name only.
    A field that is new in the model needs a default to read older values. snapkv does not need
    pydantic: the model brings it.

        class User(pydantic.BaseModel):
            name: str
            age: int = 0

        users = store.with_codec(codecs.pydantic_model(User))
        users.save("users/ann", User(name="Ann"))
        users.load("users/ann").age

    Raises `InvalidTypeError` if `model` is not a class of models.
    """
    methods = ("model_validate_json", "model_dump")
    if not isinstance(model, type) or not all(hasattr(model, each) for each in methods):
        raise wrong_type("model", "a class of pydantic 2", model)
    return PydanticCodec(model)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_names(value: Any) -> None:
    """Raise `TypeError` for an object with a name that is not a str; `value` has no circle."""
    if isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(name, str):
                raise TypeError(f"names of objects are str, not {type(name).__name__}: {name!r}")
            _check_names(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_names(each)


def _sorted(value: Any) -> Any:
    """Return a value with the maps in it sorted by their packed names."""
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str | bytes):
                raise TypeError(f"names of maps are str or bytes, not {type(name).__name__}")
        return {name: _sorted(value[name]) for name in sorted(value, key=_msgpack.packb)}
    if isinstance(value, list | tuple):
        return [_sorted(each) for each in value]
    return value
