"""The certificate authorities that the system trusts, for gRPC, which has its own."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from pathlib import Path

GRPC_VARIABLE = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
_CERTIFICATE = re.compile(b"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")
"""What OpenSSL looks for in a folder: other files there are not trusted."""


def system_authorities() -> bytes | None:
    """Return the authorities that OpenSSL trusts, as PEM, from its file and folders, or None.

    The variables SSL_CERT_FILE and SSL_CERT_DIR replace the system's places, as in OpenSSL.
    Without them gRPC's own variable takes precedence; gRPC reads it.
    """
    places = ssl.get_default_verify_paths()
    ours = (places.openssl_cafile_env, places.openssl_capath_env)
    if GRPC_VARIABLE in os.environ and not any(name in os.environ for name in ours):
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
