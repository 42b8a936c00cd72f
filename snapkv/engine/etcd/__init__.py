"""The etcd engine: shared and replicated; the contract over etcd's own v3 API.

`endpoint` reads the endpoints of the URL, `security` the certificates and logins. A
`ClusterClient` sends calls to an endpoint that answers, `codec` translates, `EtcdEngine` joins
them, and `EtcdWatcher` follows. Only `grpc_client` imports grpc; the messages are our own
(`etcd.proto`).
"""

from snapkv.engine.etcd.engine import EtcdEngine as EtcdEngine
from snapkv.engine.etcd.engine import open_etcd as open_etcd
