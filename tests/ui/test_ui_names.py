"""The page shows and takes the names of Kubernetes' objects of an observed prefix."""

import pytest
from store.engines import write_raw

import snapkv
from snapkv.engine.contract import Put

from .served import Served


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_the_page_of_an_observed_cluster_has_names(place, clock):
    with place.open(clock=clock) as ticker:
        write_raw(ticker.reader.engine, Put(b"/registry/minions/n1", b"1"))
        ticker.tick()
        clock.advance(1_000)
        write_raw(ticker.reader.engine, Put(b"/registry/minions/n1", b"2"))
        ticker.tick()
        observe = {"prefix": "/registry/", "clock": clock, **place.kind.options}
        with snapkv.observe(place.url, **observe) as observed, Served(observed) as served:
            commits = served.page("/").text
            assert "Change nodes/n1" in commits
            assert served.json("/commits.json")["steps"][0]["names"][0][1] == "/registry/minions/n1"
            key = served.page("/key?key=nodes/n1").text
            assert key.startswith("nodes/n1 · ")
            found = served.json("/key.json?key=nodes/n1")
            assert found["key"] == "/registry/minions/n1"
            assert len(found["versions"]) == 2
            assert len(served.json("/commits.json?prefix=nodes/")["steps"]) == 2
            assert served.json("/commits.json?prefix=services/")["steps"] == []


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_store_of_its_own_has_keys(place, clock):
    with place.open(clock=clock) as store:
        store.save("/registry/minions/n1", b"1")
        with Served(store) as served:
            assert "Add /registry/minions/n1" in served.page("/").text
            served.page("/key?key=nodes/n1", 404)
