"""Lets Spark find `cdcmeta.changes` without `register`: it looks at top-level modules."""

from cdcmeta.spark.feed_source import ChangesDataSource as DefaultSource

__all__ = ["DefaultSource"]
