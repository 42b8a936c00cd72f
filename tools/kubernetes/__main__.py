"""Run a control plane on loopback until Ctrl-C: `python -m tools.kubernetes run FOLDER`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tools.kubernetes.cluster import running

WORDS = 3


def main(words: list[str]) -> None:
    """Run what the command line says."""
    if len(words) < WORDS or words[1] != "run":
        raise SystemExit("usage: python -m tools.kubernetes run FOLDER [--kine]")
    with running(Path(words[2]), kine="--kine" in words) as cluster:
        print(f"export KUBECONFIG={cluster.kubeconfig} SNAPKV_STORE={cluster.etcd_url}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main(sys.argv)
