"""A member of a fleet: its name, where it is, since when and until when it belongs to the fleet."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from snapkv.base.arguments import check_text, wrong_type
from snapkv.errors import NAMED_MAX, InvalidOptionError, InvalidTypeError, SnapKVError
from snapkv.layout import Layout, RawKeyspace, raw_key
from snapkv.reading.observed_prefix import Observed
from snapkv.store.location import DEFAULT_NAME, Location, check_engine
from snapkv.store.store import SnapshotKV
from snapkv.times import TIMESTAMP_MAX, When, dated, is_likely, is_number, pack, resolve, unlikely

OBJECT_STORES = ("s3://", "gs://", "az://")
T = TypeVar("T")
_NAME = re.compile(r"[^\s*?\[\],]+")
NAME_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Member:
    """One member as it was described; nothing is opened yet.

    `url` is the URL of a store's engine, or `archive:URL`. With a `prefix`, the member are the keys
    that other programs write below it, at the ticks of the store `store_name`. It belongs to the
    fleet at the times from `joined` on, up to and including `left`. `opened` is a store that the
    caller has open, and closes.
    """

    name: str
    url: str = ""
    store_name: str = DEFAULT_NAME
    prefix: str | None = None
    archive: str | None = None
    storage: Mapping[str, Any] | None = None
    joined: int = 0
    left: int = TIMESTAMP_MAX
    options: Mapping[str, Any] = field(default_factory=dict)
    opened: SnapshotKV | Observed[str] | None = None

    @property
    def is_archive(self) -> bool:
        """Whether it is an archive alone, without an engine."""
        return self.url.startswith("archive:")

    def has(self, timestamp: int) -> bool:
        """Return whether it belongs to the fleet at a time."""
        return self.joined <= timestamp <= self.left

    def overlaps(self, other: Member) -> bool:
        """Return whether there is a time at which both belong to the fleet."""
        return max(self.joined, other.joined) <= min(self.left, other.left)

    def may_have(self, prefix: str | None) -> bool:
        """Return whether it can have keys with a prefix (None: any)."""
        own = self.prefix
        return not own or prefix is None or prefix.startswith(own) or own.startswith(prefix)

    def may_have_key(self, key: object) -> bool:
        """Return whether it can have a key; True for what is not a key, which reads reject."""
        return not self.prefix or not isinstance(key, str) or not key or key.startswith(self.prefix)

    def longer(self, prefix: str | None) -> str | None:
        """Return what selects its keys with a prefix that it may have; None for all of its keys.

        >>> Member("eu", prefix="/registry/").longer("/reg"), Member("us").longer("/reg")
        (None, '/reg')
        """
        return None if prefix is None or (self.prefix or "").startswith(prefix) else prefix


def member_of(name: str, given: object, now_ms: int) -> Member:
    """Return a member from a URL, an open store, or a mapping as in a fleet file.

    Raises `InvalidOptionError`, `InvalidTypeError`, `InvalidTimeError`, each with `member`.
    """
    try:
        check_name(name)
        if isinstance(given, SnapshotKV | Observed):
            return _of_open_store(name, given)
        if isinstance(given, str):
            given = {"url": given}
        if not isinstance(given, Mapping):
            raise wrong_type("a member", "a URL, a mapping or an open store", given)
        return _described(name, dict(given), now_ms)
    except SnapKVError as e:
        raise named(e, str(name)) from e.__cause__


def check_name(name: object) -> None:
    """Raise a typed error unless a text can name a member: `,` and `*?[]` are for patterns."""
    check_text("the name of a member", name)
    assert isinstance(name, str)
    printable = len(name) <= NAME_CHARACTERS_MAX and name.isprintable()
    if not (_NAME.fullmatch(name) and printable):
        raise InvalidOptionError(
            f"a member cannot be named {name[:40]!r}: use letters, digits, '-', '.' and '/', "
            f"no spaces, ',' or '*?[]', {NAME_CHARACTERS_MAX} characters at most"
        )


def _of_open_store(name: str, store: SnapshotKV | Observed[str]) -> Member:
    core = store.reader
    prefix = None
    if isinstance(store, Observed):
        if not store.keyspace.text:
            raise InvalidTypeError("a fleet has text keys: observe the prefix as a str, not bytes")
        if isinstance(store.keyspace, RawKeyspace) and store.keyspace.selection is not None:
            raise InvalidOptionError(
                f"a member observes one prefix, not {store.keyspace.selection}: make one member of "
                "each prefix"
            )
        prefix = store.keyspace.default_prefix
    else:
        store = store.raw
    return Member(name, core.url, core.layout.name, prefix, opened=store)


def _described(name: str, given: dict[str, Any], now_ms: int) -> Member:
    url, archive = given.pop("url", None), given.pop("archive", None)
    if url is None:
        raise InvalidOptionError("it needs a url, such as etcd://HOST:2379 or s3://BUCKET/PATH")
    check_text("url", url)
    url = archive_url(url) if url.startswith(OBJECT_STORES) else url
    prefix, storage = given.pop("prefix", None), given.pop("storage", None)
    store_name = given.pop("name", DEFAULT_NAME)
    Layout(store_name)
    joined, left = (_time(given.pop(end, None), end, now_ms) for end in ("joined", "left"))
    if joined is not None and left is not None and left < joined:
        raise InvalidOptionError(
            f"it left ({dated(left)}) before it joined ({dated(joined)}): exchange the two"
        )
    if storage is not None and not isinstance(storage, Mapping):
        raise wrong_type("storage", "a mapping of options", storage)
    if archive is not None:
        check_text("archive", archive)
    is_archive = url.startswith("archive:")
    if prefix is not None:
        raw_key(prefix, "prefix", text=True)
        if is_archive or archive is not None:
            raise InvalidOptionError(
                "an archive of observed keys has times of its own, so it is a member alone: leave "
                f"{'prefix' if is_archive else 'archive'} out"
            )
    if is_archive and archive is not None:
        raise InvalidOptionError("its url is an archive already: leave archive out")
    if storage is not None and not (is_archive or archive is not None):
        raise InvalidOptionError("storage is for an archive: give archive, too")
    check_engine(url, given)
    return Member(
        name,
        url,
        store_name,
        prefix,
        archive,
        storage,
        0 if joined is None else joined,
        TIMESTAMP_MAX if left is None else left,
        given,
    )


def location_of(member: Member, *, archive: bool = True) -> Location:
    """Return where a member's keys are: with the archive beside its engine, or without."""
    beside = member.archive if archive else None
    return Location(
        member.url,
        member.store_name,
        member.prefix,
        None if beside is None else beside.removeprefix("archive:"),
        _pairs(member.storage if beside is not None or member.is_archive else None),
        _pairs(member.options),
    )


