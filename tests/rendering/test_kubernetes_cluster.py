"""Objects as a real API server stores and answers them; tests/vectors/kubernetes has them."""

import base64
from collections import Counter
from typing import Any

import pytest
import yaml

from snapkv.rendering import decode
from snapkv.rendering.encryption import encrypted
from tests.rendering.test_kubernetes import lines_of, without_null

FILLED_IN = {
    "Job": {"metadata.labels"},
    "PersistentVolumeClaim": {"status.phase"},
    "StatefulSet": {"spec.volumeClaimTemplates"},
}
"""What the API server fills in when it reads."""
LINES = lines_of("cluster.jsonl.gz")


def bytes_of(line: dict[str, Any]) -> bytes:
    return base64.b64decode(line["stored"])


PLAIN = [line for line in LINES if not bytes_of(line).startswith(b"k8s:enc:") and line["json"]]
ENCRYPTED = {
    line["json"]["metadata"]["name"]: bytes_of(line)
    for line in LINES
    if bytes_of(line).startswith(b"k8s:enc:")
}


def without(tree: dict[str, Any], paths: set[str]) -> dict[str, Any]:
    """Return an object without resourceVersion and uid, nulls, and what is at some paths."""
    tree = without_null(tree)  # type: ignore[assignment]
    for path in {"metadata.resourceVersion", "metadata.uid", *paths}:
        above, name = path.split(".")
        tree.get(above, {}).pop(name, None)
    return tree


@pytest.mark.parametrize("server", ["1.34", "1.37"])
def test_an_object_is_what_the_api_answers(server: str) -> None:
    kinds = Counter[str]()
    for line in PLAIN:
        if line["server"] != server:
            continue
        found = decode(bytes_of(line), "kubernetes")
        kind = found.data["kind"]
        kinds[kind] += 1
        paths = FILLED_IN.get(kind, set())
        expected = without(line["json"], paths)
        assert "uid" not in found.data["metadata"], (
            "an object that was created anew has another one"
        )
        assert without(found.data, paths) == expected, line["key"]
        as_stored = decode(bytes_of(line)).data["metadata"]
        assert as_stored.get("uid") == line["json"]["metadata"].get("uid"), "differences show it"
        assert without(yaml.safe_load(found.text + "\n"), paths) == expected, "as kubectl reads it"
    assert len(kinds) > 50


def test_what_is_filled_in_is_what_the_page_lists() -> None:
    differs = set()
    for line in PLAIN:
        found = without(decode(bytes_of(line), "kubernetes").data, set())
        if found != without(line["json"], set()):
            differs.add(found["kind"])
    assert differs == set(FILLED_IN)


@pytest.mark.parametrize("provider", ["aescbc", "aesgcm", "secretbox"])
def test_encrypted_values_have_the_size_of_their_object(provider: str) -> None:
    """Of two secrets, one is longer by as much as its password and its name are."""
    found = {name: value for name, value in ENCRYPTED.items() if name.startswith(provider)}
    assert len(found) == 5
    for name, value in found.items():
        seen = encrypted(value)
        assert (seen.provider, seen.key) == (provider, f"key-{provider}")
        of_gcm = encrypted(ENCRYPTED[name.replace(provider, "aesgcm")]).sizes[0]
        assert of_gcm + len(provider) - len("aesgcm") in seen.sizes
        assert decode(value).text == (
            f"encrypted by {provider} with key-{provider}, {len(value)} bytes"
        )
