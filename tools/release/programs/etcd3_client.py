"""The package `etcd3` can be imported, and snapkv takes one of its clients."""

import etcd3

import snapkv
from snapkv.errors import EngineUnavailableError

client = etcd3.client(port=1)  # no server listens there
try:
    snapkv.from_etcd3(client)
except EngineUnavailableError:
    pass
else:
    raise SystemExit("a client without a server opened a store")
