"""Metadata of change data capture, on snapkv, so that each can be read as of any moment.

* `ChangesDB`: documents with revision trees and a changes feed that never rewinds (CouchDB's
  RFC 003).

* `cdcmeta.generations`: which stream the change of a row goes to, and from when on (ScyllaDB's CDC
  generations); needs NumPy.

* `cdcmeta.scheduler`: which process replicates which table, whatever fails (TiCDC's two-phase
  scheduling, its core).
"""

import logging

from cdcmeta.changes import (
    Change,
    ChangesDB,
    ChangesPage,
    Checkpoint,
    Edited,
    Sequence,
    Versionstamp,
    databases,
)

__all__ = [
    "Change",
    "ChangesDB",
    "ChangesPage",
    "Checkpoint",
    "Edited",
    "Sequence",
    "Versionstamp",
    "databases",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # quiet unless the service logs
