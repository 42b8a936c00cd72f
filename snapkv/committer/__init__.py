"""Commits: operations that are written together with a timestamp, and their outcomes.

`compile_operations` checks one caller's operations, `Committer` groups callers into transactions,
`SentRequest` is a request on its way, `Recovery` finds out its outcome if the answer is lost.
"""

from snapkv.committer.committer import COMMIT_TIMEOUT_S as COMMIT_TIMEOUT_S
from snapkv.committer.committer import COMMIT_TIMEOUT_S_MAX as COMMIT_TIMEOUT_S_MAX
from snapkv.committer.committer import Committer as Committer
from snapkv.committer.operations import Check as Check
from snapkv.committer.operations import check_writer as check_writer
from snapkv.committer.operations import checked_meta as checked_meta
from snapkv.committer.operations import compile_check as compile_check
from snapkv.committer.operations import compile_operations as compile_operations
from snapkv.committer.operations import listed as listed
from snapkv.committer.operations import pairs as pairs
from snapkv.committer.request import SentRequest as SentRequest
