"""What a fast run leaves out is there."""

from pathlib import Path

from fast import SLOW_FILES, SLOW_FOLDERS

TESTS = Path(__file__).parents[1]


def test_every_name_is_that_of_a_folder_or_a_file() -> None:
    names = {path.stem for path in TESTS.glob("*/test_*.py")}
    assert not SLOW_FILES - names, "take them out of SLOW_FILES"
    assert not SLOW_FOLDERS - {path.name for path in TESTS.iterdir()}
