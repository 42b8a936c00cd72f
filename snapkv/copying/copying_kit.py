"""Kit for copies that other packages make: sources, targets, transactions, stored bytes, folders.

The targets that are archives need pyarrow: `snapkv.copying.archive_target`.
"""

from snapkv.base.files import sync_folder
from snapkv.coordination.requests import transact
from snapkv.copying.sources import SourceCommit
from snapkv.copying.store_target import RecordTarget, StoreTarget
from snapkv.engine.contract import Compare, Delete, KeyEvent, KeyValue, Op, Put, Range, Txn
from snapkv.engine.contract import Target as Compared
from snapkv.layout import (
    CREATION_ORDINAL,
    Keyspace,
    Layout,
    SourceId,
    StampRecord,
    prefix_end,
    stamp_of,
)
from snapkv.reading.view import View
