"""The etcd engine: shared and replicated; the contract over etcd's own v3 API.

`options` declares what a caller may set, and is imported without gRPC. `endpoint` reads the
endpoints of the URL, `security` the certificates and logins. A `ClusterClient` sends calls to an
endpoint that answers, `codec` translates, `EtcdEngine` joins them, and `EtcdWatcher` follows. Only
`grpc_client` imports grpc; the messages are our own (`etcd.proto`).
"""
