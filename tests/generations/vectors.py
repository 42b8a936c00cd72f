"""What ScyllaDB and Cassandra compute, as published or recomputed."""

import json
from pathlib import Path

VECTORS = json.loads(Path(__file__).parent.parent.joinpath("vectors/scylla.json").read_text())


def cases(kind, *names):
    """Return one kind of vectors as tuples of these members."""
    return [tuple(each[name] for name in names) for each in VECTORS[kind]]
