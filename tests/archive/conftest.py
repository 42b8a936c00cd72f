"""Fixtures: a store on each engine with commits, and folders for archives."""

from store.conftest import clock as clock
from store.conftest import place as place
from store.conftest import store as store
