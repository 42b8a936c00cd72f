"""The surface of both packages is the one on record, so that a change of it is seen."""

import pytest

from tools.surface import FOLDER, PARTS, changed


@pytest.mark.parametrize("part", PARTS)
def test_the_surface_is_the_one_on_record(part: str) -> None:
    text = "".join(f"{line}\n" for line in PARTS[part]())
    difference = changed(FOLDER / f"{part}.txt", text)
    assert not difference, (
        "the surface has changed. If that is meant: run python -m tools.surface, and add a line to "
        f"CHANGELOG.md.\n{difference}"
    )


def test_each_file_on_record_is_of_a_part() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(PARTS)
