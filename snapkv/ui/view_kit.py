"""Kit for views of other packages: bounded sources, versions, differences, events."""

from snapkv.engine.bulk_reads import replayed
from snapkv.engine.contract import KeyEvent, KeyValue
from snapkv.reading.history import stamped
from snapkv.ui.key_differences import Row, row
from snapkv.ui.key_versions import Versions, stored_versions_back
from snapkv.ui.page_source import Budget
from snapkv.ui.page_text import escaped
from snapkv.ui.store_views import way_of
