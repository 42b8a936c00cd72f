"""The Python functions that a short command enters: one more has to earn its place."""

import re
import sys
from pathlib import Path

import pytest

import snapkv
from snapkv.cli import main

WALKS = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
HEADING = r"^### `snapkv diff` of three differences: (\d+) calls"


def calls_of(words: list[str]) -> list[str]:
    """Return the functions of snapkv that a command enters; its modules are imported already."""
    calls: list[str] = []
    inside = str(Path(snapkv.__file__).parent)

    def note(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(inside):
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        main(words)
    finally:
        sys.setprofile(None)
    return calls


def test_few_calls_of_a_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with snapkv.open(f"lmdb:{tmp_path}/s") as store:
        for key in ("a", "b", "c"):
            store.save(key, b"1")
        before = store.resolved()
        after = store.commit(puts={"a": b"2", "d": b"2"}, deletes=["b"]).ts
    words = ["--store", f"lmdb:{tmp_path}/s", "diff", str(before), str(after)]
    assert main(words) == 0
    found = re.search(HEADING, WALKS, re.MULTILINE)
    assert found, "docs/architecture.md has no such walk"
    capsys.readouterr()
    calls = calls_of(words)
    assert capsys.readouterr().out == '~ a  "1" -> "2"\n- b  "1"\n+ d  "2"\n'
    assert len(calls) <= int(found[1]), calls
