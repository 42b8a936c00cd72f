"""Names of Kubernetes' objects as people say them, in place of their keys."""

import json

import pytest
from cli_runner import Cli

import snapkv
from snapkv.engine.contract import Delete, Put
from tests.store.engines import write_raw

pytestmark = pytest.mark.slow

ROOT = "/registry/"


@pytest.fixture
def record(cli: Cli) -> Cli:
    """A command line whose store is a record of some keys of an API server."""
    with snapkv.open("lmdb:./cluster") as ticker:
        engine = ticker.reader.engine
        write_raw(engine, Put(b"/registry/minions/n1", b"1"))
        write_raw(engine, Put(b"/registry/services/specs/shop/cart", b"1"))
        ticker.tick()
    record = ("record", "--store", "lmdb:./cluster", "--observe", ROOT, "--into", "lmdb:./k8s")
    cli.ok(*record, "--once")
    with snapkv.open("lmdb:./cluster") as ticker:
        engine = ticker.reader.engine
        write_raw(engine, Put(b"/registry/minions/n1", b"2"))
        write_raw(engine, Put(b"/registry/minions/n2", b"1"))
        write_raw(engine, Delete(b"/registry/services/specs/shop/cart"))
        ticker.tick()
    cli.ok(*record, "--once")
    cli.patch.setenv("SNAPKV_STORE", "lmdb:./k8s")
    return cli


def test_names_are_shown_and_taken(record: Cli) -> None:
    assert record.ok("ls").lines == ["nodes/n1", "nodes/n2"]
    assert record.ok("ls", "nodes/n1").lines == ["nodes/n1"]
    assert record.ok("get", "nodes/n1").out == "2"
    assert "  2  nodes/" not in record.ok("ls", "--long").out
    assert "nodes/n2" in record.ok("ls", "--long", "-o", "table").out
    assert len(record.ok("history", "nodes/n1").lines) == 2
    assert record.ok("blame", "nodes/n1").out.endswith("1  2\n")
    assert "~ nodes/n1" in record.ok("log", "-p", "nodes/n1", "-n1").out
    assert "- services/shop/cart" in record.ok("log", "-p", "--prefix", "services/", "-n1").out
    newest = record.ok("show", "--prefix", "services/").out
    assert newest.endswith('- services/shop/cart  "1"\n')


def test_differences_and_watches_have_names(record: Cli) -> None:
    first = record.ok("log", "--oldest-first", "--json").json[0]["timestamp"]
    shown = record.ok("diff", first, "--name-only").lines
    assert shown == ["nodes/n1", "nodes/n2", "services/shop/cart"]
    assert record.ok("diff", first, "--prefix", "services/shop/", "--name-only").lines == shown[2:]
    watched = record.ok("watch", "nodes/", "--since", first, "--timeout", "100ms").out
    assert '~ nodes/n1  "1" -> "2"' in watched
    assert "services" not in watched


def test_keys_are_taken_and_programs_have_keys(record: Cli) -> None:
    key = "/registry/minions/n1"
    assert record.ok("get", key).out == "2"
    assert record.ok("ls", "--raw").lines[0] == key
    assert record.ok("ls", "nodes/n1", "--json").json == [{"key": key}]
    assert json.loads(record.ok("get", "nodes/n1", "--json").out)["key"] == key
    first = record.ok("log", "--oldest-first", "--json").json[0]["timestamp"]
    assert record.ok("diff", first, "--raw", "--name-only").lines[0] == key


def test_a_name_is_redacted_as_its_key_is(record: Cli) -> None:
    first = record.ok("log", "--oldest-first", "--json").json[0]["timestamp"]
    for prefix in ("nodes/", "/registry/minions/"):
        assert (
            "redacted" in record.ok("diff", first, "--redact", prefix, "--prefix", "nodes/n1").out
        )
        assert record("blame", "nodes/n1", "--redact", prefix).code == 2


def test_an_observed_prefix_has_them_too(record: Cli) -> None:
    observed = ("--store", "lmdb:./cluster", "--observe", ROOT)
    assert record.ok("ls", *observed).lines == ["nodes/n1", "nodes/n2"]
    below = ("--store", "lmdb:./cluster", "--observe", "/registry/minions/")
    assert record.ok("ls", *below).lines == ["nodes/n1", "nodes/n2"]
    assert record.ok("get", "nodes/n1", *below).out == "2"


def test_other_stores_have_keys_whatever_these_are(cli: Cli) -> None:
    cli.ok("put", "/registry/minions/n1", "1")
    cli.ok("put", "nodes/n1", "2")
    assert cli.ok("ls").lines == ["/registry/minions/n1", "nodes/n1"]
    assert cli.ok("get", "nodes/n1").out == "2"
