"""Every error is of this package, is a builtin one too, and keeps its facts when copied."""

import builtins
import copy
import inspect
import pickle

import pytest
from chains import circle_of

import snapkv
from snapkv import errors
from snapkv.base import files
from snapkv.engine import contract
from snapkv.errors import SnapKVError

GUARD = snapkv.Absent("k")

SAMPLES = {
    "MembersBehindError": (450, {"eu-1": "it does not answer"}),
    "ClockSkewError": ("too far", 9_000, 5_000),
    "CommitTooLargeError": ("a value in bytes", 10, 5),
    "CompactedError": (7, 9),
    "HistoryGapError": (7, 9),
    "ConflictError": ([(GUARD, 3), (snapkv.AtRevision(b"b", 2), 0)],),
    "RevertConflictError": ({"k": snapkv.Commit(5, 0, 7, "ann", "undo")},),
    "DecodeError": ("k", 7, "json", "not JSON"),
    "FormatError": ("newer", 2, 1),
    "FutureRevisionError": (9, 7),
    "InvalidKeyError": ("bad", "k"),
    "InvalidTimeError": ("bad", "when"),
    "KeyNotFoundError": ("k", 5),
    "LeaseNotFoundError": (0x7F,),
    "NotObservedError": (7, 9),
    "ReadTimeoutError": (2.5, "no answer"),
    "Refused": (errors.NoSpaceError("full"),),
}
KEYWORDS = {
    "CommitUnknownError": ((5, b"n"), {"may_still_land": True, "batch": 2, "guards": (GUARD,)}),
    "InvalidValueError": (("bad",), {"key": "k", "codec": "json"}),
    "InvalidTypeError": (("unknown",), {"option": "colour", "known": ["name", "clock"]}),
    "MissingExtraError": (("no module", "arrow", "tables"), {"module": "pyarrow"}),
    "OutcomeUnknown": (("lost",), {"retry": True, "cause": errors.NoSpaceError("full")}),
}

CLASSES = [
    cls
    for module in (errors, contract)
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, SnapKVError) and cls.__module__ == module.__name__ and cls is not SnapKVError
]


def sample(cls):
    args, options = KEYWORDS.get(cls.__name__, (SAMPLES.get(cls.__name__, ("message",)), {}))
    return cls(*args, **options)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_is_ours_and_a_builtin(cls):
    too_wide = (BaseException, Exception, object)
    caught_as = [
        base for base in cls.__mro__ if base.__module__ == "builtins" and base not in too_wide
    ]
    assert caught_as, f"{cls.__name__} is no builtin error: let it derive from one beside ours"
    assert all(hasattr(builtins, base.__name__) for base in caught_as)


