"""Metadata of change data capture, on snapkv: to come.

A *changes index* keyed by versionstamps (CouchDB's RFC 003), *generations* that map tokens to
streams (ScyllaDB), and a *changefeed scheduler* that spreads tables over processors (TiCDC). Each
is built on `snapkv` through its public names only, so each can be read as of any moment. Nothing
of it is here yet; `CHANGELOG.md` tells when it is.
"""
