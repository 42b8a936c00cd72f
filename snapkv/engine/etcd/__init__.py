"""The etcd engine: shared and replicated; the contract over etcd's own v3 API.

`Address` is where a cluster listens, `Security` and `Login` how to be let in, `Connection` sends
calls to whichever endpoint answers, `wire` translates, `EtcdEngine` joins them, `EtcdWatcher`
follows. Only `rpc` imports grpc; the messages are our own (`etcd.proto`).
"""

from snapkv.engine.etcd.engine import EtcdEngine as EtcdEngine
from snapkv.engine.etcd.engine import open_etcd as open_etcd
