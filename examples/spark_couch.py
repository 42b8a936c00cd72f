"""What did a database of documents say yesterday, and what changed since? Its feed in Spark.

python examples/spark_couch.py [STORE_URL DATABASE]     # without them: a demo database
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.spark import changes_as_of
from snapkv.spark.local import local_session

WHEN = "-1d"  # or a date: "2026-11-20 14:05", in the session's time zone


@contextmanager
def database() -> Iterator[tuple[str, str]]:
    """Give what the command line names, else a demo database, which is removed at the end."""
    if len(sys.argv) > 2:
        yield sys.argv[1], sys.argv[2]
        return
    with tempfile.TemporaryDirectory() as folder:
        url = f"lmdb:{folder}/store"
        clock = snapkv.ManualClock(int((datetime.now(UTC) - timedelta(days=2)).timestamp() * 1_000))
        with snapkv.open(url, clock=clock) as store:
            db = ChangesDB(store, "catalogue").create()
            orders, users = db.bulk([{"_id": "orders", "owner": "ann"}, {"_id": "users"}])
        with snapkv.open(url) as store:
            db = ChangesDB(store, "catalogue")
            db.put({"_id": "orders", "owner": "bob"}, rev=orders.rev)
            db.remove("users", rev=users.rev)
        yield url, "catalogue"


with database() as (url, name), local_session() as spark:
    past = changes_as_of(spark, url, name, WHEN)
    print(f"{name} in {url}, as it was a day ago:")
    past.where("NOT deleted").select("id", "rev", "doc").orderBy("id").show(truncate=False)

    since = changes_as_of(spark, url, name, since=WHEN)
    print("Documents that changed since:")
    since.select("id", "deleted", "doc", "_commit_timestamp").orderBy("seq").show(truncate=False)
