"""`snapkv.from_etcd3`: in processes of their own, for etcd3 0.12 needs a slow protobuf runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from etcd_server import EtcdServer, enable_auth, make_certificates

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WAIT_S = 60
PREFIX = """
import sys
import warnings
import etcd3
import snapkv
from snapkv.errors import *
host, port = "127.0.0.1", int(sys.argv[1])
client = etcd3.client(host=host, port=port, **dict(a.split("=") for a in sys.argv[2:]))
"""


def run(program: str, server: EtcdServer, /, **login: str) -> str:
    """Run a program that has `client`; return what it printed."""
    arguments = [f"{key}={value}" for key, value in login.items()]
    done = subprocess.run(
        [sys.executable, "-c", PREFIX + program, str(server.client_port), *arguments],
        env=os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_store_through_a_client(etcd: EtcdServer) -> None:
    told = run(
        """
store = snapkv.from_etcd3(client, name="catalogue", writer="ann")
first = store.save("a", b"1")
store.commit(puts={"a": b"2", "b": b"3"}, note="why")
print(store.load("a", first), store.load("a"))
print(store.load_with_prefix("", first))
print([(v.value, v.writer, v.note) for v in store.history("a")])
with store.watch(since=first, timeout=20) as watch:
    print([change.key for change in next(watch)])
with store.session(ttl=30) as session:
    print(session.alive)
store.close()
client.put("plain", "of the owner")
print(client.get("plain")[0])
""",
        etcd,
    )
    assert told.splitlines() == [
        "b'1' b'2'",
        "(['a'], [b'1'])",
        "[(b'1', 'ann', None), (b'2', 'ann', 'why')]",
        "['a', 'b']",
        "True",
        "b'of the owner'",
    ]


def test_more_than_the_client_receives_at_once(etcd: EtcdServer) -> None:
    """The channel of the client takes 4 MiB, which a list may exceed."""
    told = run(
        """
store = snapkv.from_etcd3(client)
for n in range(12):
    store.save(f"k{n:02}", bytes([n]) * 1_000_000)
keys, values = store.load_with_prefix("")
same = all(value == bytes([n]) * 1_000_000 for n, value in enumerate(values))
print(len(keys), sum(map(len, values)), same)
""",
        etcd,
    )
    assert told.split() == ["12", "12000000", "True"]


def test_a_token_runs_out(etcd: EtcdServer) -> None:
    """The client's token is used as long as it works; renewing it takes the credentials."""
    enable_auth(etcd, {"root": ("rootpw", None), "app": ("apppw", [("default/", "readwrite")])})
    told = run(
        """
store = snapkv.from_etcd3(client, user="app", password="apppw")
print(store.load("a", store.save("a", b"1")))
import json, urllib.request
def call(path, token=None, **body):
    headers = {"Authorization": token} if token else {}
    url, data = f"http://{host}:{port}/v3/{path}", json.dumps(body).encode()
    return json.load(urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10))
def forget_tokens():
    root = call("auth/authenticate", name="root", password="rootpw")["token"]
    call("auth/disable", root)
    call("auth/enable")
forget_tokens()
print(store.load("a", store.save("a", b"2")))
other = snapkv.from_etcd3(etcd3.client(host=host, port=port, user="app", password="apppw"))
forget_tokens()
try:
    other.save("a", b"3")
except AccessDeniedError as e:
    print("denied")
print(store.load("a"), "apppw" in repr(store.info()))
""",
        etcd,
        user="app",
        password="apppw",
    )
    assert told.splitlines() == ["b'1'", "b'2'", "denied", "b'2' False"]


def test_what_is_no_client_is_refused(etcd: EtcdServer) -> None:
    told = run(
        """
for stranger in None, object(), "localhost:2379", client.channel:
    try:
        snapkv.from_etcd3(stranger)
    except InvalidTypeError as e:
        print(str(e).startswith("from_etcd3 takes an etcd3 client"))
""",
        etcd,
    )
    assert told.split() == ["True"] * 4


