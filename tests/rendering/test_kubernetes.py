"""Values as Kubernetes' own code stores them; tests/vectors/kubernetes says how they were made."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from snapkv.errors import InvalidOptionError
from snapkv.rendering import compare, decode
from snapkv.rendering.kubernetes import schema
from tests.rendering.shown import text_of

VECTORS = Path(__file__).parents[1] / "vectors" / "kubernetes"
OBJECTS = {
    each["json"]["kind"]: (base64.b64decode(each["stored"]), each["json"])
    for each in map(json.loads, (VECTORS / "stored.jsonl").read_text().splitlines())
}


def lines_of(name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in gzip.decompress((VECTORS / name).read_bytes()).splitlines()
    ]


def stored(kind: str) -> bytes:
    return OBJECTS[kind][0]


def without_null(tree: object) -> object:
    """Return JSON without the times that were never set, which Go writes as null."""
    if isinstance(tree, dict):
        return {key: without_null(part) for key, part in tree.items() if part is not None}
    return [without_null(part) for part in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_is_what_kubernetes_says_it_is(kind: str) -> None:
    value, expected = OBJECTS[kind]
    found = decode(value)
    assert found.kind == "kubernetes"
    assert found.data == without_null(expected)
    assert list(found.data)[:3] == ["apiVersion", "kind", "metadata"]


def test_each_field_of_each_kind_is_as_kubernetes_says() -> None:
    lines = lines_of("filled.jsonl.gz")
    assert len(lines) > 150
    for line in lines:
        stored, expected = base64.b64decode(line["stored"]), without_null(line["json"])
        found = decode(stored)
        assert (found.kind, found.data) == ("kubernetes", expected)
        assert yaml.safe_load(found.text + "\n") == expected, "as kubectl reads it"


def replaced(kind: str, old: bytes, new: bytes) -> list[str]:
    """Return the difference that a replacement of the same length makes."""
    assert old in stored(kind)
    assert len(old) == len(new)
    return text_of(compare(decode(stored(kind)), decode(stored(kind).replace(old, new))))


def test_a_changed_image_is_named_by_its_path() -> None:
    assert replaced("Pod", b"\x12\nnginx:1.25", b"\x12\nnginx:1.26") == [
        "~ spec.containers[0].image: nginx:1.25 -> nginx:1.26"
    ]
    assert replaced("Deployment", b"/api:2.0", b"/api:2.1") == [
        "~ spec.template.spec.containers[0].image: "
        "registry.example.com/api:2.0 -> registry.example.com/api:2.1"
    ]


def test_settings_secrets_and_ports_are_named_by_their_paths() -> None:
    assert replaced("ConfigMap", b"debug", b"error") == ["~ data.level: debug -> error"]
    assert replaced("Secret", b"hunter2", b"hunter3") == [
        "~ data.password: aHVudGVyMg== -> aHVudGVyMw=="
    ]
    assert replaced("Service", b"http\x12\x03TCP\x18\x50", b"http\x12\x03TCP\x18\x51") == [
        "~ spec.ports[0].port: 80 -> 81"
    ]


def test_an_explicit_zero_is_shown_and_a_default_one_is_not() -> None:
    deployment, namespace = decode(stored("Deployment")).data, decode(stored("Namespace")).data
    assert deployment["spec"]["replicas"] == 0
    assert "minReadySeconds" not in deployment["spec"]
    assert namespace["metadata"]["deletionGracePeriodSeconds"] == 0


def test_a_manifest_has_neither_resource_version_nor_uid() -> None:
    """Because `kubectl replace` conflicts with them if the object changed, or was created anew."""
    expected = without_null(OBJECTS["Deployment"][1])
    assert isinstance(expected, dict)
    known = {"resourceVersion": "1057", "uid": "1c594c05-2eb9-441b-b822-3b337b9c06e1"}
    answer = {**expected, "metadata": {**expected["metadata"], **known}}
    found = decode(json.dumps(answer).encode(), "kubernetes")
    assert found.data == expected
    assert "resourceVersion" not in found.text
    assert decode(json.dumps(answer).encode()).data == answer


def test_a_redacted_object_is_not_a_manifest() -> None:
    with pytest.raises(InvalidOptionError, match="as redacted values are"):
        decode(b'{"redacted": "hmac-sha256:5e318f8c:f6c2", "bytes": 327}', "kubernetes")


def test_a_heartbeat_is_noise() -> None:
    lease = stored("Lease")
    value = decode(lease).data["spec"]["renewTime"]
    assert value == "2026-03-01T12:00:00.123456Z"
    seconds = b"\x08\xc0\xd4\x90\xcd\x06"
    assert seconds in lease
    later = lease.replace(seconds, b"\x08\xca\xd4\x90\xcd\x06")
    noise = compare(decode(lease), decode(later), ignore=["kubernetes"])
    assert (noise.state, noise.ignored) == ("ignored", 1)
    assert text_of(compare(decode(lease), decode(later))) == [
        "~ spec.renewTime: 2026-03-01T12:00:00.123456Z -> 2026-03-01T12:00:10.123456Z"
    ]


def test_the_text_is_yaml_and_the_preview_a_name() -> None:
    pod = decode(stored("Pod"))
    assert pod.text.startswith("apiVersion: v1\nkind: Pod\nmetadata:\n  name: web-0\n")
    assert "    example.com/note: |-\n      two\n      lines\n" in pod.text
    assert pod.preview() == f"Pod shop/web-0 ({len(stored('Pod')):,} bytes)"
    answer = json.dumps(OBJECTS["Pod"][1]).encode()
    assert decode(answer).preview() == f"Pod shop/web-0 ({len(answer):,} bytes)"


# --- what the table does not have ---------------------------------------------------------


def varint(number: int) -> bytes:
    whole = b""
    while number > 0x7F:
        whole, number = whole + bytes([number & 0x7F | 0x80]), number >> 7
    return whole + bytes([number])


def wire(number: int, content: bytes | int) -> bytes:
    """Return one field of protobuf: bytes, or a varint."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def unknown(version: bytes, kind: bytes, raw: bytes, **more: bytes) -> bytes:
    envelope = wire(1, wire(1, version) + wire(2, kind)) + wire(2, raw)
    envelope += wire(3, more.get("encoding", b"")) + wire(4, more.get("content_type", b""))
    return b"k8s\0" + envelope


