"""Peers that do not answer, that die, that come back, and very many of them: each costs little."""

import logging
import os
import socket
import threading
import time

import pytest
from etcd_server import eventually

from cdcmeta.scheduler.transport import grpc_post

from .posting import exchanges, heartbeat, request

pytestmark = pytest.mark.slow

MB = 1 << 20


@pytest.fixture
def silent():
    """An address that takes connections and never answers; all of 127.0.0.0/8 leads to it."""
    with socket.create_server(("0.0.0.0", 0), backlog=1000) as server:
        yield server.getsockname()[1]


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("how", ["a socket", "a handler"])
def test_a_peer_that_never_answers_costs_bounded_memory(how, monkeypatch, silent, foreign, post):
    """200 MB are sent, half of it heartbeats that do not replace each other."""
    monkeypatch.setattr(grpc_post, "WAITING_BYTES_MAX", 16 * MB)
    sender = post()
    address = f"127.0.0.1:{silent}" if how == "a socket" else foreign.address
    sender.send(address, "feed", request(0))
    memory, threads = resident_bytes(), threading.active_count()
    longest = 0.0
    for n in range(100):
        for each in (request(n, "t" * MB), heartbeat(n, f"{n}" + "c" * MB)):
            began = time.monotonic()
            sender.send(address, "feed", each)
            longest = max(longest, time.monotonic() - began)
    assert resident_bytes() - memory < 90 * MB
    assert threading.active_count() <= threads + 4  # 4 are those of the foreign server
    assert longest < 3  # a call takes 5 s to fail


def test_a_peer_that_never_answers_does_not_block_send(foreign, post):
    """While its handler hangs, thousands are sent to it and a call to another peer passes."""
    sender, other = post(), post()
    sender.send(foreign.address, "feed", request(0))
    eventually(lambda: foreign.calls, "the call that hangs")
    for n in range(1, 3_000):
        sender.send(foreign.address, "feed", request(n))
    exchanges(sender, other)
    assert len(foreign.calls) == 1


def test_calls_that_time_out_do_not_add_threads(monkeypatch, silent, post):
    monkeypatch.setattr(grpc_post, "CALL_S", 0.02)
    sender = post()
    address, failed = f"127.0.0.1:{silent}", []
    most = threading.active_count() + 1
    ended = grpc_post.Peer._note
    monkeypatch.setattr(grpc_post.Peer, "_note", lambda *of: failed.append(1) or ended(*of))

    def many_failed():
        sender.send(address, "feed", request(1))
        assert threading.active_count() <= most + 1
        return len(failed) > 50

    eventually(many_failed, "50 calls that time out")


def test_a_peer_that_comes_back_at_its_port_gets_messages_soon(caplog, post):
    sender, first = post(), post()
    exchanges(sender, first)
    for _ in range(3):
        first.close()

        def is_logged(address=first.address):
            sender.send(address, "feed", heartbeat(1))
            return "are lost" in caplog.text

        eventually(is_logged, "a call that fails")
        for _ in range(100):
            sender.send(first.address, "feed", heartbeat(1))
        first = post(first.address)
        exchanges(sender, first, within_s=5)
        eventually(lambda: "arrive again" in caplog.text, "what the log says")
        logged = [each.levelno for each in caplog.records]
        assert logged == [logging.WARNING, logging.WARNING]  # once for all that were lost
        caplog.clear()


def test_a_thousand_dead_addresses_leave_nothing_behind(monkeypatch, post):
    sender = post()
    sender.send("127.0.0.1:1", "feed", request(1))
    files, threads = open_files(), threading.active_count()
    for n in range(1_000):
        sender.send(f"127.0.{1 + n // 250}.{1 + n % 250}:1", "feed", request(n))
    assert len(sender._peers) == grpc_post.PEERS_MAX
    monkeypatch.setattr(grpc_post, "UNUSED_S", 0.0)
    monkeypatch.setattr(grpc_post, "TIDY_S", 0.0)
    assert sender.receive() == []  # no new peer appears
    assert not sender._peers
    eventually(lambda: open_files() <= files, "the end of the connections")
    eventually(lambda: threading.active_count() <= threads, "the end of the threads")


def test_hundreds_of_peers_that_hang_cost_bounded_threads(monkeypatch, silent, post):
    monkeypatch.setattr(grpc_post, "PEERS_MAX", 20)
    sender, other = post(), post()
    exchanges(sender, other)
    files, threads = open_files(), threading.active_count()
    for n in range(200):
        sender.send(f"127.0.1.{1 + n}:{silent}", "feed", request(n))
        assert threading.active_count() <= threads + 21
    exchanges(sender, other)
    eventually(lambda: open_files() <= files + 2 * 21, "the end of the connections")


def test_a_peer_in_use_is_kept_and_one_that_is_not_is_closed(monkeypatch, foreign, post):
    monkeypatch.setattr(grpc_post, "UNUSED_S", 0.5)
    monkeypatch.setattr(grpc_post, "TIDY_S", 0.05)
    sender, other = post(), post()
    foreign.let.set()
    sender.send(foreign.address, "feed", request(1))
    kept = set()

    def is_closed():
        sender.send(other.address, "feed", heartbeat(1))
        kept.add(sender._peers[other.address])
        return foreign.address not in sender._peers

    eventually(is_closed, "the end of the unused connection")
    assert len(kept) == 1
    sender.send(foreign.address, "feed", request(2))
    eventually(lambda: len(foreign.calls) == 2, "a call over a new connection")


@pytest.mark.parametrize(
    "address",
    ["", "nowhere", "unix:/tmp/x", "::1:7000", "host:99999", "a b:1", "ipv4:1.2.3.4:5", None],
)
def test_a_message_to_no_address_is_lost_and_logged(address, caplog, post):
    sender = post()
    sender.send(address, "feed", request(1))
    assert "a message is lost: an address is HOST:PORT" in caplog.text
    exchanges(sender, sender)


def test_a_host_without_an_address_loses_its_messages(caplog, post):
    sender = post()

    def is_logged():
        sender.send("unix:7000", "feed", request(1))
        return "messages to unix:7000 are lost" in caplog.text

    eventually(is_logged, "what the log says")
