"""Files that claim more than there is, or hold more than a commit may: little memory, one error."""

import json
import random
import resource
import struct
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

import snapkv

pytestmark = pytest.mark.slow

REQUEST_BYTES_MAX = 1 << 20
MEMORY_BYTES_MAX = 64 << 20
"""What a process may take beside what it has when its store is open."""

HEADER = msgpack.packb(
    {"magic": "snapkv-dump", "format": 1, "name": "x", "timestamp": 0, "revision": 1}
)


def pair(key: bytes, value: bytes) -> bytes:
    return bytes(msgpack.packb([key, value]))


def header_of(more: bytes) -> bytes:
    """A header with one more field, whose bytes are given."""
    return bytes([HEADER[0] + 1]) + HEADER[1:] + msgpack.packb("more") + more


CORRUPT, LARGE, FOREIGN = "CorruptStoreError", "CommitTooLargeError", "NotAStoreError"


def hostile() -> dict[str, tuple[bytes, str]]:
    """Return what each file has, and the error that it must raise: 150 MB, so made when used."""
    return {
        "a key of 4 GB that is not there": (HEADER + b"\x92\xc6\xff\xff\xff\xff", CORRUPT),
        "a value of 4 GB that is not there": (
            HEADER + b"\x92\xc4\x06data/a\xc6\xff\xff\xff\xff",
            CORRUPT,
        ),
        "a list of 4 billion": (HEADER + b"\xdd\xff\xff\xff\xff", CORRUPT),
        "a list of 4 billion for a key": (HEADER + b"\x92\xdd\xff\xff\xff\xff", CORRUPT),
        "a map of 4 billion": (HEADER + b"\xdf\xff\xff\xff\xff", CORRUPT),
        "a text of 4 GB": (HEADER + b"\x92\xdb\xff\xff\xff\xff", CORRUPT),
        "an extension of 4 GB": (HEADER + b"\x92\xc9\xff\xff\xff\xff\x01", CORRUPT),
        "lists in lists": (HEADER + b"\x92" * 30_000_000, CORRUPT),
        "lists of lists that are whole": (HEADER + b"\x92" + b"\x92\xc0\xc0" * 10_000_000, CORRUPT),
        "a closing map of lists": (HEADER + b"\x82" + b"\xdd\x00\xff\xff\xff" * 1_000, CORRUPT),
        "a closing map without end": (HEADER + b"\x8f" + b"\xa0\xc0" * 10_000_000, CORRUPT),
        "a header of lists in lists": (header_of(b"\x91" * 30_000_000), FOREIGN),
        "a header with a list of 4 billion": (header_of(b"\xdd\xff\xff\xff\xff"), FOREIGN),
        "a header with 511 lists of a million": (header_of(b"\xdd\x00\x0f\xff\xff" * 511), FOREIGN),
        "a header with a text of 4 GB": (header_of(b"\xdb\xff\xff\xff\xff"), FOREIGN),
        "nothing but zeros": (b"\0" * 10_000_000, FOREIGN),
        "a value larger than a commit": (
            HEADER + b"\x92\xc4\x06data/a\xc6" + struct.pack(">I", 200 << 20),
            LARGE,
        ),
        "more pairs than a commit has": (
            HEADER + b"".join(pair(b"data/%06d" % n, b"") for n in range(200_000)),
            CORRUPT,
        ),
        "keys that come twice": (HEADER + pair(b"data/a", b"1") + pair(b"data/a", b"2"), CORRUPT),
        "a space without a name": (HEADER + pair(b"space//k", b"1"), CORRUPT),
        "a key of nothing": (HEADER + pair(b"data/", b"1"), CORRUPT),
        "a key of no text": (HEADER + pair(b"data/\xff", b"1"), CORRUPT),
        "a kind that is none": (HEADER + pair(b"sys/ts", b"1"), CORRUPT),
    }


SPARSE = {"a value larger than a commit": 300 << 20}
"""How long a file is, with zeros at its end."""


def load_all(folder: str) -> None:
    """Load each of the files; print the name of the error, and that the store is unharmed."""
    with snapkv.open(f"lmdb:{folder}/store", request_bytes_max=REQUEST_BYTES_MAX) as store:
        store.save("mine", b"1")
        held = next(
            int(line.split()[1]) << 10
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("VmSize")
        )
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES_MAX,) * 2)
        for path in sorted(Path(folder).glob("*.dump")):
            try:
                store.load_dump(path, replace=True)
            except Exception as e:
                print(json.dumps([path.stem, type(e).__name__]), flush=True)
        assert dict(store.at().items()) == {"mine": b"1"}


def test_little_memory_and_an_error_of_ours(tmp_path: Path) -> None:
    expected = {}
    for name, (data, error) in hostile().items():
        expected[name] = error
        with (tmp_path / f"{name}.dump").open("wb") as file:
            file.write(data)
            if name in SPARSE:
                file.truncate(SPARSE[name])
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert found == expected, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 100_000])
def test_what_is_too_large_is_measured_to_its_end(tmp_path: Path, size: int) -> None:
    limits = {"request_bytes_max": REQUEST_BYTES_MAX}
    with snapkv.open("memory:") as source, snapkv.open(f"lmdb:{tmp_path}/to", **limits) as target:
        pairs = {f"k{n:05}": b"v" * size for n in range(2 * REQUEST_BYTES_MAX // (size + 40))}
        source.multi_save(pairs)
        source.dump(tmp_path / "d")
        with pytest.raises(snapkv.CommitTooLargeError) as caught:
            target.load_dump(tmp_path / "d")
        assert caught.value.limit == REQUEST_BYTES_MAX
        assert caught.value.size == sum(32 + len(f"data/{k}") + len(v) for k, v in pairs.items())
        assert len(target.at()) == 0


@pytest.mark.parametrize("run", range(5))
def test_files_of_chance(run: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    forms = [
        b"\x92",
        b"\xc4\x01",
        b"\xc6\xff\xff\xff\xff",
        b"\xdd\xff\xff",
        b"\x82",
        b"data/a",
        b"\0",
    ]
    with snapkv.open("memory:") as store:
        for _ in range(400):
            data = bytearray(HEADER + b"".join(rng.choices(forms, k=rng.randrange(12))))
            for _ in range(rng.randrange(3)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            path = rng.choice([bytes(data), bytes(data[: rng.randrange(len(data))])])
            with pytest.raises(snapkv.SnapKVError):
                store.load_dump(_file(path))


def _file(data: bytes) -> object:
    """A file that gives a few bytes at a time, as a pipe does."""

    class Slow:
        at = 0

        def read(self, size: int) -> bytes:
            found = data[self.at : self.at + min(size, 3)]
            self.at += len(found)
            return found

    return Slow()


if __name__ == "__main__":
    load_all(sys.argv[1])
