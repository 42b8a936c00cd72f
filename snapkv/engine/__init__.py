"""Engines: where the bytes live. `contract` defines them; memory, lmdb and etcd implement it."""