def facts(error):
    """Attributes, with errors among them as what they say: exceptions do not compare."""
    return {k: str(v) if isinstance(v, Exception) else v for k, v in vars(error).items()}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(
    "twin",
    [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_keep_type_text_and_facts(cls, twin):
    error = sample(cls)
    error.add_note("seen in a test")
    again = twin(error)
    assert type(again) is cls
    assert again is not error
    assert str(again) == str(error)
    assert again.args == error.args or any(isinstance(a, Exception) for a in error.args)
    assert facts(again) == facts(error)


def test_facts_by_name():
    assert sample(errors.CompactedError).requested == 7
    assert sample(errors.CompactedError).earliest == 9
    assert sample(errors.ConflictError).failed == ((GUARD, 3), (snapkv.AtRevision(b"b", 2), 0))
    assert sample(errors.FutureRevisionError).current == 7
    assert sample(errors.InvalidTypeError).known == ("clock", "name")
    assert sample(errors.InvalidTypeError).option == "colour"
    assert sample(errors.KeyNotFoundError).timestamp == 5
    assert str(sample(errors.KeyNotFoundError)) == "no key 'k' at 1970-01-01T00:00:00.000Z (5)"
    too_large = sample(errors.CommitTooLargeError)
    assert (too_large.what, too_large.size, too_large.limit) == ("a value in bytes", 10, 5)
    reason = errors.KeyNotFoundError("r/", reason="no key begins with 'r/'")
    assert (str(reason), reason.key) == ("no key begins with 'r/'", "r/")
    said = errors.ConflictError([(GUARD, 3)], "8 attempts")
    assert (str(said), said.failed) == ("8 attempts", ((GUARD, 3),))
    decoding = sample(errors.DecodeError)
    assert (decoding.key, decoding.revision, decoding.codec) == ("k", 7, "json")
    assert str(decoding) == (
        "the codec json cannot decode the value of 'k' at revision 7: not JSON"
    )
    assert errors.ConflictError([(GUARD, 3)], tries=8).tries == 8
    unknown = sample(errors.CommitUnknownError)
    assert (unknown.timestamp, unknown.nonce, unknown.batch) == (5, b"n", 2)
    assert unknown.may_still_land


def test_the_builtins_people_would_catch():
    assert issubclass(errors.KeyNotFoundError, KeyError)
    assert issubclass(errors.CompactedError, LookupError)
    assert issubclass(errors.CommitTimeoutError, TimeoutError)
    assert issubclass(errors.CommitUnknownError, TimeoutError)
    assert issubclass(errors.InvalidTypeError, TypeError)
    assert issubclass(errors.InvalidTimeError, ValueError)
    assert issubclass(errors.NoSpaceError, OSError)
    assert issubclass(errors.ReadOnlyError, PermissionError)
    assert issubclass(errors.StoreNotFoundError, FileNotFoundError)
    assert issubclass(errors.ClockWarning, UserWarning)


def test_exported_errors_are_those_classes():
    for name in dir(snapkv):
        value = getattr(snapkv, name)
        if inspect.isclass(value) and issubclass(value, SnapKVError):
            assert getattr(errors, name) is value


# --- errors that are raised more than once ------------------------------------------------------


def test_another_error_has_the_same_facts_notes_and_cause_and_shares_nothing():
    error = sample(errors.CompactedError)
    error.add_note("first")
    error.__cause__ = cause = ValueError("why")
    other = errors.another(error)
    other.add_note("second")
    assert (type(other), str(other), other.earliest) == (type(error), str(error), error.earliest)
    assert other.__cause__ is cause
    assert error.__notes__ == ["first"]
    assert other.__traceback__ is None


def test_another_of_an_error_that_cannot_be_copied_is_that_error():
    class TwoWordsError(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} {two}")

    error = TwoWordsError("a", "b")
    assert errors.another(error) is error


@pytest.mark.parametrize("has_cause", [False, True])
def test_the_reason_of_a_refusal_is_raised_without_a_circle(has_cause):
    reason, engine_error = errors.NoSpaceError("full"), OSError("disk")

    def refused():
        try:
            raise contract.Refused(reason) from (engine_error if has_cause else reason)
        except contract.Refused as e:
            e.reraise()

    with pytest.raises(errors.NoSpaceError) as caught:
        refused()
    assert caught.value is reason
    assert reason.__cause__ is (engine_error if has_cause else None)
    assert reason.__context__ is None


def test_an_unknown_outcome_without_a_cause_is_raised_itself():
    cause = errors.NoSpaceError("full")

    def raised(error):
        try:
            raise error
        except contract.OutcomeUnknown as e:
            e.reraise()

    unknown = contract.OutcomeUnknown("lost", retry=False)
    with pytest.raises(contract.OutcomeUnknown) as caught:
        raised(unknown)
    assert (caught.value, unknown.__cause__) == (unknown, None)
    with pytest.raises(errors.NoSpaceError) as caught:
        raised(contract.OutcomeUnknown("lost", retry=False, cause=cause))
    assert caught.value is cause


def test_an_error_of_a_block_that_writes_a_file_is_raised_without_a_circle(tmp_path):
    error = OSError("of the caller")
    with pytest.raises(OSError, match="of the caller") as caught, files.written(tmp_path / "a"):
        raise error
    assert caught.value is error
    assert circle_of(error) == []
