"""The managers of Kubernetes' objects: who wrote a version, who owns a field."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from snapkv import Version
from snapkv.rendering import blame
from snapkv.rendering.managed_fields import step_of, writers, writers_of

from .deployments import CREATED, IMAGE, PATCHED, SCALED, versions

T1, T2 = "2026-01-31T14:00:00Z", "2026-01-31T14:00:01Z"


def entry(manager: str, fields: Any, time: str = T1, **more: str) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "time": time, "fieldsV1": fields, **more}


def an_object(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "Thing", "metadata": {"managedFields": list(entries)}, **fields}


def test_the_writers_of_versions_that_an_api_server_stored() -> None:
    values = [each.value for each in versions().values()]
    found = dict(zip(list(versions())[1:], map(writers_of, values, values[1:]), strict=False))
    assert writers_of(None, values[0]) == ("kubectl-create",)
    assert found[IMAGE] == ("kubectl-set",)
    assert found[PATCHED] == ("kubectl-patch",)
    others = {
        revision: who
        for revision, who in found.items()
        if revision not in (CREATED, IMAGE, SCALED, PATCHED) and versions()[revision].value
    }
    assert set(others.values()) == {("kube-controller-manager",)}


def test_a_scale_to_zero_has_no_manager() -> None:
    """The API server takes the field from its owner, who did not write it."""
    (before, after) = next(
        (old.value, new.value)
        for old, new in pairwise(versions().values())
        if new.revision == SCALED
    )
    assert writers_of(before, after) == ()


def test_an_entry_that_moved_in_time_or_gained_a_field_is_the_writer() -> None:
    ann, bob = {"f:a": {}}, {"f:b": {}}
    before = an_object(entry("ann", ann), entry("bob", bob), a=1, b=1)
    assert writers(before, an_object(entry("ann", ann, T2), entry("bob", bob), a=2, b=1)) == (
        "ann",
    )
    both = entry("bob", {**bob, "f:a": {}})
    assert writers(before, an_object(entry("ann", {}), both, a=2, b=1)) == ("bob",)


def test_a_scale_has_the_manager_of_its_subresource() -> None:
    before = an_object(entry("ann", {"f:a": {}}), a=1)
    scale = entry("kubectl", {"f:a": {}}, subresource="scale")
    assert writers(before, an_object(scale, entry("ann", {}), a=2)) == ("kubectl",)


def test_within_one_second_the_owner_of_what_differs_is_the_writer() -> None:
    entries = [entry("ann", {"f:a": {}}), entry("bob", {"f:b": {}}, subresource="status")]
    assert writers(an_object(*entries, a=1, b=1), an_object(*entries, a=1, b=2)) == ("bob",)
    less = [entries[0], entry("bob", {}, subresource="status")]
    assert writers(an_object(*entries, a=1, b=1), an_object(*less, a=1)) == ("bob",)
    assert writers(an_object(*entries, a=1), an_object(*entries, a=1)) == ()


def test_other_values_have_no_managers() -> None:
    assert writers_of(None, b"FieldsV1") == ()
    assert writers_of(b"1", json.dumps({"kind": "FieldsV1", "metadata": 3}).encode()) == ()
    assert writers_of(b"1", None) == ()
    broken = an_object({"manager": 1}, {"manager": "ann", "fieldsV1": 3})
    assert writers(None, broken) == ("ann",)


def test_names_of_fields_select_parts() -> None:
    ports = [{"containerPort": 80, "protocol": "UDP"}, {"containerPort": 80, "protocol": "TCP"}]
    assert step_of('k:{"containerPort":80,"protocol":"TCP"}', ports) == 1
    assert step_of('k:{"containerPort":81,"protocol":"TCP"}', ports) is None
    assert step_of('v:"b"', ["a", "b"]) == 1
    assert step_of("i:0", ["a"]) == 0
    assert step_of("i:1", ["a"]) is None
    assert step_of("f:a", {"a": 1}) == "a"
    assert step_of("f:a", ["a"]) is None
    assert step_of("k:[", ports) is None


def test_blame_names_the_manager_that_owns_a_path() -> None:
    stored = [
        Version(each.revision, each.revision, each.value, None) for each in versions().values()
    ]
    found = {each.place: each for each in blame(stored[:-1])}
    image = found["spec.template.spec.containers[0].image"]
    assert (image.version.revision, image.managers) == (IMAGE, ("kubectl-set",))
    assert found["spec.replicas"].managers == ("kubectl-patch",)
    assert found["spec.selector.matchLabels.app"].managers == ("kubectl-create",)
    assert found["status.observedGeneration"].managers == ("kube-controller-manager",)
    assert found["metadata.generation"].managers == ("kubectl-patch",)  # it made that version


def test_blame_of_an_item_that_moved_names_its_owner() -> None:
    fields = {"f:items": {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:v": {}}}}
    other = {"f:items": {'k:{"name":"b"}': {".": {}, "f:name": {}, "f:v": {}}}}
    a, b = {"name": "a", "v": 1}, {"name": "b", "v": 1}
    trees = [
        an_object(entry("ann", fields), items=[a]) | {"FieldsV1": 1},
        an_object(entry("ann", fields), entry("bob", other, T2), items=[b, a]) | {"FieldsV1": 1},
    ]
    stored = [Version(n, n, json.dumps(tree).encode(), None) for n, tree in enumerate(trees, 1)]
    found = {each.place: each for each in blame(stored)}
    assert (found["items[0].v"].managers, found["items[1].v"].managers) == (("bob",), ("ann",))
    assert found["items[1].v"].version.revision == 1
