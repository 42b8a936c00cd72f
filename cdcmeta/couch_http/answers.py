"""Answers that are one JSON value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from cdcmeta.couch_http.errors import HTTPError
from cdcmeta.couch_http.request import encoded
from cdcmeta.couch_http.streaming import JSON


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer that is a JSON value; it ends with a line's end, for people."""
    return Response(encoded(value) + b"\n", status, headers, JSON)


def refusal(error: HTTPError) -> Response:
    """Return the answer that tells an error."""
    return answer(error.body, error.status, error.headers)
