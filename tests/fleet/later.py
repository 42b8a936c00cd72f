"""A process that comes later: it opens a fleet anew and uses what another one has left.

    python later.py ASKED      a JSON object: members, timeout, tokens, resumes (names to tokens)

It prints one JSON object: what each token and each resumed watch gave, or the error.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # modules of all tests; what is beside this file are tests
    sys.path[0] = str(Path(__file__).parents[1])

from chains import check_ends

import snapkv
from snapkv.errors import SnapKVError

NOTHING_S = 0.5
"""A resumed watch brings all that exists; that it brings no more takes so long to see."""


def of_token(fleet: Any, token: str) -> dict[str, Any]:
    """Return what a token shows."""
    try:
        moment = fleet.at(token=token, behind="leave out")
        found = {key: b64encode(value).decode() for key, value in sorted(moment.items())}
        return {"final": moment.final, "items": [[*key, value] for key, value in found.items()]}
    except SnapKVError as e:
        check_ends(e)
        return {"error": type(e).__name__, "member": e.member}


def of_watch(fleet: Any, token: str) -> dict[str, Any]:
    """Return what a resumed watch brings, of which time it is, and the error that ended it."""
    items: list[list[Any]] = []
    try:
        with fleet.watch(resume=token, timeout=NOTHING_S) as watch:
            for item in watch:
                for name, changes in item.members.items():
                    written = [
                        [c.key, None if c.value is None else b64encode(c.value).decode()]
                        for c in changes
                    ]
                    items.append([item.timestamp, name, written])
    except SnapKVError as e:
        check_ends(e)
        return {"items": items, "error": type(e).__name__, "member": e.member}
    return {"items": items}


def main() -> None:
    """Print all answers."""
    asked = json.loads(sys.argv[1])
    with snapkv.fleet.open(asked["members"], timeout=asked["timeout"]) as fleet:
        found = {name: of_token(fleet, token) for name, token in asked["tokens"].items()}
        resumed = {name: of_watch(fleet, token) for name, token in asked["resumes"].items()}
    print(json.dumps({"tokens": found, "resumes": resumed}))


if __name__ == "__main__":
    main()
