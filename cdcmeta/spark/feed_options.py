"""Options of the format `cdcmeta.changes`, checked together before anything is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from cdcmeta.argument_checks import checked_database_name
from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.changes.feed import ALL_DOCS, MAIN_ONLY, Form
from cdcmeta.changes.sequence import Sequence
from cdcmeta.errors import CDCMetaError, DatabaseNotFoundError, InvalidSequenceError
from snapkv.spark import source_kit as kit

# --- error codes besides the codes of snapkv's format, which have the same meaning here ---

DATABASE_NOT_FOUND = kit.errors.ErrorCode("CDCMETA_DATABASE_NOT_FOUND")
DATABASE_MISMATCH = kit.errors.ErrorCode("CDCMETA_DATABASE_MISMATCH")
DATABASE_RELOCATED = kit.errors.ErrorCode("CDCMETA_DATABASE_RELOCATED")
INVALID_SEQUENCE = kit.errors.ErrorCode("CDCMETA_INVALID_SEQUENCE")


@contextmanager
def converted() -> Iterator[None]:
    """Convert errors of cdcmeta to `SourceError`; `snapkv.spark` converts errors of snapkv."""
    try:
        yield
    except DatabaseNotFoundError as e:
        raise DATABASE_NOT_FOUND(f"{e} there at that moment") from e
    except InvalidSequenceError as e:
        raise INVALID_SEQUENCE(str(e)) from e
    except CDCMetaError as e:
        raise kit.errors.INVALID_OPTION(str(e)) from e


# --- options ---

FORMAT = "cdcmeta.changes"
OF_FEEDS = ("database", "since", "until", "style", "includeDocs", "docIds", "prefix")
KNOWN = (*kit.OF_SOURCES, *OF_FEEDS, "maxRowsPerTrigger", "failOnDataLoss")
FOR_BATCHES = ("until", "timestampAsOf", "versionAsOf")
NOW, LATEST = "now", "latest"
SEQUENCE = re.compile(r"[0-9a-f]{26,}")
_TIMESTAMP_DIGITS_MAX = 20


@dataclass(frozen=True, slots=True)
class FeedOptions(kit.SourceOptions):
    """The checked options: a database, a range of its feed, and what to read of each change."""

    database: str
    form: Form

    def place_in(self, state: DatabaseState, name: str, default: str, now_ms: int) -> Sequence:
        """Return the place in the feed that an option names: an exclusive start or inclusive end.

        A few round trips for "now". Raises `SourceError`.
        """
        text = self.text(name, default)
        assert text is not None
        since: str | int = NOW if text.lower() in (NOW, LATEST) else text
        # a longer text of digits is a sequence
        if kit.is_exact(text) and len(text) <= _TIMESTAMP_DIGITS_MAX:
            since = int(text)
        with converted():
            return state.place(since, lambda _: kit.timestamp_of(text, self.zone, now_ms))


def parsed(raw: Mapping[str, str]) -> FeedOptions:
    """Return the options from Spark, ignoring options that Spark added.

    Raises `SourceError` for unknown options (it lists the known ones), and without a store or a
    database.
    """
    texts = kit.canonical_names(raw, KNOWN)
    kit.check_one_of(texts, [("timestampAsOf", "versionAsOf")])
    place = kit.location_of(texts, raw, FORMAT)
    if "database" not in texts:
        raise kit.errors.MISSING_OPTION("name the database: .option('database', ...)")
    with converted():
        database = checked_database_name(texts["database"])
    options = kit.SourceOptions(place, texts, kit.zone_in(texts))
    return FeedOptions(place, texts, options.zone, database, _form(options))


def is_time(text: str) -> bool:
    """Return whether a place in the feed is a time, rather than a sequence, 0 or "now"."""
    return text.lower() not in ("0", NOW, LATEST) and not SEQUENCE.fullmatch(text)


def _form(options: kit.SourceOptions) -> Form:
    style = options.choice("style", MAIN_ONLY, ALL_DOCS)
    include_docs = options.flag("includeDocs", default=True)
    ids = None if (text := options.text("docIds")) is None else _ids(text)
    prefix = options.text("prefix", "") or ""
    return Form(style=style, include_docs=include_docs, doc_ids=ids, prefix=prefix)


def _ids(text: str) -> list[str]:
    try:
        ids = json.loads(text)
        if isinstance(ids, list) and all(isinstance(id, str) for id in ids):
            return ids
    except ValueError:
        pass
    raise kit.errors.INVALID_OPTION(f"docIds must be a JSON list of strings, not {text[:80]!r}")
