"""CouchDB's changes feed on snapkv: documents with revision trees, and an index of their changes.

The index is RFC 003's (`("changes", sequence)`), with the parts that its FoundationDB layer never
shipped; the revisions are RFC 001's.
"""

from cdcmeta.changes.database import ChangesDB as ChangesDB
from cdcmeta.changes.database import Info as Info
from cdcmeta.changes.database import databases as databases
from cdcmeta.changes.documents import Edited as Edited
from cdcmeta.changes.feed import Change as Change
from cdcmeta.changes.feed import ChangesPage as ChangesPage
from cdcmeta.changes.following import Checkpoint as Checkpoint
from cdcmeta.changes.reading import DocVersion as DocVersion
from cdcmeta.changes.reading import Missing as Missing
from cdcmeta.changes.sequence import Sequence as Sequence
from snapkv.tuples import Versionstamp as Versionstamp
