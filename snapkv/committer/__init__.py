"""Commits: what is written together with its timestamp, and what became of it.

`compile_part` checks one caller's operations, `Committer` groups callers into transactions,
`Sent` is a request on its way, `Settler` finds out what became of it.
"""

from snapkv.committer.committer import COMMIT_TIMEOUT_S as COMMIT_TIMEOUT_S
from snapkv.committer.committer import COMMIT_TIMEOUT_S_MAX as COMMIT_TIMEOUT_S_MAX
from snapkv.committer.committer import Committer as Committer
from snapkv.committer.operations import Check as Check
from snapkv.committer.operations import compile_check as compile_check
from snapkv.committer.operations import compile_part as compile_part
from snapkv.committer.operations import listed as listed
from snapkv.committer.operations import pairs as pairs
from snapkv.committer.request import Sent as Sent
