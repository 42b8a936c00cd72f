"""Draw the floors of snapkv, from its imports, into docs/floors.svg."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "floors.svg"
WIDTH, FLOOR, BOX_WIDTH, BOX_HEIGHT, TOP = 900, 64, 124, 30, 20
ALONE = {"__init__", "__main__", "pytest_plugin"}
"""The public names, which import from everywhere, and what begins nothing."""


def units() -> dict[str, set[str]]:
    """Return the modules and packages of snapkv, and which of these each imports."""
    found: dict[str, set[str]] = defaultdict(set)
    known = {path.stem for path in (ROOT / "snapkv").iterdir()} - ALONE
    for path in sorted((ROOT / "snapkv").rglob("*.py")):
        unit = path.relative_to(ROOT / "snapkv").with_suffix("").parts[0]
        if unit in ALONE:
            continue
        found[unit] |= set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    package, other, *_ = f"{node.module}.{name.name}".split(".")
                    if package == "snapkv" and other in known:
                        found[unit].add(other)
        found[unit].discard(unit)
    return found


def floors(imported: dict[str, set[str]]) -> list[list[str]]:
    """Return the units from the ground up, each as low as what it imports allows."""
    height: dict[str, int] = {}

    def of(unit: str) -> int:
        if unit not in height:
            height[unit] = 1 + max((of(each) for each in imported[unit]), default=-1)
        return height[unit]

    stacked: dict[int, list[str]] = defaultdict(list)
    for unit in sorted(imported):
        stacked[of(unit)].append(unit)
    return [stacked[level] for level in range(len(stacked))]


def shortest(imported: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return imports without the implied ones: what a unit's imports import is implied."""

    def beneath(unit: str) -> set[str]:
        return imported[unit].union(*map(beneath, imported[unit]))

    return {
        unit: below.difference(*map(beneath, below)) if below else below
        for unit, below in imported.items()
    }


def draw() -> str:
    """Return the picture: a box for each unit, a line from each down to what it imports."""
    imported = units()
    levels, imported = floors(imported), shortest(imported)
    place: dict[str, tuple[float, float]] = {}
    for level, names in enumerate(reversed(levels)):
        for n, name in enumerate(names):
            place[name] = (WIDTH * (n + 0.5) / len(names), TOP + level * FLOOR + BOX_HEIGHT / 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {TOP + FLOOR * len(levels)}"'
        ' font-family="sans-serif" font-size="14" text-anchor="middle">',
        "<title>The floors of snapkv: each unit imports units below it only</title>",
        f'<rect width="{WIDTH}" height="{TOP + FLOOR * len(levels)}" fill="white"/>',
    ]
    for unit in sorted(imported):
        x, y = place[unit]
        for below in sorted(imported[unit]):
            to_x, to_y = place[below]
            lines.append(
                f'<line x1="{x:.0f}" y1="{y + BOX_HEIGHT / 2:.0f}" x2="{to_x:.0f}" '
                f'y2="{to_y - BOX_HEIGHT / 2:.0f}" stroke="#9ab" stroke-width="0.8"/>'
            )
    for unit, (x, y) in sorted(place.items()):
        lines.append(
            f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{BOX_WIDTH}" '
            f'height="{BOX_HEIGHT}" rx="5" fill="#eef4fb" stroke="#345"/>'
        )
        lines.append(f'<text x="{x:.0f}" y="{y + 5:.0f}" fill="#123">{unit}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw())
