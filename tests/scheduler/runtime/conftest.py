"""Shared by all tests of captures."""

import random

import pytest


@pytest.fixture
def seed():
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    return seed
