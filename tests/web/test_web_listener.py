"""Where a server listens, and where it does not without a login."""

import socket

import pytest

from snapkv.errors import InvalidOptionError
from snapkv.web import HOST, Listener, check_exposure

from .conftest import LOGIN, WAIT_S


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_a_login(host):
    with pytest.raises(InvalidOptionError, match="--insecure"):
        check_exposure(host, None)
    with pytest.raises(InvalidOptionError, match="insecure=True"):
        Listener(host, 0)


@pytest.mark.parametrize("options", [{"login": LOGIN}, {"insecure": True}])
def test_other_machines_with_a_login_or_on_purpose(options):
    listener = Listener("0.0.0.0", 0, **options)
    with listener.socket:
        assert not listener.local
        assert listener.host_names(("a.example",)) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.9.8.7"])
def test_this_machine_needs_none(host):
    listener = Listener(host, 0)
    with listener.socket:
        assert listener.local
        assert listener.host_names(("a.example",)) == {host, "a.example"}
        listener.socket.listen()
        with socket.create_connection((host, listener.port), WAIT_S):
            pass
        assert listener.url == f"http://{listener.socket.getsockname()[0]}:{listener.port}/"


def test_with_a_login_any_host_name_will_do():
    listener = Listener(HOST, 0, LOGIN)
    with listener.socket:
        assert listener.host_names() is None


def test_an_address_that_is_taken_leaves_no_socket():
    taken = Listener(HOST, 0)
    with taken.socket:
        taken.socket.listen()
        said = f"cannot listen at {HOST}:{taken.port}: another process has that port"
        with pytest.raises(OSError, match=said):
            Listener(HOST, taken.port)
    with pytest.raises(OSError, match=r"cannot listen at no\.such\.host\.invalid: "):
        Listener("no.such.host.invalid", 80)


def test_child_processes_do_not_inherit_it():
    listener = Listener(HOST, 0)
    with listener.socket:
        assert not listener.socket.get_inheritable()
