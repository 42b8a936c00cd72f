"""A proxy in front of a new etcd server."""

from collections.abc import Iterator

import pytest
from etcd_server import EtcdProxy, EtcdServer


@pytest.fixture
def proxy(etcd: EtcdServer) -> Iterator[EtcdProxy]:
    with EtcdProxy(etcd) as proxy:
        yield proxy
