"""Every error of cdcmeta keeps its type, text and attributes when it is copied or pickled."""

import copy
import inspect
import pickle

import pytest

from cdcmeta import errors
from cdcmeta.errors import CDCMetaError

ARGUMENTS = {
    "ConsumerTakenError": ("idx",),
    "DocumentConflictError": ("doc", "why"),
    "DocumentNotFoundError": ("doc", "deleted"),
    "EditNotMadeError": ("doc",),
    "EditUnknownError": ("commit", "plan", ("before",), ("after",)),
    "ExpiryIncompleteError": ({"t": ValueError("why")}, "done"),
    "GenerationUnavailableError": ("none", "message"),
    "InvalidMessageError": ("message", "unsupported"),
    "InvalidWriteTimeError": ("past", 5, 7),
    "LogTrimmedError": ("idx", "t", 5, 7),
    "MemberLostError": (0x7F,),
    "SwitchAbortedError": (b"id", "why"),
    "SwitchPendingError": (b"id", tuple("abcdefghijkl")),
}
CLASSES = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, CDCMetaError)
]


def attributes(error):
    return {name: str(value) for name, value in vars(error).items()}


@pytest.mark.parametrize(
    "twin",
    [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_keep_type_text_and_attributes(twin, subtests):
    for cls in CLASSES:
        with subtests.test(cls=cls.__name__):
            error = cls(*ARGUMENTS.get(cls.__name__, ("message",)))
            error.add_note("seen in a test")
            again = twin(error)
            assert (type(again), str(again)) == (cls, str(error))
            assert attributes(again) == attributes(error)
