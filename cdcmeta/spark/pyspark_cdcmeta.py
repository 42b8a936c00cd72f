"""Found by Spark at the top of the installed packages: `cdcmeta.changes`, without a register."""

from cdcmeta.spark.source import ChangesDataSource as DefaultSource

__all__ = ["DefaultSource"]
