"""`make tour-all`: all parts of both packages at work on git histories, and checked against git.

The `clones` (or three small ones, which `making` makes) are a `History`: its steps are all commits
in the order of time. A `Filler` turns each into keys, documents and rows of a CDC log, in an etcd
of the tour's own (`etcd`) or in lmdb. `Replication` is the story: three captures (a `Fleet` of
processes) replicate everything while two are killed, the ring changes, and the store is compacted.
Then the questions: `asking` asks the store, `replicas` what captures made, `duck` and `sparked` the
files and the store in other programs, `page` the page. `clone_exam` asks the questions of
`snapkv tour` of each clone, also of a compacted store with its archive (`clone_archived`) and in
Spark (`clone_sparked`). A `Report` has the answers, and their
differences from git; `show` prints it.

Caveats: paths that are not UTF-8, or of more than 200 bytes, are left out and listed. Commits that
are dated in the future move to now. Everything is below one `Place`, a folder that the next tour
empties.
"""

from system.everything.show import Tour as Tour
from system.everything.show import run_tour as run_tour
