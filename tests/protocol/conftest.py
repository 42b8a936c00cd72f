"""A network for each test of the commit protocol."""

from collections.abc import Iterator

import pytest
from protocol_line import Line
from protocol_remote import (
    Network,
    VirtualTime,
    patched_time,
    remote_scheme,
)


@pytest.fixture
def network() -> Iterator[Network]:
    with remote_scheme():
        yield Network()


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    virtual = VirtualTime()
    with patched_time(virtual):
        yield virtual


@pytest.fixture
def line(network: Network) -> Iterator[Line]:
    line = Line(network)
    yield line
    line.gate.open()
