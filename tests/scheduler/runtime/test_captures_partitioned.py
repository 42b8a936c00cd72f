"""Captures that do not reach each other, but do reach their store, under load."""

from contextlib import ExitStack

import pytest
from etcd_server import EtcdServer
from sampling import first_of

from . import program, spaces
from .doors import Doors
from .fleet import Fleet
from .steps import PatientLoad, Steps, opened, tables

pytestmark = pytest.mark.slow

LABELS = ["c1", "c2", "c3"]
TABLES = tables(12)
MUTE_US = 3_000_000


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["doors", pytest.param("spaces", marks=pytest.mark.soak)])
def steps(request, stack, tmp_path):
    """Three captures that share all tables, and a network between them that can be cut."""
    if request.param == "spaces" and spaces.may_make():
        network = spaces.Spaces(stack, tmp_path, LABELS)
        server = spaces.EtcdAtBridge(tmp_path / "etcd")
    else:
        network, server = Doors(stack, LABELS), EtcdServer(tmp_path / "etcd")
    stack.enter_context(server)
    fleet = network.fleet = stack.enter_context(Fleet(server.url, tmp_path))
    steps = Steps(fleet, opened(stack, server.url), TABLES)
    steps.network = network
    for label in LABELS:
        hurried = {program.MUTE_US: str(MUTE_US)}
        steps.network.start(label, module="scheduler.runtime.program", **hurried)
    steps.begin(*LABELS)
    return steps


def roles(steps):
    """The capture that leads, one that does not, and the third."""
    owner = steps.until(steps.leader, "an owner")
    return owner, *(label for label in LABELS if label != owner)


def check_cut_off(steps, load, staying):
    """Assert that the captures that the owner reaches get all tables, and write them."""
    steps.until_shared(*staying)
    steps.until_written(load)
    steps.check_writers()


def check_healed(steps, load):
    """Assert that all captures get tables again."""
    steps.network.heal()
    steps.until_registered(*LABELS)
    steps.until_shared(*LABELS)
    steps.until_written(load)
    steps.check_writers()


@pytest.mark.soak  # one that hears nothing is cut off below, and an owner that reaches none
def test_a_capture_that_its_owner_does_not_reach(steps, seed):
    with PatientLoad(steps.store, TABLES, seed) as load:
        owner, cut_off, third = roles(steps)
        for other in (owner, third):
            steps.network.cut(cut_off, other)
            steps.network.cut(other, cut_off)
        check_cut_off(steps, load, {owner, third})
        check_healed(steps, load)
    steps.check_end(load)


def test_an_owner_that_reaches_no_other_capture(steps, seed):
    with PatientLoad(steps.store, TABLES, seed) as load:
        owner, *rest = roles(steps)
        for other in rest:
            steps.network.cut(owner, other)
            steps.network.cut(other, owner)
        check_cut_off(steps, load, {owner})
        assert steps.leader() == owner
        check_healed(steps, load)
    steps.check_end(load)


@pytest.mark.long
@pytest.mark.parametrize("lost", first_of(["requests", "answers"], one_in=2))
def test_messages_are_lost_in_one_direction(steps, seed, lost):
    with PatientLoad(steps.store, TABLES, seed) as load:
        owner, cut_off, third = roles(steps)
        if lost == "requests":
            steps.network.cut(owner, cut_off)
        else:
            steps.network.cut(cut_off, owner)
        check_cut_off(steps, load, {owner, third})
        check_healed(steps, load)
    steps.check_end(load)
