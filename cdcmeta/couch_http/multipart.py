"""Answers of several parts, as replicators before CouchDB 3.3 ask for revisions."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from cdcmeta.couch_http.request import encoded

MIXED = "multipart/mixed"


def mixed(leaves: Iterable[dict[str, Any]]) -> Response:
    """Return leaves as parts: each `ok` a document, each `missing` an error."""
    boundary = uuid.uuid4().hex
    parts = [
        _part(leaf["ok"]) if "ok" in leaf else _part(leaf, b'; error="true"') for leaf in leaves
    ]
    start = f"--{boundary}".encode()
    body = b"".join(start + part for part in parts) + start + b"--"
    return Response(body, media_type=f'{MIXED}; boundary="{boundary}"')


def _part(value: dict[str, Any], error: bytes = b"") -> bytes:
    return b"\r\nContent-Type: application/json%b\r\n\r\n%b\r\n" % (error, encoded(value))
