"""Fixtures: a source store on each engine, and the kinds of targets."""

from store.conftest import clock as clock
from store.conftest import engine as engine
from store.conftest import place as place
from store.conftest import store as store
