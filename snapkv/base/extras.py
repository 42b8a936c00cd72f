"""Optional dependencies: which extra installs what an import lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from snapkv.errors import MissingExtraError


@contextmanager
def requires_extra(name: str, purpose: str) -> Iterator[None]:
    """Name the extra that installs what the imports of the block lack.

    Blocks may be nested: the innermost one names the extra. Raises `MissingExtraError` when a
    module of another project is missing.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] in ("snapkv", "cdcmeta"):
            raise  # a bug of snapkv, which no extra fixes
        raise MissingExtraError(str(e), name, purpose, module=e.name) from e
