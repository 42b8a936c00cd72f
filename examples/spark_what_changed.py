"""What is different from two days ago, who did it, and why? Differences, changes and commits.

python examples/spark_what_changed.py [STORE_URL]     # without one: a demo store
"""

from demo import store_url
from pyspark.sql.functions import desc

from snapkv.spark import diff, read_changes
from snapkv.spark.local import local_session

SINCE = "-2d"

with store_url() as url, local_session() as spark:
    print(f"{url}: what is different from two days ago")
    differences = diff(spark, url, SINCE, valueFormat="utf8")
    differences.orderBy("key").show(truncate=False)

    # Each change of each key, a row for the value before and one for the value after.
    changes = read_changes(spark, url, SINCE, preimages=True, valueFormat="utf8")

    # The log says who did it, and why.
    log = spark.read.format("snapkv").option("view", "commits").load(url)

    print("Step by step:")
    (
        changes.join(log, changes["_commit_version"] == log["version"])
        .orderBy("_commit_version", "_change_ordinal", desc("_change_type"))
        .select("timestamp", "userName", "userMetadata", "_change_type", "key", "value")
        .show(truncate=False)
    )