WIDGET = (
    wire(1, wire(1, b"w") + wire(3, b"shop"))
    + wire(2, wire(1, b"round") + wire(2, 7) + wire(2, 2**64 - 1) + wire(3, b"\xff\x00\xfe"))
    + wire(9, b"")
)


def test_another_kind_has_metadata_by_name_and_the_rest_by_number() -> None:
    found = decode(unknown(b"example.com/v1", b"Widget", WIDGET))
    assert found.data == {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w", "namespace": "shop"},
        "2": {"1": "round", "2": [7, -1], "3": b"\xff\x00\xfe"},
        "9": "",
    }
    changed = decode(unknown(b"example.com/v1", b"Widget", WIDGET.replace(b"round", b"plain")))
    assert text_of(compare(found, changed)) == ["~ 2.1: round -> plain"]


def test_a_field_of_a_later_version_is_shown_by_its_number() -> None:
    spec = wire(1, b"10.0.0.1") + wire(4_000, b"new")
    found = decode(unknown(b"v1", b"ConfigMap", wire(1, wire(1, b"c")) + wire(77, spec)))
    assert found.data["77"] == {"1": "10.0.0.1", "4000": "new"}


def test_a_field_of_another_wire_type_is_shown_by_its_number() -> None:
    found = decode(unknown(b"v1", b"ConfigMap", wire(1, 5) + wire(4, b"x")))
    assert (found.data["1"], found.data["4"]) == (5, "x")


@pytest.mark.parametrize(
    "raw",
    [
        wire(1, wire(8, wire(1, b"x"))),  # a time whose seconds are bytes
        wire(2, 5) + wire(2, b"\xff"),
        b"\xff",
        wire(1, wire(11, wire(1, 7))),  # a label whose key is a number
    ],
)
def test_damaged_objects_are_hex(raw: bytes) -> None:
    assert decode(unknown(b"v1", b"ConfigMap", raw)).kind == "hex"


def test_a_time_out_of_range_is_shown_as_numbers() -> None:
    time = wire(8, wire(1, 2**62))
    found = decode(unknown(b"v1", b"ConfigMap", wire(1, time)))
    assert found.data["metadata"] == {"creationTimestamp": {"seconds": 2**62, "nanos": 0}}


def test_another_content_type_is_left_as_bytes() -> None:
    found = decode(unknown(b"v1", b"Pod", b"{}", content_type=b"application/json"))
    assert found.data["raw"] == b"{}"
    assert found.data["contentType"] == "application/json"


def test_the_table_has_every_message_that_it_names() -> None:
    kinds, messages = schema()
    from snapkv.rendering.kubernetes import _CONVERTED

    used = {field.type for fields in messages.values() for field in fields.values()}
    assert used - set(_CONVERTED) <= set(messages)
    assert set(kinds.values()) <= set(messages)
    assert len(kinds) > 50
