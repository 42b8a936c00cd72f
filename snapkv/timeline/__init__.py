"""The time line of a store: which revision was in force at which time.

`Ring` holds the newest marks, `Anchors` what was found before, `search` finds the rest,
`Feed` brings other writers' commits, and `Timeline` joins them. A `Moment` reads the state of
one time, at a revision that shows it: one from a store's commit up to the next, or, by `Ticks`, a
mark's own.
"""

from snapkv.timeline.moment import Moment as Moment
from snapkv.timeline.moment import RevisionPolicy as RevisionPolicy
from snapkv.timeline.ring import RING_SLOTS as RING_SLOTS
from snapkv.timeline.ring import Ring as Ring
from snapkv.timeline.search import READS_MAX as READS_MAX
from snapkv.timeline.timeline import Timeline as Timeline
from snapkv.timeline.tracker import RESTORES_MAX as RESTORES_MAX
