"""A small store to try things with: what two people did to a catalogue of tables in six days."""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import snapkv

ORDERS, USERS, EXPORT = "table/orders", "table/users", "table/tmp_export"


def table(owner: str, *columns: str) -> bytes:
    """Return the description of a table."""
    return json.dumps({"owner": owner, "columns": columns}).encode()


# Days ago, writer, note, and changes.
WEEK = [
    (6.0, "ann", "first tables", {ORDERS: table("ann", "id"), USERS: table("ann", "id")}, []),
    (4.0, "bob", "mails for the newsletter", {USERS: table("ann", "id", "email")}, []),
    (3.0, "bob", "export for the auditors", {EXPORT: table("bob", "all")}, []),
    (1.0, "ann", "auditors are done", {ORDERS: table("ann", "id", "total")}, [EXPORT]),
    (0.1, "bob", "users are mine", {USERS: table("bob", "id", "email")}, []),
]


def make_store(url: str) -> None:
    """Fill a store with commits of the last days, each at its own time."""
    now = datetime.now(UTC)
    for days, writer, note, puts, deletes in WEEK:
        then = now - timedelta(days=days)
        clock = snapkv.ManualClock(int(then.timestamp() * 1_000))
        with snapkv.open(url, clock=clock, writer=writer) as store:
            store.commit(puts=puts, deletes=deletes, note=note)


@contextmanager
def store_url() -> Iterator[str]:
    """Give the URL on the command line, else that of a demo store, which is removed at the end."""
    if len(sys.argv) > 1:
        yield sys.argv[1]
        return
    with tempfile.TemporaryDirectory() as folder:
        url = f"lmdb:{folder}/store"
        make_store(url)
        yield url
