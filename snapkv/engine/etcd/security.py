"""TLS and logins: certificates, users and passwords, from options and the environment."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from snapkv.engine.etcd.options import VARIABLES
from snapkv.errors import InvalidOptionError

# --- the certificate authorities that the system trusts, for gRPC, which has its own ---

GRPC_ROOTS = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
_CERTIFICATE = re.compile(b"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")
"""The names that OpenSSL looks for in a folder: other files in it are not trusted."""


def system_authorities() -> bytes | None:
    """Return the authorities that OpenSSL trusts, as PEM, from its file and folders, or None.

    The variables SSL_CERT_FILE and SSL_CERT_DIR replace the system's places, as in OpenSSL.
    Without them gRPC's own variable takes precedence; gRPC reads it.
    """
    places = ssl.get_default_verify_paths()
    ours = (places.openssl_cafile_env, places.openssl_capath_env)
    if GRPC_ROOTS in os.environ and not any(name in os.environ for name in ours):
        return None
    file = os.environ.get(places.openssl_cafile_env, places.openssl_cafile)
    folders = os.environ.get(places.openssl_capath_env, places.openssl_capath)
    paths = [Path(file)] if file else []
    for folder in filter(None, folders.split(os.pathsep)):
        with contextlib.suppress(OSError):
            paths += sorted(p for p in Path(folder).iterdir() if _HASHED.fullmatch(p.name))
    found: dict[bytes, None] = {}  # most are in the file and in the folder
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            found.update(dict.fromkeys(_CERTIFICATE.findall(path.read_bytes())))
    return b"\n".join(found) + b"\n" if found else None


# --- security ---


@dataclass(frozen=True, slots=True)
class Security:
    """The certificates of TLS, as PEM bytes; `tls` False means a plain connection."""

    tls: bool = False
    ca: bytes | None = None
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    paths: tuple[str | None, str | None, str | None] = (None, None, None)

    @classmethod
    def of(
        cls, tls: bool | None, ca_cert: str | None, cert: str | None, key: str | None
    ) -> Security:
        """Read certificates from their files; the environment names files that are not given.

        An empty path means no certificate, whatever the environment says. Raises
        `InvalidOptionError` when a file cannot be read or half of a pair is missing.
        """
        paths = (
            _or_variable(ca_cert, "ca_cert"),
            _or_variable(cert, "cert"),
            _or_variable(key, "key"),
        )
        if tls is False or (tls is None and not any(paths)):
            if any((ca_cert, cert, key)):
                raise InvalidOptionError("certificates are given, but tls=False")
            return cls()
        if (paths[1] is None) != (paths[2] is None):
            raise InvalidOptionError("a client certificate needs both cert= and key=")
        ca_pem, cert_pem, key_pem = (_pem(path) for path in paths)
        return cls(True, ca_pem, cert_pem, key_pem, paths)

    def authorities(self) -> bytes | None:
        """Return the authorities to trust, for gRPC: `ca_cert`, or the system's."""
        return self.ca or system_authorities()

    def context(self) -> ssl.SSLContext | None:
        """Return the same for HTTPS, None without TLS. Raises `InvalidOptionError` if unusable."""
        if not self.tls:
            return None
        path, cert_path, key_path = self.paths
        try:
            context = ssl.create_default_context(cadata=self.ca.decode() if self.ca else None)
            path = f"{cert_path}, {key_path}"
            if cert_path:
                # without a password of its own OpenSSL asks the terminal for one
                context.load_cert_chain(cert_path, key_path, password="")
        except (OSError, ValueError) as e:
            raise InvalidOptionError(f"{path}: not usable for TLS: {e}") from e
        return context


def _or_variable(given: str | None, option: str) -> str | None:
    return (os.environ.get(VARIABLES[option]) if given is None else given) or None


def _pem(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        pem = Path(path).read_bytes()
    except PermissionError as e:
        advice = "run as its owner, or give this user a copy"
        raise InvalidOptionError(f"{path}: {e.strerror}: {advice}") from e
    except (OSError, ValueError) as e:
        raise InvalidOptionError(f"{path}: {getattr(e, 'strerror', None) or e}") from e
    if b"-----BEGIN" not in pem:
        raise InvalidOptionError(f"{path} does not hold PEM")
    return pem


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and its password, which is never shown."""

    user: str
    password: str = field(repr=False)

    @classmethod
    def of(cls, user: str | None, password: str | None) -> Credentials | None:
        """Return the login that is given or in the environment; None without a user.

        Two empty texts mean no login, whatever the environment says. Raises
        `InvalidOptionError` for half of a pair.
        """
        if user is None and password is None:
            user = os.environ.get(VARIABLES["user"]) or None
        if user is not None and password is None:
            password = os.environ.get(VARIABLES["password"])
        return None if user == password == "" else cls.given(user, password)

    @classmethod
    def given(cls, user: str | None, password: str | None) -> Credentials | None:
        """Return what was given, and nothing else; None when neither was. Raises as `of`."""
        if user is None and password is None:
            return None
        if not user or password is None:
            raise InvalidOptionError("user= and password= go together: give both, or neither")
        if not (_is_text(user) and _is_text(password)):
            raise InvalidOptionError("user and password must be valid UTF-8")
        return cls(user, password)


def _is_text(text: str) -> bool:
    """Return whether a text can be sent. Raises nothing: an error would contain the text."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
