"""What one client may take from a server, and how long things may last."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a server; each has its unit in its name."""

    head_s: float = 20.0
    """How long a client may take to send the head of a request."""
    body_bytes: int = 8_000_000
    """The largest document (CouchDB's `max_document_size`), and the largest body of a request."""
    bulk_bytes: int = 128_000_000
    """The largest body of `_bulk_docs`, which is split before it is parsed."""
    bulk_docs_max: int = 250_000
    """The most documents of `_bulk_docs`."""
    bodies_bytes: int = 320_000_000
    """The bodies of all requests that are not answered yet (at least one); beyond it is 503."""
    small_bodies_share: float = 0.2
    """The share of that which is kept for bodies of up to `body_bytes`."""
    parsed_bytes: int = 512_000_000
    """The memory of the values parsed from them, as estimated; beyond it is 503."""
    body_s: float = 60.0
    """How long a client may send nothing of a body, or be behind `body_bytes_per_s`."""
    body_bytes_per_s: int = 100_000
    """How fast a client has to send a body that takes longer than `body_s`."""
    unread_s: float = 60.0
    """How long a client may take nothing of an answer that it was sent."""
    connections: int = 4_000
    """Clients at once; one more is answered 503."""
    callers: int = 16
    """Threads for requests that are answered at once."""
    followed: int = 100
    """Databases that are followed at once, with a thread or a few each; one more is 503."""
    readers: int = 8
    """Threads that read for feeds; whoever waits for one is served in turn."""
    rows: int = 256
    """Rows of a feed that are read at once."""
    docs: int = 64
    """Documents that are read at once."""
    step_bytes: int = 256 << 10
    """How much is aimed at when documents are read; a single one may be larger."""
    piece_bytes: int = 64 << 10
    """How much is sent at once."""
    bulk_docs: int = 1_000
    """The most documents of `_bulk_docs` in one commit."""
    commit_bytes: int = 8_000_000
    """How much of `_bulk_docs` is stored in one commit, or one document."""
    wait_ms: int = 60_000
    """The longest timeout and heartbeat of a feed, and the default of the former."""
    stop_s: float = 5.0
    """How long clients may take to hear that the server stops."""
