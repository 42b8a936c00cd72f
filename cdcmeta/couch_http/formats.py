"""The forms of a feed: one JSON object, a line for each row, or events."""

from __future__ import annotations

from abc import ABC, abstractmethod

from cdcmeta.changes.sequence import Sequence
from cdcmeta.couch_http.changes_query import CONTINUOUS, EVENTSOURCE
from cdcmeta.couch_http.request import encoded
from cdcmeta.couch_http.streaming import JSON


class Form(ABC):
    """How rows are written; one for each answer."""

    media_type = JSON
    begin = b""
    beat = b"\n"

    @abstractmethod
    def row(self, row: bytes, seq: Sequence) -> bytes:
        """Return a row, which is JSON."""

    @abstractmethod
    def end(self, last_seq: Sequence, pending: int) -> bytes:
        """Return what stands behind the last row."""


class Page(Form):
    """One JSON object: of the feeds `normal` and `longpoll`."""

    begin = b'{"results":[\n'

    def __init__(self) -> None:
        self._between = b""

    def row(self, row: bytes, seq: Sequence) -> bytes:
        """Return a row, with the comma that goes before it."""
        found = self._between + row
        self._between = b",\n"
        return found

    def end(self, last_seq: Sequence, pending: int) -> bytes:
        """Return the end of the object."""
        return b'\n],\n"last_seq":"%s","pending":%d}\n' % (str(last_seq).encode(), pending)


class Lines(Form):
    """A line for each row, and one at the end: of the feed `continuous`."""

    def row(self, row: bytes, seq: Sequence) -> bytes:
        """Return the line of a row."""
        return row + b"\n"

    def end(self, last_seq: Sequence, pending: int) -> bytes:
        """Return the last line."""
        return encoded({"last_seq": str(last_seq), "pending": pending}) + b"\n"


class Events(Form):
    """Events for browsers: of the feed `eventsource`."""

    media_type = "text/event-stream"
    beat = b"event: heartbeat\ndata: \n\n"

    def row(self, row: bytes, seq: Sequence) -> bytes:
        """Return an event; its id is where a client goes on."""
        return b'data: %s\nid: "%s"\n\n' % (row, str(seq).encode())

    def end(self, last_seq: Sequence, pending: int) -> bytes:
        """Return nothing: a client takes the end of the answer for one."""
        return b""


def form_of(feed: str) -> Form:
    """Return the form of a feed."""
    return Lines() if feed == CONTINUOUS else Events() if feed == EVENTSOURCE else Page()
