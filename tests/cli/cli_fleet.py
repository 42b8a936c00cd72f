"""A fleet of stores for the command line, whose commits have times that tests choose."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cli_runner import Cli

import snapkv
from snapkv.times import PHYSICAL_MS_MAX

BEGAN_MS = 1_700_000_000_000
"""Second 0 of the tests: 2023-11-14T22:13:20Z."""


def at(seconds: float) -> str:
    """Return the text of a time, `seconds` after the tests' second 0."""
    return snapkv.format_time(snapkv.pack(BEGAN_MS + int(seconds * 1_000)))


@dataclass
class Sites:
    """Members on lmdb, in folders of their names, and the file that lists them."""

    cli: Cli
    described: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.cli.place / "fleet.toml"

    def describe(self, **members: str) -> None:
        """Write the file; a member is a URL, or the inside of an inline table."""
        self.described |= members
        lines = (
            f"{name.replace('_', '-')} = " + (f"{{ {each} }}" if "=" in each else f'"{each}"')
            for name, each in self.described.items()
        )
        self.file.write_text("[members]\n" + "\n".join(lines) + "\n")
        self.cli.patch.setenv("SNAPKV_FLEET", str(self.file))

    @contextmanager
    def store(
        self, site: str, seconds: float, name: str = "default"
    ) -> Iterator[snapkv.SnapshotKV]:
        """Open the store of a site at a time of the tests."""
        with snapkv.open(
            f"lmdb:{self.cli.place / site}",
            name=name,
            clock=snapkv.ManualClock(BEGAN_MS + int(seconds * 1_000)),
            writer=f"ann@{site}",
            max_clock_skew=PHYSICAL_MS_MAX // 1_000,
        ) as store:
            yield store

    def put(self, site: str, seconds: float, note: str | None = None, **values: str) -> int:
        """Commit values; `__` in a name is the `/` of a key. Return the timestamp."""
        puts = {key.replace("__", "/"): value.encode() for key, value in values.items()}
        with self.store(site, seconds) as store:
            return store.commit(puts=puts, note=note).ts

    def remove(self, site: str, seconds: float, key: str) -> int:
        with self.store(site, seconds) as store:
            return store.commit(deletes=[key]).ts

    def tick(self, seconds: float, *sites: str) -> None:
        """Tick sites (without any, all) one by one."""
        for site in sites or self.described:
            with self.store(site.replace("_", "-"), seconds) as store:
                store.tick()
