"""Fixtures: a store on each engine, as the store's own tests have it; the browser of the page's."""

from store.conftest import clock as clock
from store.conftest import place as place
from store.conftest import store as store
from ui.conftest import axe as axe
from ui.conftest import browser as browser
