"""Posts that are closed at the end; then no thread of theirs remains."""

import threading

import pytest
from etcd_server import eventually

from cdcmeta.scheduler.transport.grpc_post import GrpcPost

from .posting import ForeignServer


@pytest.fixture
def opened():
    """What is closed at the end of a test."""
    before = set(threading.enumerate())
    found = []
    yield found
    for each in reversed(found):
        each.close()
    eventually(lambda: not set(threading.enumerate()) - before, "the end of all threads", wait_s=10)


@pytest.fixture
def post(opened):
    """Make posts."""

    def make(*args, **options):
        opened.append(GrpcPost(*args, **options))
        return opened[-1]

    return make


@pytest.fixture
def foreign(opened):
    """A server that is not ours, and answers only when a test lets it."""
    opened.append(ForeignServer())
    return opened[-1]
