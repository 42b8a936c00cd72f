"""Fixtures of the engines' own tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_server import EtcdProxy, EtcdServer

from snapkv.engine.lmdb import LmdbEngine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., LmdbEngine]]:
    """Open engines on `path`; they are checked and closed at the end."""
    engines: list[LmdbEngine] = []

    def opened(**options: Any) -> LmdbEngine:
        engines.append(LmdbEngine(path, **options))
        return engines[-1]

    yield opened
    for engine in engines:
        if not engine.closed:
            assert engine.check() == []
        engine.close()


@pytest.fixture
def proxy(etcd: EtcdServer) -> Iterator[EtcdProxy]:
    """A proxy in front of a new etcd server."""
    with EtcdProxy(etcd) as proxy:
        yield proxy
