"""Shared by all tests: how random tests are run, how long they may take, and servers for them."""

import os
from collections.abc import Iterator

import pytest
from etcd_server import (
    KILLS_ETCD_MIN,
    EtcdPool,
    EtcdServer,
    close_shared_pool,
    etcd_version,
    shared_pool,
)
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "soak",
    parent=settings.get_profile("default"),
    max_examples=2_000,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

DESELECTED = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    oldest = ".".join(map(str, KILLS_ETCD_MIN))
    config.addinivalue_line("markers", f"kills_etcd: needs etcd {oldest} or newer")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests out that the etcd at hand is too old for; the summary says how many."""
    killers = [item for item in items if item.get_closest_marker("kills_etcd")]
    if killers and etcd_version() < KILLS_ETCD_MIN:
        items[:] = [item for item in items if item not in killers]
        config.hook.pytest_deselected(items=killers)
        config.stash[DESELECTED] = len(killers)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if number := config.stash.get(DESELECTED, 0):
        ours, oldest = (".".join(map(str, v)) for v in (etcd_version(), KILLS_ETCD_MIN))
        terminalreporter.write_line(
            f"{number} tests that kill etcd servers deselected: etcd {ours} is older than {oldest}"
        )


def pytest_sessionfinish() -> None:
    close_shared_pool()


@pytest.fixture(scope="session")
def etcd_pool() -> EtcdPool:
    """New etcd servers, made ahead."""
    return shared_pool()


@pytest.fixture
def etcd(etcd_pool: EtcdPool) -> Iterator[EtcdServer]:
    """One new etcd server at revision 1."""
    with etcd_pool.taken() as server:
        yield server
