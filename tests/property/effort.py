"""How long to try: more programs than the profile's examples, and longer ones when soaking."""

from hypothesis import settings

_PROFILE_EXAMPLES = settings.default.max_examples

EFFORT = settings(
    max_examples=4 * _PROFILE_EXAMPLES,
    stateful_step_count=30 if _PROFILE_EXAMPLES <= 100 else 80,
)
