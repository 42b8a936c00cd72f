"""The command line `cdcmeta` with another wall clock, or an owner with less patience.

Both are in the environment, so that a test starts it as any capture, by
`python -m scheduler.runtime.program`.
"""

import os
import sys
import time
from dataclasses import fields
from pathlib import Path

CLOCK, MUTE_US = "CAPTURES_CLOCK", "CAPTURES_MUTE_US"
"""The file with the milliseconds by which the clock is ahead; how long a capture may be silent."""


def wear(folder):
    """Let the clock be ahead by what is in a file now, also while the program runs."""
    from snapkv.clock import NS_PER_MS, SystemClock

    def now_ns(clock):
        return time.time_ns() + int(folder.read_text()) * NS_PER_MS

    SystemClock.now_ns = now_ns
    SystemClock.now_ms = lambda clock: now_ns(clock) // NS_PER_MS


def hurry(mute_us):
    """Let an owner evict a capture that is silent for so long."""
    from cdcmeta.scheduler.core.limits import Limits

    names = [field.name for field in fields(Limits)]
    values = list(Limits.__init__.__defaults__)
    values[names.index("mute_us")] = mute_us
    Limits.__init__.__defaults__ = tuple(values)


if __name__ == "__main__":
    if CLOCK in os.environ:
        wear(Path(os.environ[CLOCK]))
    if MUTE_US in os.environ:
        hurry(int(os.environ[MUTE_US]))
    from cdcmeta.cli import main

    sys.exit(main())