def archive_of(member: Member) -> Location:
    """Return where the archive is that a member has beside its engine."""
    assert member.archive is not None
    return Location(archive_url(member.archive), storage=_pairs(member.storage))


def _pairs(options: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((options or {}).items()))


def archive_url(place: str) -> str:
    """Return the URL of an archive as an engine's."""
    return place if place.startswith("archive:") else f"archive:{place}"


def _time(given: When | None, what: str, now_ms: int) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool):
        raise wrong_type(what, "a time", given)
    timestamp, now = resolve(given, now_ms), pack(now_ms)
    if is_number(given) and not is_likely(timestamp, now, now):
        raise unlikely(timestamp)
    return timestamp


def named(error: SnapKVError, member: str) -> SnapKVError:
    """Return an error that names the member of the fleet that it is about."""
    if error.member is None:
        error.member = member
        error.add_note(f"This is about the member {member!r} of the fleet.")
    return error


class naming:
    """A block whose errors name the member of the fleet that they are about."""

    __slots__ = ("_member",)

    def __init__(self, member: str) -> None:
        self._member = member

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SnapKVError):
            named(error, self._member)


def steps_named(member: str, steps: Iterator[T]) -> Iterator[T]:
    """Yield steps; an error that ends them names the member of the fleet."""
    with naming(member):
        yield from steps


def one_of(members: Collection[str], wanted: str) -> str:
    """Return a name of one member, no pattern. Raises `InvalidOptionError`, `InvalidTypeError`."""
    check_text("the name of a member", wanted)
    if wanted not in members:
        raise _unknown(list(members), wanted)
    return wanted


def chosen(members: Sequence[str], wanted: str | Iterable[str] | None) -> list[str]:
    """Return the names that patterns choose, in order: `eu-*,us-1`, or a list; None for all.

    >>> chosen(["eu-1", "eu-2", "us-1"], "eu-*,us-1")
    ['eu-1', 'eu-2', 'us-1']

    Raises `InvalidOptionError` for a pattern that chooses none, `InvalidTypeError`.
    """
    if wanted is None:
        return list(members)
    patterns = wanted.split(",") if isinstance(wanted, str) else wanted
    if not isinstance(patterns, Iterable):
        raise wrong_type("members", "a str or a list of str", wanted)
    known, found = frozenset(members), set[str]()
    for pattern in patterns:
        check_text("a pattern of members", pattern)
        text = pattern.strip()
        if text in known:  # no name has the characters of a pattern
            found.add(text)
            continue
        matching = [name for name in members if fnmatchcase(name, text)]
        if not matching:
            raise _unknown(members, pattern)
        found.update(matching)
    if not found:
        raise InvalidOptionError("members is empty: name some, or leave it out for all")
    return [name for name in members if name in found]


def _unknown(members: Sequence[str], wanted: str) -> InvalidOptionError:
    known = ", ".join(members[:NAMED_MAX]) + (", ..." if len(members) > NAMED_MAX else "")
    return InvalidOptionError(
        f"no member is named {wanted!r}; the fleet's {len(members):,} members are {known}"
    )
