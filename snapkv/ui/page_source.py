"""The source of a page: an open store, an archive, or observed keys; and its health."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from snapkv.base.waiting import monotonic
from snapkv.errors import CompactedError
from snapkv.layout import Mark, SourceId, prefix_end
from snapkv.reading.observed_prefix import Observed
from snapkv.reading.reader import Reader
from snapkv.reading.view import KeyspaceReads
from snapkv.rendering import Redaction
from snapkv.rendering.kubernetes_names import KeyNames
from snapkv.store.diagnostics import size_of, skew_s
from snapkv.store.open import Keys
from snapkv.store.recorder_watermarks import watermarks
from snapkv.store.store import SnapshotKV
from snapkv.timeline.moment import compaction_error
from snapkv.times import (
    When,
    end_of_ms,
    format_time,
    is_digits,
    names_revision,
    pack,
    physical_ms,
    revision_of,
    understood,
)

TYPED_CHARS_MAX = 80
ORDINALS_MAX = 20_000
"""The most bounds of bars that are remembered; when there are more, all are dropped."""


def typed(text: str | None, now_ms: Callable[[], int]) -> When | None:
    """Return the time that a text of a URL names, None for now.

    What a person types (`14:05`, `yesterday`, `1h ago`) is understood as on a command line, but
    a time without an offset is in UTC. `-5m` and revisions stay texts. Raises `InvalidTimeError`.
    """
    text = (text or "").strip()
    if text in ("", "now"):
        return None
    if names_revision(text) or text[0] in "+-":
        return text
    if is_digits(text):
        return understood(text, now_ms(), UTC).state
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return understood(text[:TYPED_CHARS_MAX], now_ms(), UTC).state
    return found if found.tzinfo else found.replace(tzinfo=UTC)


class Budget:
    """A bound in seconds for the work of one view, which then says how far it went."""

    def __init__(self, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    @property
    def over(self) -> bool:
        """Whether the time is used up."""
        return self._clock() >= self._end


@dataclass
class Source:
    """An open store or observed prefix, with what all views need of it.

    `words` are the options that name it on the command line. `writable` says whether pages may
    restore. The values of keys below the prefixes of `redaction` are never shown.
    """

    keys: Keys
    words: Sequence[str] = ()
    writable: bool = False
    redaction: Redaction = field(default_factory=Redaction)
    _known: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)
    _known_epoch: int = field(default=-1, repr=False)

    @property
    def reads(self) -> KeyspaceReads[str]:
        """The reads that stores and observed prefixes share."""
        return self.keys

    @property
    def reader(self) -> Reader:
        """The reader below."""
        return self.keys.reader

    @property
    def store(self) -> SnapshotKV | None:
        """The store, None for an observed prefix."""
        return self.keys if isinstance(self.keys, SnapshotKV) else None

    @property
    def record(self) -> SourceId | None:
        """What a recorder writes into the store; None for a store of its own, and observed keys."""
        return None if self.store is None else self.store._core.recorded_now()

    @property
    def observed(self) -> bool:
        """Whether other programs write the keys, so that only ticks stamp them."""
        return isinstance(self.keys, Observed)

    @property
    def frozen(self) -> bool:
        """Whether it is an archive alone: then its newest commit takes the place of now."""
        return self.reader.url.startswith("archive:")

    @property
    def root(self) -> str:
        """The prefix that all keys have: "" for a store."""
        return str(self._space.default_prefix)

    @property
    def name(self) -> str:
        """A short name for people: the store's, or the observed prefixes."""
        if isinstance(self.keys, Observed) and self._space.selection is not None:
            return str(self._space.selection)
        return self.root or (self.reader.layout.name if not self.observed else "all keys")

    @property
    def _space(self):  # type: ignore[no-untyped-def]  # of text keys
        return self.keys._space

    def hides(self, key: str) -> bool:
        """Return whether the values of a key are redacted."""
        return self.redaction.covers(key)

    # --- keys ---

    @cached_property
    def names(self) -> KeyNames:
        """The names of keys that an API server wrote. One round trip, once."""
        return KeyNames.of(self.reader.foreign_prefix(self._space))

    def encode(self, key: str) -> bytes:
        """Return a key as it is stored."""
        return bytes(self._space.encode(key))

    def decode(self, stored: bytes) -> str:
        """Return a stored key as people read it."""
        return str(self._space.decode(stored))

    @property
    def base(self) -> bytes:
        """The stored bytes before every key: of the store, or of the observed prefix."""
        return bytes(self._space.prefix)

    def span(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the stored range [start, end) of all keys with a prefix."""
        low, high = self._space.range_of(prefix or self._space.default_prefix)
        return low, high

    def own_span(self) -> tuple[bytes, bytes]:
        """Return the stored range of the keys and, in a store, of its spaces."""
        if self.observed:
            return self.span("")
        layout = self.reader.layout
        return layout.data.prefix, prefix_end(layout.spaces)

    def span_of_commits(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the stored range of which a list of commits shows changes."""
        return self.span(prefix) if prefix else self.own_span()

    # --- times ---

    def now_ms(self) -> int:
        """Return the time of now; for an archive alone, the time of its newest commit."""
        newest = self.reader.timeline.head().timestamp
        if self.frozen:
            return physical_ms(newest)
        return max(self.reader.clock.now_ms(), physical_ms(newest))

    def when(self, text: str | None) -> When | None:
        """Return the moment that a text of a URL names, None for now; see `typed`.

        A revision of the source of a record becomes the revision of its commit.
        """
        found = typed(text, self.now_ms)
        if (revision := self.reader.revision_of(found)) is not None:
            return f"rev:{revision}"
        if isinstance(found, str) and found[0] in "+-":
            return int(self.reader.resolve(found))
        return found

    def timestamp(self, when: When | None) -> int:
        """Return the timestamp of a moment; the timestamp of now ends its millisecond."""
        return end_of_ms(self.now_ms()) if when is None else self.reader.resolve(when)

    def mark(self, when: When | None) -> Mark:
        """Return the newest mark at or before a moment; a revision of observed keys is exact."""
        policy = self.reader.policy
        if when is None:
            return policy.now().mark
        if (revision := revision_of(when)) is not None:
            return policy.at_revision(revision).mark
        return policy.at(self.reader.resolve(when)).mark

    def mark_at_ms(self, ms: int) -> Mark:
        """Return the newest mark before the end of a millisecond, or the oldest one left."""
        line = self.reader.timeline
        oldest, timestamp = line.oldest(), max(0, pack(ms) - 1)
        return oldest if timestamp <= oldest.timestamp else line.at(timestamp).mark

    def earliest(self) -> int | None:
        """Return the smallest timestamp that can be answered, None if none can."""
        found = self.reader.policy.earliest()
        return None if found is None else int(found)

    # --- counting commits ---

    def ordinals(self, timestamps: Sequence[int]) -> list[tuple[int, int]]:
        """Return how many commits and revisions were made up to each of some times.

        A lookup of each time that is not remembered, which costs as `revisions_at`, and one round
        trip for each 128 of them. Times before the oldest commit that is left count as that.
        """
        line = self.reader.timeline
        epoch = line.tracker.continuity.epoch
        if epoch != self._known_epoch or len(self._known) > ORDINALS_MAX:
            self._known, self._known_epoch = {}, epoch
        oldest, head = line.oldest(), line.head()
        found = {}
        for timestamp in timestamps:
            if timestamp <= oldest.timestamp:
                found[timestamp] = oldest.ordinal, oldest.revision
            elif timestamp >= head.timestamp:
                found[timestamp] = head.ordinal, head.revision
            elif timestamp in self._known:
                found[timestamp] = self._known[timestamp]
        unknown = sorted(set(timestamps) - found.keys())
        if unknown:
            counted = self._looked_up(unknown)
            self._known |= counted  # final: the head is newer
            found |= counted
        return [found[timestamp] for timestamp in timestamps]

    def _looked_up(self, timestamps: list[int]) -> dict[int, tuple[int, int]]:
        line = self.reader.timeline
        revisions = line.revisions_of(timestamps)
        lowest = max(line.tracker.engine.compacted_revision(), 1)
        try:
            stamps = line.stamps([max(revision, lowest) for revision in revisions])
        except CompactedError as e:
            raise compaction_error(line, timestamps[0]) from e
        counts = [(found[0].ordinal, found[0].revision) if found else (1, 0) for found in stamps]
        return dict(zip(timestamps, counts, strict=True))

    # --- the command line ---

    def command(self, *words: str) -> str:
        """Return the line of the command that shows the same in a terminal."""
        return shlex.join(["snapkv", *words, *self.words])


# --- health: how fresh a source is, how far back it goes, and how large it is ---


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """Facts that cost a few round trips; times are timestamps, lags milliseconds.

    `skew_ms` is by how much this machine's clock is ahead of the server's (None: embedded),
    `archive_lag_ms` how far the recording that is furthest behind is behind the newest commit.
    """

    newest: int
    revision: int
    commits: int
    resolved: int
    lag_ms: int
    skew_ms: int | None
    earliest: int | None
    recordings: tuple[tuple[str, int], ...]
    archive_lag_ms: int | None
    size_bytes: int | None
    engine: dict[str, int | str]
    writable: bool

    def as_json(self) -> dict[str, object]:
        """Return them for JSON."""
        first = {"newest": "", "newest_time": format_time(self.newest)}
        times = {"newest": self.newest, "resolved": self.resolved, "earliest": self.earliest}
        texts = {name: None if at is None else str(at) for name, at in times.items()}
        recordings = {into: format_time(timestamp) for into, timestamp in self.recordings}
        return first | asdict(self) | texts | {"recordings": recordings}


def health(source: Source) -> SourceHealth:
    """Return the facts of now; a few round trips."""
    reader = source.reader
    head = reader.timeline.head()
    engine = reader.engine.info()
    ahead_s = skew_s(reader, reader.clock.now_ms())
    copied = [] if source.observed else watermarks(reader.engine, reader.layout)
    newest_ms = physical_ms(head.timestamp)
    behind = [newest_ms - physical_ms(each.timestamp) for each in copied]
    return SourceHealth(
        head.timestamp,
        head.revision,
        head.ordinal - 1,
        head.timestamp,
        max(0, reader.clock.now_ms() - newest_ms),
        None if ahead_s is None else round(ahead_s * 1_000),
        source.earliest(),
        tuple((each.into, each.timestamp) for each in copied),
        max(behind, default=None) if behind else None,
        size_of(engine),
        engine,
        source.writable,
    )
