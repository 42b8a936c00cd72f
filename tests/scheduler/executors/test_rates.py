"""What operators and balance learn of tables: how fast each is written, and which are late."""

import threading
from functools import partial

import pytest

import snapkv
from cdcmeta.scheduler.executors import changefeed_executor, pipeline
from cdcmeta.scheduler.executors.changefeed_executor import WriteTotals
from cdcmeta.scheduler.executors.contracts import CalledWriter
from cdcmeta.scheduler.runtime.reports import HALF_LIFE_S, Rates

from .driving import WAIT_S, Driven, Noting


def looked(*steps):
    """Return the rates after looks at (second, rows)."""
    rates = Rates()
    for second, rows in steps:
        rates.look({"t": WriteTotals(rows, 10 * rows)}, second)
    return rates.of_tables()


def test_a_steady_table_has_its_rate_from_the_first_look_on():
    assert looked((0.0, 0), (5.0, 50)) == {"t": (10.0, 100.0)}
    assert looked(*((5.0 * n, 50 * n) for n in range(20)))["t"] == pytest.approx((10.0, 100.0))


def test_an_old_load_counts_for_less_and_less():
    busy = [(float(n), 100 * n) for n in range(60)]
    now, rows = busy[-1]
    (rate,) = looked(*busy, (now + HALF_LIFE_S, rows)).values()
    assert 40 < rate.rows < 50.1
    assert looked(*busy, (now + 40 * HALF_LIFE_S, rows)) == {}


def test_a_table_that_was_away_begins_again():
    rates = Rates()
    for second in range(10):
        rates.look({"t": WriteTotals(100 * second, 0)}, float(second))
    rates.look({}, 10.0)
    assert rates.of_tables() == {}
    rates.look({"t": WriteTotals(1, 0)}, 11.0)
    assert rates.of_tables()["t"].rows == pytest.approx(1.0)


def test_the_fastest_come_first():
    rates = Rates()
    for n in (0, 1):
        rates.look(
            {"a": WriteTotals(n, 0), "b": WriteTotals(9 * n, 0), "c": WriteTotals(0, 0)}, float(n)
        )
    assert list(rates.of_tables()) == ["b", "a"]


def test_a_table_whose_sink_hangs_is_late_and_no_other(monkeypatch):
    clock = [100.0]
    go_on, noting = threading.Event(), Noting()
    noting.before = lambda table, checkpoint: table != "a/" or go_on.wait(WAIT_S)
    for module in (changefeed_executor, pipeline):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    with snapkv.open("memory:") as store:
        driven = Driven(store, partial(CalledWriter, noting), ["a/", "b/"])
        driven.start(store.resolved())
        store.save("a/1", b"1")
        ts = store.save("b/1", b"1")
        driven.reach(ts, ["b/"])
        clock[0] += 30
        assert driven.executor.delays(10.0) == {"a/": (30.0, "written")}
        assert driven.executor.delays(31.0) == {}
        go_on.set()
        driven.reach(ts)
        assert driven.executor.delays(0.0) == {}
        assert driven.executor.written()["a/"] == (1, 1 + len("a/1"))
        driven.close()
