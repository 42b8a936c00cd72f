"""Show the state of a store two days ago: a snapshot of a past date, as a DataFrame.

python examples/spark_past_date.py [STORE_URL]     # without one: a demo store
"""

from demo import store_url

from snapkv.spark.local import local_session

WHEN = "-2d"  # or a date: "2026-11-20T14:05:00Z"

with store_url() as url, local_session() as spark:
    past = (
        spark.read.format("snapkv")
        .option("timestampAsOf", WHEN)
        .option("valueFormat", "utf8")  # values as text; without it, as bytes
        .option("columns", "key,value,mod_timestamp")
        .load(url)
    )
    print(f"{url}, two days ago:")
    past.orderBy("key").show(truncate=False)

    # A temporary view keeps the moment: whatever is committed meanwhile, both queries see the same.
    past.createOrReplaceTempView("past")
    print("Owners of tables then, where values are JSON objects that have one:")
    spark.sql(
        """
        SELECT get_json_object(value, '$.owner') AS owner, count(*) AS tables
        FROM past GROUP BY 1 ORDER BY 2 DESC, 1
        """
    ).show()
