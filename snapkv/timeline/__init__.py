"""The time line of a store: which revision was in force at which time.

`Ring` holds the newest marks, `Anchors` what was found before, `search` finds the rest,
`Feed` brings other writers' commits, and `Timeline` joins them.
"""

from snapkv.timeline.ring import RING_SLOTS as RING_SLOTS
from snapkv.timeline.ring import Ring as Ring
from snapkv.timeline.timeline import Pin as Pin
from snapkv.timeline.timeline import Timeline as Timeline
