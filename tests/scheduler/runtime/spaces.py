"""A network between captures of one machine: a namespace for each, and a bridge between them.

Packets are lost as on a real network: silently, in one direction, and not those to the store, which
is at the bridge. It needs the right to make network namespaces; `may_make` returns whether a
process has it. The addresses are those that RFC 2544 sets aside for tests of networks.
"""

import os
import shutil
import subprocess

from etcd_server import EtcdServer, make_certificates

NETWORK, PORT = f"198.18.{os.getpid() % 250 + 1}", 7000
HUB = f"{NETWORK}.1"
NOWHERE = "02:00:00:00:00:01"
"""An address that no device has."""


def run(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, **options)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def may_make():
    """Return whether this process may make network namespaces and bridges."""
    if shutil.which("ip") is None:
        return False
    probe = f"cap{os.getpid()}p"
    ways = {("netns",): (), ("link",): ("type", "bridge")}
    made = [way for way, kind in ways.items() if ip(*way, "add", probe, *kind).returncode == 0]
    for way in made:
        run("ip", *way, "delete", probe)
    return len(made) == len(ways)


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, timeout=30)


class EtcdAtBridge(EtcdServer):
    """A node that also listens at the bridge."""

    @property
    def url(self):
        return f"etcd://{HUB}:{self.client_port}"

    def choose_ports(self):
        super().choose_ports()
        here = f"http://{self.endpoint},http://{HUB}:{self.client_port}"
        flags = [flag for flag in self._flags if not flag.startswith("--listen-client-urls")]
        self._flags = [*flags, f"--listen-client-urls={here}"]


class Spaces:
    """A namespace for each capture of `fleet`; they speak TLS, for they are beyond loopback."""

    fleet = None

    def __init__(self, stack, folder, labels):
        self._addresses = {label: f"{NETWORK}.{n}" for n, label in enumerate(labels, 2)}
        self._names = {label: f"cap{os.getpid()}-{label}" for label in labels}
        self._tls = self._certificates(folder / "tls")
        bridge = f"cap{os.getpid()}"
        run("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(run, "ip", "link", "delete", bridge)
        run("ip", "address", "add", f"{HUB}/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for label, name in self._names.items():
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "delete", name)
            port = f"{bridge}{label}"
            run(*f"ip link add {port} type veth peer name net0 netns {name}".split())
            stack.callback(run, "ip", "link", "delete", port)  # a namespace ends later
            run(*f"ip link set {port} master {bridge} up".split())
            self._in(label, f"address add {self._addresses[label]}/24 dev net0")
            self._in(label, "link set net0 up")
            self._in(label, "link set lo up")

    def start(self, label, **options):
        """Start a capture in its namespace."""
        words = ["--listen", f"{self._addresses[label]}:{PORT}", *self._tls]
        before = ["ip", "netns", "exec", self._names[label]]
        self.fleet.start(label, words=words, before=before, **options)

    def cut(self, sender, receiver):
        """Lose the packets of one capture to another."""
        to = self._addresses[receiver]
        self._in(sender, f"neighbour replace {to} lladdr {NOWHERE} dev net0 nud permanent")

    def heal(self):
        """Lose nothing any more."""
        for label in self._names:
            self._in(label, "neighbour flush dev net0 nud permanent")

    def _in(self, label, words):
        run("ip", "-netns", self._names[label], *words.split())

    def _certificates(self, folder):
        """Make a certificate that names all captures; return the options."""
        made = make_certificates(folder)
        names = ",".join(f"IP:{address}" for address in self._addresses.values())
        uses = "extendedKeyUsage=serverAuth,clientAuth"
        (folder / "captures.ext").write_text(f"subjectAltName={names}\n{uses}\n")
        request = ["-in", "server.csr", "-out", "captures.crt", "-extfile", "captures.ext"]
        by = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        run("openssl", "x509", "-req", *request, *by, cwd=folder)
        files = {"ca": made.ca, "cert": folder / "captures.crt", "key": made.key("server")}
        return [word for what, path in files.items() for word in (f"--tls-{what}", str(path))]
