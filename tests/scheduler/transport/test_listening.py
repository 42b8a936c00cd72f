"""Where a post listens, how other captures reach it, and what TLS keeps out."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from etcd_server import eventually, make_certificates

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.transport.grpc_post import GrpcPost, Tls, split_address

from .posting import WAIT_S, call_of, exchanges, foreign_client, received, request

ROOT = Path(__file__).parents[3]


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@needs_ipv6
def test_ipv6(post):
    receiver, sender = post("[::1]:0"), post()
    assert receiver.address == f"[::1]:{receiver.port}"
    exchanges(sender, receiver)
    exchanges(receiver, sender)


def test_a_name_of_this_machine(post):
    receiver, sender = post("localhost:0"), post()
    assert receiver.address == f"localhost:{receiver.port}"
    exchanges(sender, receiver)
    with foreign_client(f"127.0.0.1:{receiver.port}") as call:
        call(call_of(("feed", request(1))), timeout=WAIT_S)


def test_messages_reach_the_advertised_address(post):
    receiver = post("0.0.0.0:0", insecure=True, advertise="127.0.0.1:7")
    assert receiver.address == "127.0.0.1:7"
    with foreign_client(f"127.0.0.1:{receiver.port}") as call:
        call(call_of(("feed", request(1))), timeout=WAIT_S)
    assert len(receiver.receive()) == 1


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.1.2.3:7000", "example.com:7000"])
def test_other_machines_reach_it_only_with_tls_or_insecure(listen):
    with pytest.raises(InvalidArgumentError, match="can be reached from other machines"):
        GrpcPost(listen, advertise="127.0.0.1:7000")


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_every_address_cannot_be_advertised(listen):
    with pytest.raises(InvalidArgumentError, match="advertise the HOST:PORT"):
        GrpcPost(listen, insecure=True)


@pytest.mark.parametrize("advertise", ["h", "h:0", "0.0.0.0:7", "[::]:7", "::1:7", "", "h:7/"])
def test_an_advertised_address_must_be_one_to_reach(advertise):
    with pytest.raises(InvalidArgumentError):
        GrpcPost(advertise=advertise)


@pytest.mark.parametrize(
    "address",
    ["", ":7", "h", "h:", "h:-1", "h:65536", "h:\uff17", "::1:7", "[::1:7", "/tmp/x:7", "a b:7"],
)
def test_an_address_is_host_and_port(address):
    with pytest.raises(InvalidArgumentError, match="an address is HOST:PORT"):
        split_address(address)


def test_a_host_that_does_not_exist():
    with pytest.raises(OSError, match=r"cannot listen at nowhere\.invalid:7000: ") as caught:
        GrpcPost("nowhere.invalid:7000", insecure=True)
    assert "\n" not in str(caught.value)


def test_an_address_of_another_machine():
    with pytest.raises(OSError, match=r"cannot listen at 192\.0\.2\.1:7000: Cannot assign"):
        GrpcPost("192.0.2.1:7000", insecure=True)


def test_a_taken_port_is_an_error_of_one_line_and_nothing_is_printed(post):
    """In a process of its own, for what gRPC itself writes to the standard error."""
    taken = post()
    program = (
        "import sys\n"
        "from cdcmeta.scheduler.transport.grpc_post import GrpcPost\n"
        "try:\n"
        "    GrpcPost(sys.argv[1])\n"
        "except OSError as e:\n"
        "    print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, taken.address],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    said = f"cannot listen at {taken.address}: Address already in use; is the port taken"
    assert done.stdout.startswith(said)
    assert done.stdout.count("\n") == 1
    assert (done.returncode, done.stderr) == (0, "")


@needs_ipv6
def test_a_name_of_which_one_address_is_taken(post):
    """Else some of its peers would reach another process."""
    taken = post()
    with pytest.raises(OSError, match="Address already in use"):
        GrpcPost(f"localhost:{taken.port}")


# --- TLS ---


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return make_certificates(folder / "ours"), make_certificates(folder / "foreign")


def tls_of(certificates, name="server", key=None):
    paths = certificates.ca, certificates.cert(name), certificates.key(key or name)
    return Tls(*map(str, paths))


def client_of(authority, owner=None, name="client"):
    key, cert = (None, None)
    if owner is not None:
        key, cert = owner.key(name).read_bytes(), owner.cert(name).read_bytes()
    return grpc.ssl_channel_credentials(authority.ca.read_bytes(), key, cert)


def test_captures_of_one_authority_reach_each_other(certificates, post):
    tls = tls_of(certificates[0])
    one, other = post(tls=tls), post("localhost:0", tls=tls)
    exchanges(one, other)
    exchanges(other, one)


def test_tls_lets_other_machines_in(certificates, post):
    tls = tls_of(certificates[0])
    receiver = post("0.0.0.0:0", tls=tls, advertise="127.0.0.1:7")
    ours = client_of(certificates[0], certificates[0])
    with foreign_client(f"127.0.0.1:{receiver.port}", ours) as call:
        call(call_of(("feed", request(1))), timeout=WAIT_S)
    assert len(receiver.receive()) == 1


@pytest.mark.parametrize("who", ["plain", "without a certificate", "of another authority"])
def test_a_foreign_client_is_rejected(who, certificates, post):
    ours, foreign = certificates
    receiver = post(tls=tls_of(ours))
    credentials = {
        "plain": None,
        "without a certificate": client_of(ours),
        "of another authority": client_of(ours, foreign),
    }[who]
    with foreign_client(receiver.address, credentials) as call:
        with pytest.raises(grpc.RpcError) as caught:
            call(call_of(("feed", request(1))), timeout=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with foreign_client(receiver.address, client_of(ours, ours)) as call:
        call(call_of(("feed", request(2))), timeout=WAIT_S)
    assert received(receiver, 1) == [("feed", request(2))]


@pytest.mark.parametrize("who", ["plain", "of another authority", "without its name"])
def test_a_post_sends_nothing_to_a_foreign_server(who, certificates, caplog, post):
    """The certificate of a server names the host that was asked for."""
    ours, foreign = certificates
    receiver = {
        "plain": lambda: post(),
        "of another authority": lambda: post(tls=tls_of(foreign)),
        "without its name": lambda: post("127.0.0.2:0", tls=tls_of(ours)),
    }[who]()
    sender = post(tls=tls_of(ours))

    def is_logged():
        sender.send(receiver.address, "feed", request(1))
        return f"messages to {receiver.address} are lost" in caplog.text

    eventually(is_logged, "what the log says")
    assert receiver.receive() == []


def test_files_of_tls_that_do_not_fit(certificates, tmp_path):
    ours = certificates[0]
    noise = tmp_path / "noise.pem"
    noise.write_bytes(b"\x00noise")
    encrypted = tmp_path / "encrypted.pem"
    command = ["openssl", "pkcs8", "-topk8", "-v2", "aes256", "-passout", "pass:secret"]
    subprocess.run([*command, "-in", ours.key("server"), "-out", encrypted], check=True)
    good = ours.ca, ours.cert("server"), ours.key("server")
    for place, path in [
        (0, noise),
        (1, noise),
        (2, noise),
        (2, ours.key("client")),
        (2, encrypted),
        (2, tmp_path / "missing.pem"),
    ]:
        files = [*map(str, good)]
        files[place] = str(path)
        with pytest.raises(OSError, match=path.name) as caught:
            GrpcPost(tls=Tls(*files))
        assert "\n" not in str(caught.value)


def test_the_files_of_tls_are_read_once(certificates, tmp_path, post):
    copied = tmp_path / "copied"
    shutil.copytree(certificates[0].folder, copied)
    files = [str(copied / name) for name in ("ca.crt", "server.crt", "server.key")]
    receiver, sender = post(tls=Tls(*files)), post(tls=Tls(*files))
    shutil.rmtree(copied)
    exchanges(sender, receiver)
