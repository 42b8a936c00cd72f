"""A log of generations takes a ring, and its commands list it."""

import subprocess
import sys
from pathlib import Path

import snapkv
from cdcmeta.generations import CdcLog, GenerationLog, Sharding

with snapkv.open("lmdb:store") as store:
    log = GenerationLog(store, propagation_delay=0.0, leeway=0.1)
    made = log.make({0: Sharding(2)})
    assert made.streams == 2
    with log.member("node-1") as member:
        written = CdcLog(store, member).write(b"users", b"v1")
        assert CdcLog(store, member).read(written.stream, 0) == [written]
program = Path(sys.executable).with_name("cdcmeta")
line = [str(program), "generations", "list", "--store", "lmdb:store"]
shown = subprocess.run(line, check=True, timeout=120, capture_output=True, text=True).stdout
assert len(shown.splitlines()) == 1, shown
