"""A store's past in pandas, polars and DuckDB: tables of Arrow, without Spark.

python examples/tables_without_spark.py [STORE_URL]     # without one: a demo store

Needs pip install 'snapkv[arrow]' pandas polars duckdb
"""

import duckdb
import polars
from demo import store_url

import snapkv

WHEN = "-2d"

with store_url() as url, snapkv.open(url, create=False) as store:
    print("pandas: the state two days ago")
    past = store.at(WHEN).to_arrow().to_pandas()
    past["value"] = past["value"].str.decode("utf-8")
    print(past[["key", "value", "mod_version"]].to_string(index=False), "\n")

    print("polars: how long was each version in force?")
    history = polars.from_arrow(store.history_to_arrow())
    lasted = polars.col("_timestamp_to") - polars.col("_timestamp_from")
    print(history.select("key", "_version_from", lasted.alias("lasted")), "\n")

    print("DuckDB: who changed how much since then?")
    changes, commits = store.changes_to_arrow(since=WHEN), store.commits_to_arrow()
    print(
        duckdb.sql(
            """
            SELECT userName, _change_type, count(*) AS keys
            FROM changes JOIN commits ON _commit_version = version
            GROUP BY ALL ORDER BY ALL
            """
        )
    )
