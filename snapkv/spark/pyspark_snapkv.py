"""Found by Spark at the top of the installed packages: `snapkv` needs no registration."""

from snapkv.spark.data_source import SnapKVDataSource as DefaultSource

__all__ = ["DefaultSource"]
