"""The command: `PYTHONPATH=tests python -m system.everything`, which `make tour-all` runs.

Each commit of git becomes keys, documents and rows of a CDC log, at git's time. Three captures
replicate them; two are killed, the ring changes, and the store is compacted. Then the store, its
archives, duckdb, Spark and the page answer: what did the clones look like, what changed, which
author changed it, which capture replicated what? If etcd is installed, the tour starts an etcd for
itself. It ends with 1 when an answer differs from git's. The clones are not changed.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from snapkv.errors import SnapKVError
from system.everything import run_tour

INTO = ".tour-all"


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line, by default the process's; return its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # an error is one line, printed here
    parser = argparse.ArgumentParser(prog="make tour-all", description=__doc__)
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="git clones; else three small ones that it makes"
    )
    parser.add_argument(
        "--into", default=INTO, metavar="DIR", help="the folder, which the next tour empties"
    )
    parser.add_argument(
        "--embedded", action="store_true", help="use lmdb, also where etcd is installed"
    )
    parser.add_argument("--no-spark", action="store_true", help="do not ask Spark")
    given = parser.parse_args(words)
    try:
        return run_tour(given.paths, given.into, embedded=given.embedded, spark=not given.no_spark)
    except KeyboardInterrupt:
        return 130
    except SnapKVError as e:
        sys.stderr.write(f"tour: {e}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
