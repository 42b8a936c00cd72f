"""Metadata of change data capture, on snapkv, so that each can be read as of any moment.

* `ChangesDB`: documents with revision trees and a changes feed that never rewinds (CouchDB's
  RFC 003).

* `cdcmeta.generations`: which stream the change of a row goes to, and from when on (ScyllaDB's CDC
  generations); needs NumPy.

* `cdcmeta.scheduler`: which process replicates which table, whatever fails (TiCDC's two-phase
  scheduling, its core).
"""

from cdcmeta.changes import Change as Change
from cdcmeta.changes import ChangesDB as ChangesDB
from cdcmeta.changes import ChangesPage as ChangesPage
from cdcmeta.changes import Checkpoint as Checkpoint
from cdcmeta.changes import Edited as Edited
from cdcmeta.changes import Sequence as Sequence
from cdcmeta.changes import Versionstamp as Versionstamp
from cdcmeta.changes import databases as databases
