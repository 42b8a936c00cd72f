"""The memory that a large first state and `verify` take is bounded, whatever the archive has."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SMALL, LARGE = 60_000, 150_000
"""The keys of the states: each with its value has 1 kB."""
MIB_MAX = {SMALL: 190, LARGE: 250}
"""The most memory beside what the modules take; 60,000 keys were seen to take 136, 30,000 132."""
PROGRAM = """
import random, resource, sys
from snapkv.archive.folder import Folder
from snapkv.archive.verify import verify
from snapkv.archive.writer import ArchivedChange, ArchiveWriter
from snapkv.engine.contract import KeyEvent, KeyValue
from snapkv.layout import Layout, SourceId, StampRecord

VALUE_BYTES, TS = 1_000, 1 << 60
layout, rng = Layout("default"), random.Random(1)
KEYS = int(sys.argv[1])

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

what, folder = sys.argv[2:]
before = peak()
if what == "begin":
    writer = ArchiveWriter(Folder(folder), SourceId(b"id", "default", 2))
    writer.begin(mark(KEYS + 3, 2), pages())
elif what == "change":
    writer = ArchiveWriter(Folder(folder), SourceId(b"id", "default", 2))
    events = (KeyEvent(kv(n, KEYS + 4, 2), False) for n in range(0, KEYS, 2))
    changes = (ArchivedChange(event, TS + 3) for event in events)
    writer.append(KEYS + 4, changes, [mark(KEYS + 4, 3)])
    writer._publish(writer.manifest.following(writer._base_files(writer.manifest.high)))
else:
    assert verify(Folder(folder)).problems == ()
print((peak() - before) // 1_024)
"""


@pytest.fixture(scope="module", params=[SMALL, pytest.param(LARGE, marks=pytest.mark.long)])
def keys(request):
    return request.param


@pytest.fixture(scope="module")
def peaks(tmp_path_factory, keys):
    """Return the memory in MiB that each step took, in a process of its own."""
    folder = tmp_path_factory.mktemp("large") / "archive"
    found = {}
    for what in ("begin", "change", "verify") if keys == LARGE else ("begin", "verify"):
        command = [sys.executable, "-c", PROGRAM, str(keys), what, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        found[what] = int(done.stdout)
    print(found)
    return found


def test_a_first_state_is_never_whole_in_memory(peaks, keys):
    assert peaks["begin"] < MIB_MAX[keys]


def test_a_state_is_never_whole_in_memory_when_an_archive_is_verified(peaks, keys):
    assert peaks["verify"] < MIB_MAX[keys]
