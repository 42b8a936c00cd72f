"""How long to try: half the examples of the profile; `make soak` tries forty times as many."""

from hypothesis import settings
from sampling import SOAK

_PROFILE_EXAMPLES = settings.default.max_examples // (1 if SOAK else 2)

_STEPS = 30 if _PROFILE_EXAMPLES <= 100 else 80

EFFORT = settings(
    max_examples=_PROFILE_EXAMPLES,
    stateful_step_count=_STEPS,
)

SERVER_EFFORT = settings(max_examples=max(4, _PROFILE_EXAMPLES // 12), stateful_step_count=_STEPS)
"""Where each program gets a server of its own, and its waits are real."""
