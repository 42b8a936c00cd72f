"""The memory that a large first state and `verify` take is bounded, whatever the archive has."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

MIB_MAX = 250
"""Beside what the modules take. The states below have 150 MiB of keys and values."""
PROGRAM = """
import random, resource, sys
from snapkv.archive.folder import Folder
from snapkv.archive.verify import verify
from snapkv.archive.writer import ArchiveWriter, Change
from snapkv.engine.contract import Event, KeyValue
from snapkv.layout import Layout, SourceId, StampRecord

KEYS, VALUE_BYTES, TS = 150_000, 1_000, 1 << 60
layout, rng = Layout("default"), random.Random(1)

def mark(revision, ordinal):
    return KeyValue(layout.ts, StampRecord(TS + ordinal).encode(), 2, revision, ordinal)

def kv(n, revision, version):
    key, value = layout.data.encode(f"{n:09}"), rng.randbytes(VALUE_BYTES)
    return KeyValue(key, value, n + 3, revision, version)

def pages():
    for low in range(0, KEYS, 1_000):
        yield [kv(n, n + 3, 1) for n in range(low, low + 1_000)]

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

what, folder = sys.argv[1:]
before = peak()
if what == "begin":
    writer = ArchiveWriter(Folder(folder), SourceId(b"id", "default", 2))
    writer.begin(mark(KEYS + 3, 2), pages())
elif what == "change":
    writer = ArchiveWriter(Folder(folder), SourceId(b"id", "default", 2))
    changes = (Change(Event(kv(n, KEYS + 4, 2), False), TS + 3) for n in range(0, KEYS, 2))
    writer.append(KEYS + 4, changes, [mark(KEYS + 4, 3)])
    writer._add_base()
else:
    assert verify(Folder(folder)).problems == ()
print((peak() - before) // 1_024)
"""


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """Return the memory in MiB that each step took, in a process of its own."""
    folder = tmp_path_factory.mktemp("large") / "archive"
    found = {}
    for what in ("begin", "change", "verify"):
        command = [sys.executable, "-c", PROGRAM, what, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        found[what] = int(done.stdout)
    print(found)
    return found


def test_a_first_state_is_never_whole_in_memory(peaks):
    assert peaks["begin"] < MIB_MAX


def test_a_state_is_never_whole_in_memory_when_an_archive_is_verified(peaks):
    assert peaks["verify"] < MIB_MAX
