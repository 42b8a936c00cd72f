"""The file of a ring: the tokens, their owners, and each owner's shards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcmeta.errors import InvalidArgumentError

if TYPE_CHECKING:  # it needs NumPy, so a command imports it only when it runs
    from cdcmeta.generations import Sharding

SHOWN_CHARS_MAX = 60
FIELDS = ("shards", "ignore_msb")
NODE = '{"shards": 8} or {"shards": 8, "ignore_msb": 12}'
RING = '{"tokens": {"-100": "node-1"}, "nodes": {"node-1": {"shards": 8}}}'
_TOKEN = re.compile(r"0|-?[1-9][0-9]{0,38}")


def ring_of(file: Path) -> dict[int, Sharding]:
    """Return the ring in a file. Raises `InvalidArgumentError`; `OSError` if it cannot be read."""
    content = file.read_bytes()
    try:
        ring = _parts_of(_parsed(content))
        nodes = {name: _sharding(name, node) for name, node in ring["nodes"].items()}
        return _owners(ring["tokens"], nodes)
    except (ValueError, InvalidArgumentError) as e:
        raise InvalidArgumentError(f"{file} is not a valid ring: {e}") from e


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content, object_pairs_hook=_each_once)
    except json.JSONDecodeError as e:
        raise ValueError(f"it is not JSON: {e}") from e
    except UnicodeDecodeError as e:
        raise ValueError(f"it is not UTF-8: byte {e.start} is 0x{e.object[e.start]:02x}") from e
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e


def _parts_of(ring: object) -> dict[str, dict[str, Any]]:
    if not isinstance(ring, dict):
        raise ValueError(f"it is {_shown(ring)}; write {RING}")
    for part in ("tokens", "nodes"):
        if part not in ring:
            raise ValueError(f"it has no {part!r}; write {RING}")
        if not isinstance(ring[part], dict):
            raise ValueError(f"{part!r} is {_shown(ring[part])}; write {RING}")
    return ring


def _sharding(name: str, node: object) -> Sharding:
    from cdcmeta.generations.tokens import Sharding, checked_sharding

    if not isinstance(node, dict):
        raise ValueError(f"node {_shown(name)} is {_shown(node)}; write {NODE}")
    for field in node:
        if field not in FIELDS:
            raise ValueError(
                f"node {_shown(name)} has the unknown field {_shown(field)}; write {NODE}"
            )
    if "shards" not in node:
        raise ValueError(f"node {_shown(name)} has no 'shards'; write {NODE}")
    try:
        return checked_sharding(Sharding(**node))
    except InvalidArgumentError as e:
        raise ValueError(f"node {_shown(name)}: {e}") from e


def _owners(tokens: dict[str, Any], nodes: dict[str, Sharding]) -> dict[int, Sharding]:
    from cdcmeta.generations.tokens import checked_token

    found = {}
    for text, node in tokens.items():
        # int() would also take 1_0, ٣, " 3" and 03, in which a mistake is not seen
        if _TOKEN.fullmatch(text) is None:
            raise ValueError(f"token {_shown(text)} is not an integer in digits, such as -100")
        if not isinstance(node, str) or node not in nodes:
            raise ValueError(
                f"the owner of token {_shown(text)} is {_shown(node)}, which is not in 'nodes'"
            )
        found[checked_token(int(text))] = nodes[node]
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 3] + "..."


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{_shown(twice)} occurs twice")
    return found
