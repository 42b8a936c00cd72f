"""A network between captures of one machine: proxies that know which capture connects.

Each capture listens behind a proxy of its own, and advertises that one. So a test cuts one capture
off from another, in one direction or in both, while both reach their store.
"""

import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from etcd_server import EtcdProxy
from etcd_server.processes import free_port


class Door(EtcdProxy):
    """The proxy of one capture; messages of some senders do not pass, and none is reset."""

    def __init__(self, port, label_of):
        self._label_of, self._shut, self._senders = label_of, set(), {}
        super().__init__(SimpleNamespace(client_port=port))

    def opened(self, link):
        """Take a new connection in, of a sender that may be shut out."""
        super().opened(link)
        port = link.client.transport.get_extra_info("peername")[1]
        self._senders[link] = self._label_of(port)
        self._let(link)

    def shut(self, sender):
        """Pass nothing of a sender on, and no answer to it."""
        self.run(lambda: self._shut.add(sender) or self._let_all())

    def open(self):
        """Pass everything again; what was kept arrives late."""
        self.run(lambda: self._shut.clear() or self._let_all())

    def _let_all(self):
        for link in self.links:
            self._let(link)

    def _let(self, link):
        for end in (link.client, link.server):
            if self._senders[link] in self._shut:
                end.stop_reading("shut")
            else:
                end.read_again("shut")


class Doors:
    """The doors of all captures of `fleet`."""

    fleet = None

    def __init__(self, stack, labels):
        self._ports = {label: free_port() for label in labels}
        self._doors = {
            label: stack.enter_context(Door(port, self._label_of))
            for label, port in self._ports.items()
        }

    def start(self, label, **options):
        """Start a capture behind its door."""
        words = ["--listen", f"127.0.0.1:{self._ports[label]}"]
        words += ["--advertise", self._doors[label].endpoint]
        self.fleet.start(label, words=words, **options)

    def cut(self, sender, receiver):
        """Lose the messages of one capture to another."""
        self._doors[receiver].shut(sender)

    def heal(self):
        """Lose nothing any more."""
        for door in self._doors.values():
            door.open()

    def _label_of(self, port):
        """Return the capture that a connection from a local port belongs to."""
        files = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]  # gRPC's are of IPv6, mapped
        rows = [line.split() for file in files for line in file.read_text().splitlines()[1:]]
        inodes = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}")}
        processes = list(self.fleet.processes.items())
        return next((label for label, each in processes if has_open(each.pid, inodes)), None)


def has_open(pid, files):
    """Return whether a process has one of these files open; False for one that has ended."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return False
    for each in descriptors:
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{each}") in files:
                return True
    return False
