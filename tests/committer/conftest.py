"""Fixtures: a place for stores on each engine, its clock, an open store."""

from store.conftest import clock as clock
from store.conftest import cluster as cluster
from store.conftest import engine as engine
from store.conftest import place as place
from store.conftest import store as store
