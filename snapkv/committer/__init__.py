"""Commits: what is written together with its timestamp, and what became of it.

`compile_part` checks one caller's operations, `Committer` groups callers into transactions,
`Sent` is a request on its way, `Settler` finds out what became of it.
"""

from snapkv.committer.attempt import Sent as Sent
from snapkv.committer.committer import COMMIT_TIMEOUT_S as COMMIT_TIMEOUT_S
from snapkv.committer.committer import COMMIT_TIMEOUT_S_MAX as COMMIT_TIMEOUT_S_MAX
from snapkv.committer.committer import Committer as Committer
from snapkv.committer.part import Check as Check
from snapkv.committer.part import compile_check as compile_check
from snapkv.committer.part import compile_part as compile_part
from snapkv.committer.part import listed as listed
from snapkv.committer.part import pairs as pairs
