"""Of redacted keys, a record has sizes and digests."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from store.engines import write_raw

import snapkv
from snapkv.engine.contract import Delete, Put
from snapkv.errors import InvalidOptionError, InvalidTypeError

from .targets import TARGETS, opened, target_url

PLAIN = b"k8s\0\n\x0c\n\x02v1\x12\x06Secret\x12\x05hello"
R = b"/registry/secrets/"
DB = "/registry/secrets/db"


def recorder(place: Any, into: str, clock: Any, **options: Any) -> Any:
    options.setdefault("observe", "/registry/")
    return snapkv.record(place.url, into=into, clock=clock, options=place.kind.options, **options)


@pytest.fixture
def redaction(tmp_path: Path) -> dict[str, Any]:
    return {"redact": ["/registry/secrets/"], "redact_key": str(tmp_path / "key")}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_record_shows_that_a_secret_changed_and_not_what_it_is(
    place: Any, engine: Any, clock: Any, tmp_path: Path, kind: str, redaction: dict[str, Any]
) -> None:
    into = target_url(kind, tmp_path / "r")
    write_raw(engine, Put(R + b"db", b"hunter2"), Put(b"/registry/pods/a", b"plain"))
    recorder(place, into, clock, **redaction).catch_up()
    for value in (b"hunter3", b"hunter2"):
        clock.advance(1_000)
        write_raw(engine, Put(R + b"db", value))
    recorder(place, into, clock, **redaction).catch_up()
    clock.advance(1_000)
    write_raw(engine, Delete(R + b"db"))
    recorder(place, into, clock, **redaction).catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        assert recorded.load("/registry/pods/a") == b"plain"
        *values, removed = [version.value for version in recorded.history(DB)]
    assert removed is None
    first, second, third = map(json.loads, values)
    assert first == third != second
    assert first["bytes"] == second["bytes"] == 7
    if kind == "lmdb":
        stored = (tmp_path / "r" / "data.mdb").read_bytes()
        assert b"plain" in stored
        assert b"hunter" not in stored


def test_the_key_of_digests_is_made_once_for_its_owner_alone(
    place: Any, engine: Any, clock: Any, tmp_path: Path, redaction: dict[str, Any]
) -> None:
    write_raw(engine, Put(R + b"db", b"hunter2"))
    recorder(place, f"lmdb:{tmp_path / 'r'}", clock, **redaction).catch_up()
    key = tmp_path / "key"
    made = key.read_bytes()
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
    recorder(place, f"lmdb:{tmp_path / 'again'}", clock, **redaction).catch_up()
    assert key.read_bytes() == made
    with snapkv.open(f"lmdb:{tmp_path / 'r'}") as a, snapkv.open(f"lmdb:{tmp_path / 'again'}") as b:
        assert a.load(DB) == b.load(DB)
    other = redaction | {"redact_key": str(tmp_path / "other")}
    recorder(place, f"lmdb:{tmp_path / 'third'}", clock, **other).catch_up()
    with snapkv.open(f"lmdb:{tmp_path / 'r'}") as a, snapkv.open(f"lmdb:{tmp_path / 'third'}") as b:
        assert a.load(DB) != b.load(DB)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("then", ["nothing", "another key"])
def test_another_key_does_not_look_like_a_restored_source(
    place: Any,
    engine: Any,
    clock: Any,
    tmp_path: Path,
    kind: str,
    then: str,
    redaction: dict[str, Any],
) -> None:
    into = target_url(kind, tmp_path / "r")
    recorder(place, into, clock, **redaction).catch_up()
    write_raw(engine, Put(R + b"db", b"hunter2"))
    recorder(place, into, clock, **redaction).catch_up()
    later = {} if then == "nothing" else redaction | {"redact_key": str(tmp_path / "other")}
    write_raw(engine, Put(R + b"more", b"1"))
    recorder(place, into, clock, **later).catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        assert set(recorded.at().keys()) == {DB, "/registry/secrets/more"}


@pytest.mark.parametrize("kind", TARGETS)
def test_redaction_that_begins_or_ends_does_not_look_like_a_restored_source(
    place: Any, engine: Any, clock: Any, tmp_path: Path, kind: str, redaction: dict[str, Any]
) -> None:
    """Nothing has changed since the first state, so that both states are compared."""
    into = target_url(kind, tmp_path / "r")
    write_raw(engine, Put(R + b"db", b"hunter2"), Put(R + b"e", b"x"), Put(b"/registry/a", b"1"))
    recorder(place, into, clock).catch_up()
    for options in (redaction, {}, redaction):
        recorder(place, into, clock, **options).catch_up()
    write_raw(engine, Put(R + b"db", b"hunter3"))
    recorder(place, into, clock, **redaction).catch_up()
    for options in ({}, redaction | {"redact_key": str(tmp_path / "other")}):
        recorder(place, into, clock, **options).catch_up()
    with opened(kind, tmp_path / "r", clock=clock) as recorded:
        first, second = [version.value for version in recorded.history(DB)]
    assert first == b"hunter2"
    assert json.loads(second)["bytes"] == 7


@pytest.mark.parametrize("redacts", [True, False])
def test_a_recorder_reports_secrets_in_plain_text(
    place: Any, engine: Any, clock: Any, tmp_path: Path, redacts: bool, redaction: dict[str, Any]
) -> None:
    running = recorder(place, f"lmdb:{tmp_path / 'r'}", clock, **(redaction if redacts else {}))
    write_raw(engine, Put(b"/registry/pods/a", b"x"))
    running.catch_up()
    assert not running.status.has_secrets
    write_raw(engine, Put(R + b"db", PLAIN), Put(R + b"e", b"k8s:enc:aescbc:v1:k:xx"))
    running.catch_up()
    assert running.status.has_secrets is not redacts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"redact": ["a"], "redact_key": "k"}, "give observe=, or leave redact= out"),
        ({"observe": "", "redact": ["a"]}, "redact= and redact_key= belong together"),
        ({"observe": "", "redact_key": "k"}, "redact= and redact_key= belong together"),
        (
            {"observe": "/registry/", "redact": ["secrets/"], "redact_key": "k"},
            "redact='secrets/' is not the beginning of an observed key",
        ),
    ],
)
def test_options_that_do_not_fit_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        snapkv.record("memory:a", into="memory:b", **options)


def test_one_prefix_is_not_a_list_of_prefixes() -> None:
    with pytest.raises(InvalidTypeError, match="redact must be a list of prefixes, not str"):
        snapkv.record("memory:a", into="memory:b", observe="", redact="a", redact_key="k")


@pytest.mark.parametrize("text", ["short", ""])
def test_a_file_without_a_key_is_an_error(
    place: Any, engine: Any, clock: Any, tmp_path: Path, text: str, redaction: dict[str, Any]
) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(InvalidOptionError, match=f"has {len(text)} bytes, and a key has 32"):
        recorder(place, f"lmdb:{tmp_path / 'r'}", clock, **redaction).catch_up()
    folder = redaction | {"redact_key": str(tmp_path / "no" / "key")}
    with pytest.raises(InvalidOptionError, match="cannot be made: No such file"):
        recorder(place, f"lmdb:{tmp_path / 'r'}", clock, **folder).catch_up()
