"""Spark reads a store as of a past moment."""

import snapkv
from snapkv.spark.local import local_session

with snapkv.open("lmdb:store") as store:
    first = store.save("a", b"1")
    store.save("b", b"2")
with local_session() as spark:
    past = spark.read.format("snapkv").option("timestampAsOf", first).load("lmdb:store")
    assert [row.key for row in past.collect()] == ["a"]
