"""The forms of URLs of a changefeed's source and sink. Nothing is opened here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.executors.sinks.contract import NAME_IN_URL
from cdcmeta.scheduler.executors.sinks.couch_client import SCHEMES, Database
from cdcmeta.scheduler.executors.sinks.recorded import RECORD
from cdcmeta.scheduler.runtime.stores_and_sinks import CALL, JSON_LINES

STORES = ("lmdb:DIR", "etcd://HOST:PORT", "memory:NAME")
ARCHIVE_FORM = "archive:PLACE"
SOURCES = (*STORES, ARCHIVE_FORM)
SINKS = (
    *STORES,
    "jsonl:DIR",
    "call:NAME",
    "couch+http://HOST:PORT/DB",
    "couch+https://HOST/DB",
    f"{RECORD}lmdb:DIR",
    f"{RECORD}etcd://HOST:PORT",
    f"{RECORD}{ARCHIVE_FORM}",
)
OBJECT_STORES = ("az", "gs", "s3")
_ENDPOINT = r" *(?:\[[^\s\[\]/@?]+\]|[^\s:\[\]/@?,]+)(?::[0-9]{0,5})? *"
_PATH = r"(?!~|//)/*[^/\0][^\0]*"
_BUCKET = rf"(?:{'|'.join(OBJECT_STORES)})://[^/@?#]+(?:/[^@?#]*)?"
_PLACES = {
    "lmdb": (_PATH, "the path of a directory, in which '~' is not expanded and '//' does not lead"),
    "etcd": (
        rf"//{_ENDPOINT}(?:,{_ENDPOINT})*/?",
        "//HOST:PORT, or several with commas, without a path or a login",
    ),
    "memory": (r".*", "any name"),
    "archive": (rf"(?!.*://)/*[^/\0][^\0]*|{_BUCKET}", "the path of a folder, or s3://BUCKET/PATH"),
}
"""What follows a scheme of snapkv, which checks more when it opens a store."""
_SECRETS = "@?="
"""Characters beside which a URL of another program may have a password."""


def check_source(url: str) -> None:
    """Raise `InvalidArgumentError` for a URL that `snapkv.open` rejects by its form.

    >>> check_source("lmdb:./shop")
    """
    try:
        _check_store(url, *_PLACES)
    except InvalidArgumentError as e:
        raise InvalidArgumentError(
            f"{e}; a source has one of the forms {', '.join(SOURCES)}"
        ) from e


def check_sink(url: str, databases: Sequence[str] = ()) -> None:
    """Raise `InvalidArgumentError`, with all forms, for a URL of which no sink can be made.

    `databases` are the tables of a changefeed that has databases.

    >>> check_sink("couch+http://127.0.0.1:5984/copy-*", ["users"])
    """
    try:
        if url.startswith((JSON_LINES, CALL)):
            _check_named(url)
        elif url.startswith(SCHEMES):
            _check_couch(url, databases)
        elif url.startswith(RECORD):
            _check_store(url.removeprefix(RECORD), *_PLACES)
        else:
            _check_store(url, "lmdb", "etcd", "memory")
    except InvalidArgumentError as e:
        raise InvalidArgumentError(f"{e}; a sink has one of the forms {', '.join(SINKS)}") from e


# --- helpers ---


def _check_named(url: str) -> None:
    scheme, _, name = url.partition(":")
    if not name.strip():
        what = "a function" if scheme + ":" == CALL else "a directory"
        raise InvalidArgumentError(f"{url!r} lacks the name of {what}")


def _check_couch(url: str, databases: Sequence[str]) -> None:
    if NAME_IN_URL in url and not databases:
        raise InvalidArgumentError(
            f"a {NAME_IN_URL!r} in {url!r} is the name of a database, and the tables of this "
            "changefeed are not databases"
        )
    Database(url, {})  # a path may have a '*'; the names of databases are valid there, too


def _check_store(url: str, *schemes: str) -> None:
    scheme, colon, place = url.partition(":")
    shown = "..." if any(mark in url for mark in _SECRETS) else repr(url)
    if not colon or scheme not in schemes:
        raise InvalidArgumentError(f"the URL {shown} is of an unknown form")
    form, words = _PLACES[scheme]
    if re.fullmatch(form, place, re.DOTALL) is None:
        raise InvalidArgumentError(f"in the URL {shown}, {scheme}: is followed by {words}")
