"""Certificates for one test, made with the `openssl` program: a CA, a server's and a client's."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

_DAYS = "2"
_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1\n"
# etcd's JSON gateway calls its own node with the server's certificate: it is a client too.
_USES = "extendedKeyUsage=serverAuth,clientAuth\n"
_IDS = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"


@dataclass(frozen=True)
class Certificates:
    """Files of keys and certificates, and whether the server asks clients for theirs."""

    folder: Path
    client_auth: bool

    @property
    def ca(self) -> Path:
        """The certificate that signed the others."""
        return self.folder / "ca.crt"

    def cert(self, name: str) -> Path:
        """The certificate of "server" or of "client"."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """The private key of "server" or of "client"."""
        return self.folder / f"{name}.key"

    def context(self) -> ssl.SSLContext:
        """Return what a client of this CA needs, with the client's certificate."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.cert("client"), self.key("client"))
        return context

    def flags(self) -> list[str]:
        """Return etcd's options."""
        flags = [f"--cert-file={self.cert('server')}", f"--key-file={self.key('server')}"]
        if self.client_auth:
            flags += ["--client-cert-auth", f"--trusted-ca-file={self.ca}"]
        return flags


def make_certificates(
    folder: Path, *, client_auth: bool = False, client_name: str = "client"
) -> Certificates:
    """Make a CA, a certificate for 127.0.0.1 and localhost, and one for a client; 0.1 s.

    `client_name` is the client's common name: etcd with authentication takes it for the user.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.ext").write_text(_NAMES + _USES + _IDS)
    (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n" + _IDS)
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    ca = ("-keyout", "ca.key", "-out", "ca.crt", "-days", _DAYS, "-subj", "/CN=test CA")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl(folder, "req", "-x509", *new_key, *ca, *usage)
    for name, common in (("server", "localhost"), ("client", client_name)):
        request = ("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={common}")
        _openssl(folder, "req", *new_key, *request)
        sign(folder, name)
    return Certificates(folder, client_auth)


def sign(folder: Path, name: str, days: str = _DAYS) -> None:
    """Sign a certificate by the folder's CA; days "-1": it was valid until yesterday."""
    signed = ("-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", f"{name}.ext")
    by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", days)
    _openssl(folder, "x509", "-req", *signed, *by)


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments], cwd=folder, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, f"openssl {' '.join(arguments)}: {done.stderr}"
