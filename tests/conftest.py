"""Shared by all tests: how random tests are run, and how long any of them may take."""

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "soak",
    parent=settings.get_profile("default"),
    max_examples=2_000,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
