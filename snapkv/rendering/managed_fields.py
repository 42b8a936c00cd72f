"""Managers of Kubernetes' objects: which one wrote a version, and which one owns a field.

`metadata.managedFields` of an object has an entry for each manager (`kubectl-set`, `argocd`) and
operation, with the time of its last change and the set of the fields that it owns. In the set,
`f:NAME` is a field, `k:{...}` the item of a list with these fields, `v:VALUE` an item that is this
value, `.` the field or the item itself; an empty set is all below.

A change by the subresource `scale` (`kubectl scale`, an autoscaler) takes `spec.replicas` from its
owner. If it scales to 0, the API server (1.37) notes no manager, nor for later ones of the object.
So an entry that only lost fields wrote nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from snapkv.rendering.paths import Path, Step
from snapkv.rendering.value_decoding import decode
from snapkv.rendering.value_tree import Tree

SIGN = b"FieldsV1"
"""The bytes that a stored object with managers has, in protobuf and in JSON."""
ITSELF = "."
DECODED_BYTES_MAX = 1 << 18
"""The size of the largest value that is decoded for the managers of one version."""


def writers(before: Tree, after: Tree) -> tuple[str, ...]:
    """Return the managers that made the tree of an object what it is after another one.

    They are the managers whose entry is new, has another time, or has more fields. The times are
    seconds: without such an entry, they are the managers of whose fields one differs. None of them
    is known if nothing was `before`, except of an object with one manager.
    """
    old = {_identity(entry): entry for entry in _entries(before)}
    new = list(_entries(after))
    if not old:
        return _names(new) if len(_names(new)) == 1 else ()
    found = [entry for entry in new if _has_written(old.get(_identity(entry)), entry)]
    return _names(found or [e for e in new if _changed(old[_identity(e)], e, before, after)])


def writers_of(before: bytes | None, after: bytes | None) -> tuple[str, ...]:
    """Return the same for stored values, of other values than objects with managers none."""
    if after is None or SIGN not in after or len(after) > DECODED_BYTES_MAX:
        return ()
    return writers(None if before is None else decode(before).data, decode(after).data)


def owners(tree: Tree, path: Path, items: Tree) -> tuple[str, ...]:
    """Return the managers that own a path in the tree of an object, of several the latest.

    The path, and what it leads through, are of `items`: a later version of the same object.
    """
    found = [entry for entry in _entries(tree) if _owns(entry.get("fieldsV1"), items, path)]
    latest = max((str(entry.get("time", "")) for entry in found), default="")
    return _names([entry for entry in found if str(entry.get("time", "")) == latest])


def _entries(tree: Tree) -> Iterator[dict[str, Any]]:
    metadata = tree.get("metadata") if isinstance(tree, dict) else None
    listed = metadata.get("managedFields") if isinstance(metadata, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("manager"), str):
            yield entry


def _identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(map(entry.get, ("manager", "operation", "apiVersion", "subresource")))


def _names(entries: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry["manager"] for entry in entries))


def _has_written(old: dict[str, Any] | None, new: dict[str, Any]) -> bool:
    if old is None or old.get("time") != new.get("time"):
        return True
    return _has_more(old.get("fieldsV1"), new.get("fieldsV1"))


def _has_more(old: Any, new: Any) -> bool:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return bool(old != new)
    return any(name not in old or _has_more(old[name], new[name]) for name in new)


def _changed(old: dict[str, Any], new: dict[str, Any], before: Tree, after: Tree) -> bool:
    """Return whether a field of a manager differs; of a subresource also one that it removed."""
    if _differs(new.get("fieldsV1"), before, after):
        return True
    return bool(new.get("subresource")) and _differs(old.get("fieldsV1"), after, before)


def _differs(fields: Any, before: Tree, after: Tree) -> bool:
    """Return whether one of the fields of a set has another value after than before."""
    if before == after:
        return False
    below = [name for name in fields if name != ITSELF] if isinstance(fields, dict) else []
    if not below:
        return not (isinstance(fields, dict) and fields)
    return any(
        _differs(fields[name], _part(before, step_of(name, before)), _part(after, step))
        for name in below
        if (step := step_of(name, after)) is not None
    )


def _owns(fields: Any, tree: Tree, path: Path) -> bool:
    if not path or not isinstance(fields, dict) or not fields:
        return True
    part = _part(tree, path[0])
    return any(
        _owns(below, part, path[1:])
        for name, below in fields.items()
        if name != ITSELF and step_of(name, tree) == path[0]
    )


def _part(tree: Tree, step: Step | None) -> Tree:
    if isinstance(tree, dict):
        return tree.get(step)
    if isinstance(tree, list) and isinstance(step, int) and step < len(tree):
        return tree[step]
    return None


def step_of(name: str, tree: Tree) -> Step | None:
    """Return the key or index of a tree that a name in a set of fields selects; None if absent.

    >>> step_of('k:{"name":"web"}', [{"name": "log"}, {"name": "web"}]), step_of('v:"a"', ["a"])
    (1, 0)
    """
    kind, _, text = name.partition(":")
    if isinstance(tree, dict):
        return text if kind == "f" and text in tree else None
    if not isinstance(tree, list) or kind not in ("k", "v", "i"):
        return None
    try:
        wanted = json.loads(text)
    except ValueError:
        return None
    if kind == "i":
        return wanted if isinstance(wanted, int) and wanted < len(tree) else None
    return next((at for at, item in enumerate(tree) if _is_item(kind, wanted, item)), None)


def _is_item(kind: str, wanted: Any, item: Tree) -> bool:
    if kind == "v":
        return bool(item == wanted)
    if not isinstance(wanted, dict) or not isinstance(item, dict):
        return False
    return all(name in item and item[name] == wanted[name] for name in wanted)
