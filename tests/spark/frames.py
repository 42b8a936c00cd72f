"""DataFrames for tests: many of them read by one action, for each action takes its time."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import functions as F


def load(spark, url: str, schema=None, **options):
    """A DataFrame of a store."""
    reader = spark.read.format("snapkv").options(**options)
    return (reader if schema is None else reader.schema(schema)).load(url)


def together(frames) -> list[list[tuple]]:
    """The rows of each of some DataFrames with the same types of columns, by one action."""
    numbered = [frame.select(F.lit(n), "*") for n, frame in enumerate(frames)]
    found: list[list[tuple]] = [[] for _ in frames]
    for n, *row in reduce(lambda one, other: one.unionAll(other), numbered).collect():
        found[n].append(tuple(row))
    return found
