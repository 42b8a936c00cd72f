"""The options of an `etcd://` URL, each declared once: its check, its default, its variable.

Spark's format, a fleet's file, the command line's variables and `from_etcd3` derive from these what
they take. `docs/etcd.md` says what an option means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from snapkv.base.arguments import check_bool, check_int, check_text, wrong_type
from snapkv.errors import InvalidOptionError

OPS_MAX = 128
"""The server's default of --max-txn-ops."""
REQUEST_BYTES_MAX = 1_572_864
"""The server's default of --max-request-bytes."""


def _check_path(what: str, value: object) -> None:
    if not isinstance(value, str | os.PathLike):
        raise wrong_type(what, "a path", value)


def _option(check: Callable[[str, Any], object], variable: str | None = None) -> Any:
    """Return an option of connections; its variable is used if it is not given: "" means none."""
    return field(default=None, repr=False, metadata={"check": check, "variable": variable})


def _limit(default: int, least: int) -> Any:
    """Return an option with a limit of the server; `from_etcd3` takes it, Spark does not."""
    return field(default=default, metadata={"check": partial(check_int, least=least)})


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """The options of one cluster. Raises `InvalidOptionError`, `InvalidTypeError`."""

    user: str | None = _option(check_text, "SNAPKV_ETCD_USER")
    password: str | None = _option(check_text, "SNAPKV_ETCD_PASSWORD")
    tls: bool | None = _option(check_bool)
    ca_cert: str | None = _option(_check_path, "SNAPKV_ETCD_CACERT")
    cert: str | None = _option(_check_path, "SNAPKV_ETCD_CERT")
    key: str | None = _option(_check_path, "SNAPKV_ETCD_KEY")
    max_request_bytes: int = _limit(REQUEST_BYTES_MAX, least=8 << 10)
    max_txn_ops: int = _limit(OPS_MAX, least=48)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None or each.default is not None:
                each.metadata["check"](each.name, value)


_OPTIONS = fields(EtcdOptions)
CONNECTION = tuple(each.name for each in _OPTIONS if each.default is None)
LIMITS = tuple(each.name for each in _OPTIONS if each.default is not None)
FILES = tuple(each.name for each in _OPTIONS if each.metadata["check"] is _check_path)
FLAGS = tuple(each.name for each in _OPTIONS if each.metadata["check"] is check_bool)
VARIABLES = {
    each.name: variable for each in _OPTIONS if (variable := each.metadata.get("variable"))
}


def without_environment(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that the environment does not add to.

    >>> without_environment({"user": "ann", "password": "secret"})["ca_cert"]
    ''

    Raises `InvalidOptionError` for half of a user and password.
    """
    given = {option: value for option, value in options.items() if value is not None}
    if ("user" in given) != ("password" in given):
        raise InvalidOptionError("user= and password= go together: give both, or neither")
    return dict.fromkeys(VARIABLES, "") | given
