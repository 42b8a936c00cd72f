"""The memory engine: the contract at its plainest, and the oracle of the other engines.

`engine` holds all versions of all keys, `overlay` is what a transaction sees of them, `check`
finds broken rules.
"""

from snapkv.engine.memory.engine import MemoryEngine as MemoryEngine
from snapkv.engine.memory.engine import open_memory as open_memory
