"""Facts 3 and 5: how much a scheduler does at once, and how often, unless it is told otherwise."""

from dataclasses import FrozenInstanceError, asdict, fields

import pytest

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import Limits

SECOND = 1_000_000
NAMES = [field.name for field in fields(Limits)]


AS_IN_TICDC = {
    "heartbeat_every_us": 100_000,  # two ticks of 50 ms
    "moves_in_flight": 10,  # max-task-concurrency
    "balance_every_us": 60 * SECOND,  # check-balance-interval
    "mute_us": 15 * SECOND,  # a session's 10 s, and 5 s until its removal is seen
}


@pytest.mark.parametrize(("name", "value"), AS_IN_TICDC.items())
def test_what_is_as_in_ticdc(name, value):
    assert getattr(Limits(), name) == value


def test_what_is_not_as_in_ticdc():
    """Each of them on purpose.

    TiCDC places 50 tables in a tick (add-table-batch-size), however many are under way: 100,000
    tables take 2,000 ticks. Here a tick places 1,000, and what is under way has bounds of its
    own. The others have nothing there that they could be like.
    """
    assert {name: each for name, each in asdict(Limits()).items() if name not in AS_IN_TICDC} == {
        "add_batch": 1_000,
        "adds_in_flight": 10_000,
        "adds_per_capture": 2_000,
        "retry_first_us": 1 * SECOND,
        "retry_max_us": 60 * SECOND,
        "prepare_us": 600 * SECOND,
        "start_us": 600 * SECOND,
        "stop_us": 600 * SECOND,
        "repeat_max_us": 1 * SECOND,
        "full_every_us": 10 * SECOND,
        "stuck_us": 60 * SECOND,
    }


@pytest.mark.parametrize("bad", [0, -1, 1.5, 1.0, True, None, "1"])
@pytest.mark.parametrize("name", NAMES)
def test_limits_are_positive_integers(name, bad):
    with pytest.raises(InvalidArgumentError, match=name):
        Limits(**{name: bad})


@pytest.mark.parametrize("name", NAMES)
def test_each_limit_is_set_alone(name):
    for value in (1, 7 * SECOND):
        assert asdict(Limits(**{name: value})) == asdict(Limits()) | {name: value}


def test_limits_do_not_change():
    limits = Limits()
    with pytest.raises(FrozenInstanceError):
        limits.add_batch = 0
    assert limits == Limits()
