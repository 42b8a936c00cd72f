"""Which changes of values are changes of ignored paths only, also where nothing is decoded."""

import base64
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapkv.errors import InvalidOptionError
from snapkv.rendering import compare, decode
from snapkv.rendering.ignored_paths import IgnoredPaths, effective, left_out, remainder
from snapkv.rendering.value_difference import Redaction

VECTORS = Path(__file__).parents[1] / "vectors" / "kubernetes"


def versions() -> dict[str, list[bytes]]:
    """Return the versions of each key that an idle control plane wrote, oldest first."""
    found: dict[str, list[bytes]] = {}
    for line in (VECTORS / "heartbeats.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["key"], []).append(base64.b64decode(row["stored"]))
    return found


HEARTBEATS = versions()
PAIRS = [pair for each in HEARTBEATS.values() for pair in itertools.pairwise(each)]
STORED = [
    base64.b64decode(json.loads(line)["stored"])
    for line in (VECTORS / "stored.jsonl").read_text().splitlines()
]


def custom(**fields: object) -> bytes:
    """Return a custom object as an API server stores it."""
    return json.dumps(
        {"apiVersion": "example.com/v1", "kind": "Lock", "metadata": {"name": "a"}, **fields}
    ).encode()


def test_all_that_an_idle_control_plane_writes_is_ignored_without_decoding_it() -> None:
    assert len(PAIRS) > 60
    paths = IgnoredPaths(effective(None))
    for before, after in PAIRS:
        assert paths.ignores(before, after)
        assert compare(decode(before), decode(after), ignore=["auto"]).state == "ignored"
        assert remainder(before) == remainder(after) is not None


def test_a_new_leader_is_not_a_heartbeat() -> None:
    before = HEARTBEATS["/registry/leases/kube-system/kube-controller-manager"][0]
    after = before.replace(b"-4000-", b"-4001-")
    assert after != before
    assert not IgnoredPaths(["auto"]).ignores(before, after)


def test_a_node_that_is_not_ready_is_not_a_heartbeat() -> None:
    before = HEARTBEATS["/registry/minions/n1"][-1]
    after = before.replace(b"Ready\x12\x04True", b"Ready\x12\x04Trux")
    assert after != before
    assert not IgnoredPaths(["auto"]).ignores(before, after)


@pytest.mark.parametrize("value", STORED)
def test_any_other_change_of_a_byte_is_not_ignored_without_the_comparison(value: bytes) -> None:
    paths = IgnoredPaths(["auto"])
    for at in range(4, len(value), max(1, len(value) // 60)):
        after = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
        left = remainder(after)
        if left is not None and left == remainder(value):
            state = compare(decode(value), decode(after), ignore=["auto"]).state
            assert state in ("ignored", "formatting", "changed")
            if state == "changed":  # the bytes of an ignored field are not valid any more
                assert decode(after).kind != decode(value).kind
            else:
                assert paths.ignores(value, after)


def test_objects_in_json_have_heartbeats_too() -> None:
    paths = IgnoredPaths(["auto"])
    seen = custom(spec={"renewTime": "1", "holder": "a"})
    assert paths.ignores(seen, custom(spec={"renewTime": "2", "holder": "a"}))
    assert not paths.ignores(seen, custom(spec={"renewTime": "2", "holder": "b"}))
    conditions = [{"type": "Ready", "lastHeartbeatTime": n} for n in (1, 2)]
    before, after = (custom(status={"conditions": [each]}) for each in conditions)
    assert paths.ignores(before, after)


@pytest.mark.parametrize(("before", "after"), [(1, True), (1, 1.0), (0, False), ("1", 1)])
def test_numbers_of_other_types_are_a_change(before: object, after: object) -> None:
    assert not IgnoredPaths(["auto"]).ignores(custom(spec=before), custom(spec=after))


def test_the_default_is_for_objects_of_kubernetes_alone() -> None:
    before, after = (b'{"spec": {"renewTime": %d}}' % n for n in (1, 2))
    assert not IgnoredPaths(["auto"]).ignores(before, after)
    assert not IgnoredPaths(["auto"]).may_ignore(after)
    assert IgnoredPaths(["kubernetes"]).ignores(before, after)
    assert not IgnoredPaths(effective(["none"])).may_ignore(custom())


def test_a_path_that_is_given_adds_to_the_default() -> None:
    before, after = custom(a=1, spec={"renewTime": 1}), custom(a=2, spec={"renewTime": 2})
    assert IgnoredPaths(effective(["a"])).ignores(before, after)
    assert not IgnoredPaths(effective(["none", "a"])).ignores(before, after)


def test_the_same_bytes_are_no_change_and_redacted_ones_are_not_looked_at() -> None:
    paths = IgnoredPaths(["auto"], redaction=Redaction(["secrets/"]))
    assert not paths.ignores(custom(), custom())
    assert (paths.shows("secrets/a"), paths.shows("a")) == (False, True)


def test_a_path_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(InvalidOptionError, match="write a path such"):
        IgnoredPaths(["a b"])


def test_what_was_left_out_is_said_with_the_way_to_see_it() -> None:
    assert left_out(1, "commit") == (
        "1 commit with only ignored paths was left out: --ignore none shows it"
    )
    assert left_out(2_000, "key").startswith("2,000 keys with only ignored paths were left out")


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*STORED, *(each for pair in PAIRS for each in pair)]), st.data())
def test_no_bytes_break_it(value: bytes, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(value)))
    noise = data.draw(st.binary(max_size=6))
    broken = value[:end] + noise + value[end + data.draw(st.integers(0, 6)) :]
    remainder(broken)
    IgnoredPaths(["auto"]).ignores(value, broken)
