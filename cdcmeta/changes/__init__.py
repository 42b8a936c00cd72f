"""CouchDB's changes feed on snapkv: documents with revision trees, and an index of their changes.

The index is that of CouchDB's RFC 003 (`("changes", sequence)`), with the parts that CouchDB's
FoundationDB layer never shipped. The revisions are as in RFC 001.
"""

from cdcmeta.changes.database import ChangesDB, Info, databases
from cdcmeta.changes.database_state import DocVersion, Missing
from cdcmeta.changes.documents import Edited
from cdcmeta.changes.feed import Change, ChangesPage, Checkpoint
from cdcmeta.changes.sequence import Sequence
from snapkv.tuples import Versionstamp

__all__ = [
    "Change",
    "ChangesDB",
    "ChangesPage",
    "Checkpoint",
    "DocVersion",
    "Edited",
    "Info",
    "Missing",
    "Sequence",
    "Versionstamp",
    "databases",
]
