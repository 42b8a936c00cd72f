"""The time line of a store: which revision was in force at which time.

`Timeline` answers that. Its `Tracker` holds the marks that are known: `Ring` the newest ones,
`Blocks` and `Anchors` those found before. `search` finds any other mark, `MarkFeed` brings the
commits of other writers, and `Continuity` notices a restored engine. A `Moment` reads the state of
one time, at a revision that shows it: in a store any revision from a commit up to the next one, in
an observed prefix (`Ticks`) only the mark's own.
"""

from snapkv.timeline.moment import Moment as Moment
from snapkv.timeline.moment import RevisionPolicy as RevisionPolicy
from snapkv.timeline.ring import RING_SLOTS as RING_SLOTS
from snapkv.timeline.ring import Ring as Ring
from snapkv.timeline.search import READS_MAX as READS_MAX
from snapkv.timeline.timeline import TakenPath as TakenPath
from snapkv.timeline.timeline import Timeline as Timeline
from snapkv.timeline.tracker import RESTORES_MAX as RESTORES_MAX
