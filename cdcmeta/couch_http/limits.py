"""Limits of a server: sizes, times, and how much runs at once."""

from __future__ import annotations

from dataclasses import dataclass

from snapkv import web


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(web.Limits):
    """Limits of a server; each name ends with its unit, or is a count."""

    body_bytes: int = 8_000_000
    """The largest document (CouchDB's `max_document_size`), and the largest body of a request."""
    bulk_bytes: int = 128_000_000
    """The largest body of `_bulk_docs`, which is split before it is parsed."""
    bulk_docs_max: int = 250_000
    """The most documents of `_bulk_docs`."""
    bodies_bytes: int = 320_000_000
    """The bodies of all unanswered requests together (at least one); beyond it is 503."""
    small_bodies_share: float = 0.2
    """The share of `bodies_bytes` that is reserved for bodies of up to `body_bytes`."""
    parsed_bytes: int = 512_000_000
    """The estimated memory of the values parsed from them; beyond it is 503."""
    body_s: float = 60.0
    """How long a client may send nothing of a body, or be behind `body_bytes_per_s`."""
    body_bytes_per_s: int = 100_000
    """How fast a client has to send a body that takes longer than `body_s`."""
    callers: int = 16
    """Threads for requests that do not wait."""
    followed: int = 100
    """Databases that are followed at once, with one or a few threads each; one more is 503."""
    readers: int = 8
    """Threads that read for feeds, in turn."""
    rows: int = 256
    """Rows of a feed that are read at once."""
    docs: int = 64
    """Documents that are read at once."""
    step_bytes: int = 256 << 10
    """The target size of documents read at once; a single document may be larger."""
    piece_bytes: int = 64 << 10
    """The size of a piece that is sent at once."""
    bulk_docs: int = 1_000
    """The most documents of `_bulk_docs` in one commit."""
    commit_bytes: int = 8_000_000
    """The most bytes of `_bulk_docs` in one commit, unless one document is larger."""
    wait_ms: int = 60_000
    """The longest timeout and heartbeat of a feed, and the default of the former."""
