"""Follow a store into Parquet files: every change once, however often this runs.

python examples/spark_stream.py [STORE_URL [FOLDER]]     # without them: a demo store

The checkpoint in the folder remembers what was delivered. The first run brings the current state as
inserts; each later one brings the changes since.
"""

import sys
import tempfile
from pathlib import Path

from demo import store_url
from pyspark.sql import SparkSession

import snapkv
from snapkv.spark.local import local_session


def follow(spark: SparkSession, url: str, folder: Path) -> None:
    """Write all that is new, and end; `.trigger(processingTime="10 seconds")` would go on."""
    changes = (
        spark.readStream.format("snapkv")
        .option("readChangeFeed", True)
        .option("valueFormat", "utf8")
        .load(url)
    )
    (
        changes.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "changes"))
        .awaitTermination()
    )


def show(spark: SparkSession, folder: Path) -> None:
    """Print all that was written."""
    changes = spark.read.parquet(str(folder / "changes"))
    changes.orderBy("_commit_version", "key").select(
        "_commit_version", "_change_type", "key", "value"
    ).show(truncate=False)


with store_url() as url, tempfile.TemporaryDirectory() as temporary, local_session() as spark:
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else temporary)
    follow(spark, url, folder)
    print(f"{url} in {folder}:")
    show(spark, folder)

    if len(sys.argv) == 1:  # it is our own: commit something, and follow that
        with snapkv.open(url, writer="ann") as store:
            store.commit(puts={"table/invoices": b"{}"}, deletes=["table/users"])
        follow(spark, url, folder)
        print("After one more commit, and a second run:")
        show(spark, folder)
