"""What tests expect where the stream of a write cannot be determined, by its reason."""

import pytest

from cdcmeta.errors import GenerationUnavailableError, InvalidWriteTimeError


def is_unavailable(reason):
    return pytest.raises(GenerationUnavailableError, check=lambda e: e.reason == reason)


def is_invalid_time(reason):
    return pytest.raises(InvalidWriteTimeError, check=lambda e: e.reason == reason)
