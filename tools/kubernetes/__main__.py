"""Run a control plane on loopback until Ctrl-C, or a trial.

python -m tools.kubernetes run FOLDER [--kine]
python -m tools.kubernetes trial FOLDER [SEED]
"""

from __future__ import annotations

import secrets
import signal
import sys
from pathlib import Path

from tools.kubernetes.cluster import running

WORDS = 3


def main(words: list[str]) -> None:
    """Run what the command line says."""
    if len(words) < WORDS or words[1] not in ("run", "trial"):
        raise SystemExit(
            "usage: python -m tools.kubernetes run FOLDER [--kine] | trial FOLDER [SEED]"
        )
    if words[1] == "trial":
        from tools.kubernetes import trial

        seed = int(words[WORDS]) if len(words) > WORDS else secrets.randbelow(1 << 32)
        trial.run(Path(words[2]).resolve(), seed)
        return
    with running(Path(words[2]), kine="--kine" in words) as cluster:
        print(f"export KUBECONFIG={cluster.kubeconfig} SNAPKV_STORE={cluster.etcd_url}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main(sys.argv)
