"""moto's server in a process of its own."""

from __future__ import annotations

import itertools
import sys
import tempfile
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

from etcd_server.processes import eventually, free_port, keeper

BUCKET = "archives"
KEY_ID, SECRET = "AKIDTEST", "secret-of-the-test"
STORAGE = {"allow_http": True, "access_key_id": KEY_ID, "secret_access_key": SECRET}
READY_S = 60.0

_numbers = itertools.count()


class S3Server:
    """A server with one bucket, `BUCKET`; it accepts every key and every signature."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._log = folder / "moto.log"
        self._child = keeper.start(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            self._log,
        )
        eventually(self._is_ready, "moto's server", wait_s=READY_S)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage(self) -> dict[str, Any]:
        """Options for archives in this server."""
        return STORAGE | {"endpoint": self.endpoint, "region": "us-east-1"}

    def new_url(self) -> str:
        """Return the URL of a path that no other test uses."""
        return f"s3://{BUCKET}/{next(_numbers)}"

    def close(self) -> None:
        keeper.end(self._child, grace_s=0)

    def _is_ready(self) -> bool:
        assert self._child.poll() is None, self._log.read_text()
        asked = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        try:
            with urllib.request.urlopen(asked, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@cache
def shared_server() -> S3Server:
    """Return the one server of this process's tests, started when it is first needed."""
    return S3Server(Path(tempfile.mkdtemp(prefix="snapkv-moto-")))


def close_shared_server() -> None:
    """End the shared server, if there is one."""
    if shared_server.cache_info().currsize:
        shared_server().close()
        shared_server.cache_clear()
