"""Found by Spark at the top of the installed packages: the format `snapkv`, without a register."""

from snapkv.spark.source import SnapKVDataSource as DefaultSource

__all__ = ["DefaultSource"]
