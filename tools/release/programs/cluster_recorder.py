"""A recorder of a cluster reads a kubeconfig, and says that the API server does not answer."""

import json
import os
import tempfile

import snapkv
from snapkv.errors import EngineUnavailableError

with tempfile.NamedTemporaryFile("w", suffix=".json") as kubeconfig:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "user", "user": {"token": "secret"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "user"}}],
    }
    json.dump(config, kubeconfig)
    kubeconfig.flush()
    os.environ["KUBECONFIG"] = kubeconfig.name
    try:
        snapkv.record("kubernetes:", into="memory:record").catch_up()
    except EngineUnavailableError:
        pass
    else:
        raise SystemExit("a recorder of a server that does not listen has recorded")
