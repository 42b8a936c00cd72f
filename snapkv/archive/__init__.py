"""The archive: history as files, which outlives the engine's compaction."""

from snapkv.base.extras import extra

with extra("archive", "archives"):
    import pyarrow as pyarrow