def test_what_the_server_takes_is_told_as_to_open(etcd: EtcdServer) -> None:
    told = run(
        """
small = snapkv.from_etcd3(client, name="small", max_request_bytes=10_000)
try:
    small.save("a", bytes(10_000))
except CommitTooLargeError as e:
    print(e.limit <= 10_000)
narrow = snapkv.from_etcd3(client, name="narrow", max_txn_ops=48)
narrow.commit(puts={f"k{n:03}": b"" for n in range(100)})
try:
    narrow.commit(puts={f"k{n:03}": b"" for n in range(400)})
except CommitTooLargeError as e:
    print(e.what)
large = snapkv.from_etcd3(client, max_request_bytes=4_000_000)
try:
    large.save("a", bytes(2_000_000))
except CommitTooLargeError as e:
    print("the server:", e)
for options in ({"max_txn_ops": 1}, {"max_request_bytes": "1"}, {"ca_cert": "x"}, {"tls": True}):
    try:
        snapkv.from_etcd3(client, **options)
    except SnapKVError as e:
        print(type(e).__name__, "max_txn_ops" in str(e), "ring_slots" in str(e))
""",
        etcd,
    ).splitlines()
    assert told[0] == "True"
    assert told[1] == "the number of operations"
    assert told[2].startswith("the server:")
    assert told[3:] == [
        "InvalidOptionError True False",
        "InvalidTypeError False False",
        "InvalidTypeError True True",
        "InvalidTypeError True True",
    ]


def test_the_environment_is_not_who_the_client_is(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither without a login of its own, nor to renew the token of one, nor as half of a pair."""
    monkeypatch.setenv("SNAPKV_ETCD_USER", "app")
    monkeypatch.setenv("SNAPKV_ETCD_PASSWORD", "apppw")
    enable_auth(etcd, {"root": ("rootpw", None), "app": ("apppw", [("default/", "readwrite")])})
    told = run(
        """
for login in ({}, {"user": "app"}):
    try:
        snapkv.from_etcd3(client, **login)
    except SnapKVError as e:
        print(type(e).__name__)
store = snapkv.from_etcd3(client, user="app", password="apppw")
print(store.load("a", store.save("a", b"1")))
""",
        etcd,
    )
    assert told.splitlines() == ["AccessDeniedError", "InvalidOptionError", "b'1'"]


def test_over_tls(tmp_path: Path) -> None:
    """Reading, watching and leading work; that the server's clock is not seen is a warning."""
    certificates = make_certificates(tmp_path / "certificates")
    with EtcdServer(tmp_path / "etcd", tls=certificates) as server:
        told = run(
            """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    store = snapkv.from_etcd3(client)
print([issubclass(w.category, ServerWarning) for w in caught if "no clock" in str(w.message)])
first = store.save("a", b"1")
with store.watch("a", since=first, timeout=20) as watch:
    store.save("a", b"2")
    print([(change.key, change.value) for change in next(watch)])
election = store.election("job", ttl=30)
election.campaign(b"us", timeout=20)
print(election.leading, store.load("a", store.commit(puts={"a": b"3"}, guards=[election.guard]).ts))
other = snapkv.from_etcd3(client).election("job", ttl=30)
print(other.leader().value)
election.resign()
print(other.leader())
other.close()
election.close()
store.close()
print(client.get("default/data/a")[0])
""",
            server,
            ca_cert=str(certificates.ca),
        )
    assert told.splitlines() == [
        "[True]",
        "[('a', b'2')]",
        "True b'3'",
        "b'us'",
        "None",
        "b'3'",
    ]


def test_a_client_that_its_owner_closed(etcd: EtcdServer) -> None:
    """Nothing was sent, and that is told at once."""
    told = run(
        """
import time
store = snapkv.from_etcd3(client, name="catalogue")
store.save("a", b"1")
client.close()
began = time.monotonic()
for act in (lambda: store.load("a"), lambda: store.save("a", b"2"), lambda: store.at().count("")):
    try:
        act()
    except EngineUnavailableError as e:
        print(e)
print(time.monotonic() - began < 3)
""",
        etcd,
    )
    assert told.splitlines() == ["the etcd3 client was closed; pass a new one"] * 3 + ["True"]


def test_an_archive_and_the_options_of_its_object_store(etcd: EtcdServer, tmp_path: Path) -> None:
    told = run(
        f"""
archive = {str(tmp_path / "archive")!r}
store = snapkv.from_etcd3(client, name="catalogue")
first = store.save("a", b"1")
snapkv.record(f"etcd://{{host}}:{{port}}", name="catalogue", into=archive).catch_up()
store.compact(before=store.save("a", b"2"), past_recordings=True)
store.close()
with snapkv.from_etcd3(client, name="catalogue", archive=archive, storage={{}}) as joined:
    print(joined.load("a", first), joined.load("a"))
try:
    snapkv.from_etcd3(client, storage={{}})
except InvalidOptionError as e:
    print(e)
""",
        etcd,
    )
    assert told.splitlines() == ["b'1' b'2'", "storage= is for an archive: pass archive=, too"]
