"""What does an hour of one write a second cost in an archive in S3: requests, and bytes?"""

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import snapkv
from benchmarks.harness import RESULTS, machine, seeded
from snapkv.archive import manifest as manifests
from snapkv.archive import open_files
from snapkv.archive.folder import Files

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from archive.histories import LONG_OVER, Recorder
from object_server import S3Proxy, close_shared_server, shared_server

FLUSHES, COMMITS_EACH = 60, 60
NAME, QUESTION = "archive_requests", "What does an hour of one write a second cost in an archive?"


def main() -> None:
    """Count the requests that reach an S3 server, and the bytes of the files."""
    found = {}
    for title in ("random values of 64 bytes", "JSON values of about 80 bytes"):
        with S3Proxy(shared_server()) as proxy:
            found[title] = _hour(proxy, open_files(shared_server().new_url(), proxy.storage), title)
    close_shared_server()
    lines = [f"# {QUESTION}", "", ", ".join(f"{k} {v}" for k, v in machine().items()), ""]
    names = list(next(iter(found.values())))
    lines += [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for title, row in found.items():
        lines.append(f"| {title} | {' | '.join(f'{row[name]:,}' for name in names)} |")
    notes = (
        f"{FLUSHES} flushes of {COMMITS_EACH} commits of one of 1,000 keys, through a proxy that "
        "counts; as in the second hour or later, when each flush deletes what was replaced an hour "
        "ago. Raw bytes are those of keys and values. The logs hold time, writer and note."
    )
    text = "\n".join([*lines, "", notes, ""])
    print(text)
    (RESULTS / f"{NAME}.md").write_text(text)
    data = {"question": QUESTION, "machine": machine(), "hours": found, "notes": notes}
    (RESULTS / f"{NAME}.json").write_text(json.dumps(data, indent=1) + "\n")


def _hour(proxy: S3Proxy, files: Files, title: str) -> dict[str, float]:
    rng, clock = seeded(NAME), snapkv.ManualClock(1_700_000_000_000)
    manifests.GRACE_S = LONG_OVER
    raw = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        snapkv.open(f"lmdb:{folder}/m", clock=clock, max_clock_skew=10**9, durability="none") as kv,
    ):
        recording = Recorder(kv, files)
        recording.catch_up()
        proxy.seen.clear()
        for _ in range(FLUSHES):
            for _ in range(COMMITS_EACH):
                clock.advance(1_000)
                key, value = f"table/{rng.randrange(1_000):06}", _value(rng, title)
                kv.save(key, value)
                raw += len(key) + len(value)
            recording.catch_up()
            recording.writer.tidy()
        counts = Counter(_kind(method, path) for method, path in proxy.seen)
        manifest = recording.writer.manifest
        assert manifest is not None
    sizes = {k: sum(file.size for file in manifest.of_kind(k)) for k in ("delta", "log")}
    changes = FLUSHES * COMMITS_EACH
    return {
        **{kind: counts[kind] for kind in ("puts", "lists", "gets", "deletes")},
        "raw bytes a change": round(raw / changes, 1),
        "bytes a change in deltas": round(sizes["delta"] / changes, 1),
        "in logs": round(sizes["log"] / changes, 1),
        "raw by deltas": round(raw / sizes["delta"], 2),
    }


def _value(rng: random.Random, title: str) -> bytes:
    if title.startswith("random"):
        return rng.randbytes(64)
    columns = ["id", "email", "created", "owner", "region", "price"]
    fields = {"owner": rng.choice(["ann", "bob", "eve"]), "columns": rng.sample(columns, 4)}
    return json.dumps(fields | {"rows": rng.randrange(10**6)}).encode()


def _kind(method: str, path: str) -> str:
    if method == "GET":
        return "lists" if "list-type" in path else "gets"
    return {"PUT": "puts", "POST": "deletes", "DELETE": "deletes"}[method]


if __name__ == "__main__":
    main()
