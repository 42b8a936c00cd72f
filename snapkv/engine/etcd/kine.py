"""kine, in which k3s keeps its objects: etcd's protocol over an SQL database, and what differs.

A server without ids of its cluster and of its member is kine. It takes only the transactions of a
Kubernetes API server, so a store cannot be kept there. Its keys can be read and watched.
"""

from __future__ import annotations

from snapkv.engine.contract import ALL_KEYS_END, Range
from snapkv.engine.etcd import codec
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.errors import NotSupportedError

UNSUPPORTED_TXN = "etcdserver: unsupported operations in txn request"
"""kine's answer to all transactions but the transactions of a Kubernetes API server."""
NOT_SERIALIZABLE = "serializable is not implemented"
"""kine's answer to a read that any member may answer; it answers the same read without that."""
NOT_TEXT = b"\xff\0"
"""A key that SQLite takes, and a database of text, such as PostgreSQL, rejects."""
LAST_KEY = b"\xff" * 64
"""The end of all keys: kine answers ranges up to `ALL_KEYS_END` with nothing, or with a part."""
OWN_KEY = b"compact_rev_key"
"""The key of kine's own compacted revision. No event shows its changes."""
SHOWN_AS_OWN = b"compact_rev_key_apiserver"
"""The key in which kine keeps what an API server writes to `OWN_KEY`. Answers and events show it
under that name, so that a range with both has one name twice."""


def is_kine(header: pb.ResponseHeader) -> bool:
    """Return whether a server is kine: an etcd has ids."""
    return not header.cluster_id and not header.member_id


def no_store_error(text: str) -> NotSupportedError:
    """Return the error for a store's transaction that a server rejected with this text."""
    return NotSupportedError(
        "this server speaks etcd's protocol, but is not an etcd (k3s has such a server, kine): it "
        f"rejects a store's transactions ({text}). Keep the store in etcd or lmdb; 'snapkv record "
        "--observe PREFIX --into PLACE' and 'snapkv import-prefix' can read this server"
    )


def unordered_error(text: str) -> NotSupportedError:
    """Return the error for a kine whose database rejected `NOT_TEXT` with this text."""
    return NotSupportedError(
        "this server is kine on another database than SQLite: changes become visible there out of "
        "the order of their revisions, so that its lists and watches miss some. Read the cluster "
        f"through its API server, or keep it in SQLite or etcd (the database says: {text})"
    )


def range_request(wanted: Range) -> pb.RangeRequest:
    """Return a range as a message that kine answers in full."""
    if wanted.range_end == ALL_KEYS_END:
        wanted = wanted._replace(range_end=LAST_KEY)
    return codec.range_request(wanted)


def listed_ranges(key: bytes, range_end: bytes) -> list[tuple[bytes, bytes]]:
    """Return the ranges in which a range is listed, in the order of the names that answers show.

    `OWN_KEY` itself is left out, and `SHOWN_AS_OWN` alone in its range: a page that ended with it
    would be continued in front of it.

    >>> listed_ranges(b"/registry/", b"/registry0")
    [(b'/registry/', b'/registry0')]
    >>> [first.decode() for first, _ in listed_ranges(b"a", b"z")][:2]
    ['a', 'compact_rev_key_apiserver']
    """
    end = LAST_KEY if range_end == ALL_KEYS_END else range_end
    parts = [
        (b"", OWN_KEY),
        (SHOWN_AS_OWN, SHOWN_AS_OWN + b"\0"),
        (OWN_KEY + b"\0", SHOWN_AS_OWN),
        (SHOWN_AS_OWN + b"\0", LAST_KEY),
    ]
    cut = [(max(key, first), min(end, beyond)) for first, beyond in parts]
    return [(first, beyond) for first, beyond in cut if first < beyond]
