"""Each error has one exit code and one line."""

import inspect
import os
from pathlib import Path

import pytest
from cli_runner import Cli

import snapkv
from snapkv import errors
from snapkv.cli.exits import Exit, code_of, message_of

pytestmark = pytest.mark.slow

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.SnapKVError) and kind is not errors.SnapKVError
]
USAGE = {
    "CommitTooLargeError",
    "DecodeError",
    "FileMissingError",
    "FutureRevisionError",
    "InvalidFileError",
    "InvalidKeyError",
    "InvalidOptionError",
    "InvalidTimeError",
    "InvalidTupleError",
    "InvalidTypeError",
    "InvalidValueError",
    "MissingExtraError",
    "NotSupportedError",
    "StoreClosedError",
}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_its_own_code(kind: type[errors.SnapKVError]) -> None:
    """A new error class must be given a code, or be named here as one about the arguments."""
    error = kind.__new__(kind)
    assert (code_of(error) == Exit.USAGE) == (kind.__name__ in USAGE)


def test_an_error_that_nobody_foresaw_has_none() -> None:
    assert code_of(ZeroDivisionError()) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (snapkv.KeyNotFoundError("r/"), 1),
        (snapkv.ConflictError([]), 3),
        (snapkv.CompactedError(1, 2), 4),
        (errors.HistoryGapError(1, 2), 4),
        (errors.CorruptStoreError("x"), 5),
        (snapkv.CommitUnknownError(1, b"n", may_still_land=True), 6),
        (errors.EngineBusyError("x"), 7),
        (errors.NoSpaceError("x"), 7),
        (OSError(28, "No space left on device"), 8),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(32, "Broken pipe"), 141),
    ],
)
def test_a_command_ends_with_the_code_of_its_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def load(*_: object) -> bytes:
        raise error

    cli.ok("put", "a", "1")
    monkeypatch.setattr(snapkv.SnapshotKV, "load", load)
    answer = cli("get", "a")
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.count("\n") == (0 if code > 100 else 1)


def test_mistakes_of_our_own_are_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.ok("put", "a", "1")
    monkeypatch.setattr(snapkv.SnapshotKV, "load", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli("get", "a")


def test_errors_name_times_as_people_write_them() -> None:
    at = snapkv.pack(1_700_000_000_123)
    shown = f"2023-11-14T22:13:20.123Z ({at})"
    assert message_of(snapkv.KeyNotFoundError("k", at)) == f"no key 'k' at {shown}"
    assert message_of(snapkv.CompactedError(at, at)) == (
        f"the history at {shown} was compacted, and no --archive has it; "
        f"the earliest that remains is {shown}"
    )
    assert message_of(snapkv.KeyNotFoundError("r/", at, reason="nothing there")) == "nothing there"
    assert message_of(errors.NotObservedError(0, at)) == (
        f"no tick had been committed yet at 1970-01-01T00:00:00.000Z (0); observed since {shown}: "
        "write 2023-11-14T22:13:20.123Z or a later time"
    )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["get", "a", "--at", "soon"], 2, "is not a valid time"),
        (["get", "a", "--at", "2026-01-31T25:05:00"], 2, "that day or time of day does not exist"),
        (["get", "a", "--at", "3"], 2, "if it is a revision, write 'rev:3'"),
        (["get", ""], 2, "not empty"),
        (["get"], 2, "see snapkv get --help"),
        (["diff"], 2, "Missing argument 'TIME'"),
        (["get", "a", "--sotre", "x"], 2, "--sotre"),
        (["gte", "a"], 2, "gte"),
        (["diff", "--perfix", "-1h"], 2, "--perfix"),
        (["restore", "--perfix", "-y"], 2, "--perfix"),
        (["log", "-n", "many"], 2, "--count"),
        (["--store", "./meta", "ls"], 2, "no engine for './meta'"),
        (["--store", "etcdd://x", "ls"], 2, "etcdd"),
        (["--store", "lmdb:", "ls"], 2, "lmdb:"),
        (["--name", "", "ls"], 2, "name"),
        (["--name", "other", "ls"], 5, "other"),
        (["--store", "memory:", "ls"], 5, "no store"),
        (["--store", "lmdb:./nowhere", "check"], 5, "no store at"),
        (["--store", "lmdb:./foreign", "ls"], 5, "foreign"),
        (["put", "a", "1", "--note", "x" * 5_000], 2, "note"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_cannot_be_is_told(
    cli: Cli, tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    cli.ok("put", "a", "1")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "data.mdb").write_text("not ours")
    answer = cli(*words)
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("snapkv: ")
    assert says in answer.err
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("setting", [None, ""])
def test_without_a_store_it_says_how_to_name_one(cli: Cli, setting: str | None) -> None:
    if setting is None:
        cli.patch.delenv("SNAPKV_STORE")
    else:
        cli.patch.setenv("SNAPKV_STORE", setting)
    answer = cli("ls")
    assert answer.code == 2
    assert "SNAPKV_STORE" in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ["get", "a"],
        ["ls"],
        ["log"],
        ["history", "a"],
        ["diff", "-1h"],
        ["watch"],
        ["rm", "a"],
        ["restore", "-1h"],
        ["compact", "-1h", "-y"],
        ["dump", "d"],
        ["check"],
        ["status"],
        ["health"],
    ],
    ids=" ".join,
)
def test_only_writing_makes_a_store(any_cli: Cli, words: list[str]) -> None:
    cli = any_cli
    assert cli(*words).code == 5
    assert os.listdir(cli.place) == []


def test_a_newest_time_far_ahead_is_a_warning(cli: Cli) -> None:
    clock = snapkv.ManualClock(4_000_000_000_000)
    with snapkv.open(cli.url, clock=clock, max_clock_skew=10**10) as store:
        store.save("a", b"1")
    answer = cli.ok("get", "a")
    assert answer.out == "1"
    assert answer.err.startswith("snapkv: warning: the newest commit")
    assert answer.err.count("\n") == 1


def test_version(cli: Cli) -> None:
    assert cli.ok("--version").out == f"snapkv {snapkv.__version__}\n"


def test_without_words_it_helps(cli: Cli) -> None:
    assert cli.ok().out == cli.ok("--help").out
