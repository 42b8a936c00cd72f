"""Real etcd servers for tests, and a proxy that hurts their connections.

An `EtcdServer` is one node in a process of its own, an `EtcdCluster` three of them, an `EtcdPool`
a stock of new ones. A `Gateway` speaks to a node past all of snapkv, over plain HTTP. An
`EtcdProxy` stands between a client and a node; a test arms *faults* on it (`cut_before`,
`cut_after`, `delay_answer`, `hold`, `record`) and waits until they were met.

No server outlives the process of the tests, however that ends. Every wait has a bound.
"""

from etcd_server.certificates import Certificates, make_certificates
from etcd_server.cluster import EtcdCluster
from etcd_server.gateway import Gateway, GatewayError, enable_auth, prefix_end
from etcd_server.node import EtcdServer
from etcd_server.pool import EtcdPool, close_shared_pool, shared_pool
from etcd_server.processes import WAIT_S, eventually
from etcd_server.programs import KILLS_ETCD_MIN, etcd_binary, etcd_version
from etcd_server.proxy import EtcdProxy

__all__ = [
    "KILLS_ETCD_MIN",
    "WAIT_S",
    "Certificates",
    "EtcdCluster",
    "EtcdPool",
    "EtcdProxy",
    "EtcdServer",
    "Gateway",
    "GatewayError",
    "close_shared_pool",
    "enable_auth",
    "etcd_binary",
    "etcd_version",
    "eventually",
    "make_certificates",
    "prefix_end",
    "shared_pool",
]
