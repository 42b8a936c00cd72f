"""`snapkv tour`: a clone's git history as a store, asked about the past and checked against git.

A `Clone` (`git`) is the clone to tour. `tour_store` is its store, in a folder or an etcd.
`git_import` turns its first-parent history into a store, one commit for each commit, at git's
time, and defines the keys. An `Examiner` (`examiner`) asks store and git the same six questions
at several `AskedDate`s and keeps a `TourReport`.
`show` is the command: it shows progress, a row for each question, and what to try next.

Caveats: paths that are not UTF-8, or too long for a key, are left out and listed. A merge shows its
changes to its first parent. A commit of git that does not fit into one transaction stops the tour;
with a larger `--request-bytes-max` the tour continues from there.
"""

from snapkv.cli.tour.show import tour

__all__ = ["tour"]
