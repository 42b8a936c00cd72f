"""Build the image of the Dockerfile, and try what its users rely on.

    python -m tools.image [--keep FOLDER]

It takes Docker or Podman where an engine answers. Otherwise it runs the steps of the Dockerfile in
folders that become roots of their own, with this machine's Python and /usr instead of the base
image, which needs root's rights and `unshare`. Packages come from the index that pip uses.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tools.release.checklist import CheckFailed, LeftOut

ROOT = Path(__file__).parents[1]
DATA = "/var/lib/snapkv"
BUILD_S, RUN_S = 900, 60
TAG = "snapkv-check"
SEEN_FROM_HOST = ("/usr", "/bin", "/lib", "/lib64", "/etc", sys.base_prefix)
"""What a fresh root has of the machine, read-only, in place of the base image."""
CHECKS = (
    ("it runs as 10001", "id -u", "10001"),
    ("its root is read-only", "touch /new 2>&1 || echo refused", "refused"),
    ("snapkv runs", "snapkv --version", "snapkv"),
    ("cdcmeta runs", "cdcmeta --version", "cdcmeta"),
    ("a store is made", f"snapkv put a 1 --store lmdb:{DATA}/meta", "Z"),
    ("and read by another process", f"snapkv get a --store lmdb:{DATA}/meta", "1"),
    ("the probe answers", f"snapkv health --store lmdb:{DATA}/meta", ""),
    ("the extras are installed", "python -c 'import cdcmeta.metrics, snapkv.ui, kubernetes'", ""),
)


class Image(Protocol):
    """What was built, and a volume for its data."""

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of its shell, as its user, on a read-only root."""


def main(words: Sequence[str] | None = None) -> int:
    """Build, try, and print each check; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.image", description=__doc__)
    parser.add_argument("--keep", type=Path, help="the folder of the fresh roots")
    keep = parser.parse_args(words).keep
    engine = next((each for each in ("docker", "podman") if _answers(each)), None)
    failed = 0
    with _folder(keep) as folder:
        image: Image = EngineImage(engine, folder) if engine else FreshRoots(folder).build()
        print(f"built by {engine or 'the steps in fresh roots'}")
        for what, command, expected in CHECKS:
            done = image.run(command)
            good = done.returncode == 0 and expected in done.stdout
            failed += not good
            print(f"{'ok' if good else 'FAILED'}  {what}")
            if not good:
                print(done.stdout, done.stderr, sep="\n")
    return 1 if failed else 0


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True)  # not one that exists: roots are fresh
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="snapkv-image-") as folder:
        yield Path(folder)


def _answers(engine: str) -> bool:
    """Return whether an engine answers; its client alone is not enough."""
    if not shutil.which(engine):
        return False
    return subprocess.run([engine, "info"], capture_output=True, timeout=RUN_S).returncode == 0


class EngineImage:
    """The image as Docker or Podman builds and runs it."""

    def __init__(self, engine: str, folder: Path) -> None:
        self._engine, self._data = engine, folder / "data"
        subprocess.run([engine, "build", "--tag", TAG, str(ROOT)], check=True, timeout=BUILD_S)
        self._data.mkdir()
        self._data.chmod(0o777)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of its shell."""
        volume = ("--volume", f"{self._data}:{DATA}")
        words = [self._engine, "run", "--rm", "--read-only", "--tmpfs", "/tmp", *volume]  # noqa: S108
        words += ["--network", "none", "--entrypoint", "sh", TAG, "-c", command]
        return subprocess.run(words, capture_output=True, text=True, timeout=RUN_S)


def steps(text: str) -> Iterator[tuple[str, str]]:
    r"""Yield instruction and argument of each line of a Dockerfile.

    >>> list(steps("# a comment\nFROM a \\\n  AS b\nUSER 1\n"))
    [('FROM', 'a AS b'), ('USER', '1')]
    """
    joined = re.sub(r"\\\n\s*", "", text)
    for line in joined.splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, argument = line.partition(" ")
            yield name, argument.strip()


class FreshRoots:
    """The steps of the Dockerfile, each stage in a folder that becomes the root of its steps."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() or not shutil.which("unshare"):
            raise LeftOut("no Docker or Podman answers; fresh roots need root's rights and unshare")
        self._folder, self._stages = folder, dict[str, Path]()
        self._arguments: dict[str, str] = {}
        self._root, self._user, self._env = folder, "0:0", {"PATH": "/usr/local/bin:/usr/bin:/bin"}

    def build(self) -> FreshRoots:
        """Run all steps."""
        for name, argument in steps((ROOT / "Dockerfile").read_text()):
            getattr(self, f"_on_{name.lower()}")(argument)
        return self

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the last stage's shell, as its user, on a read-only root."""
        return self._entered(command, self._user, {}, root_mode="ro")

    # --- instructions ---

    def _on_from(self, argument: str) -> None:
        name = argument.partition(" AS ")[2] or str(len(self._stages))
        self._root = self._stages[name] = self._folder / name
        self._user, self._env = "0:0", {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        for each in (*SEEN_FROM_HOST, "/dev", "/proc", "/tmp", DATA):  # noqa: S108
            (self._root / each[1:]).mkdir(parents=True, exist_ok=True)

    def _on_copy(self, argument: str) -> None:
        *options, source, target = shlex.split(argument)
        to = self._root / target[1:]
        if options:
            stage = self._stages[options[0].removeprefix("--from=")]
            shutil.copytree(stage / source[1:], to, symlinks=True)
            return
        for line in (ROOT / ".dockerignore").read_text().splitlines():
            if line.startswith("!"):
                each = ROOT / line[1:]
                copy = shutil.copytree if each.is_dir() else shutil.copy
                to.mkdir(parents=True, exist_ok=True)
                copy(each, to / line[1:])

    def _on_run(self, argument: str) -> None:
        passed = dict(self._arguments)
        passed |= {k: v for k, v in os.environ.items() if k[:4] == "PIP_" or "proxy" in k.lower()}
        done = self._entered(argument, self._user, passed, root_mode="rw")
        if done.returncode:
            raise CheckFailed(f"RUN {argument}\n{done.stdout}\n{done.stderr}")

    def _on_arg(self, argument: str) -> None:
        name, _, default = argument.partition("=")
        self._arguments[name] = default

    def _on_env(self, argument: str) -> None:
        self._env |= dict(word.split("=", 1) for word in shlex.split(argument))

    def _on_user(self, argument: str) -> None:
        self._user = argument

    def _nothing(self, argument: str) -> None:
        """Ignore an instruction that needs an engine, or that has no effect on `run`."""

    _on_workdir = _on_entrypoint = _on_cmd = _nothing

    # --- a root ---

    def _entered(
        self, command: str, user: str, more: dict[str, str], *, root_mode: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command in a mount namespace; its root is the folder of the stage."""
        root = shlex.quote(str(self._root))
        mounts = [f"mount --bind {root} {root}"]
        for each in SEEN_FROM_HOST:
            place = f"{root}{shlex.quote(each)}"
            mounts += [f"mount --bind {each} {place}", f"mount -o remount,bind,ro {place}"]
        mounts += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        mounts += [f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp"]  # noqa: S108
        mounts += [f"mount --bind {root}{DATA} {root}{DATA}"]
        mounts += [f"mount -o remount,bind,{root_mode} {root}"]
        path = self._env["PATH"].replace("/usr/local/bin", f"{sys.base_prefix}/bin")
        env = {**self._env, **more, "PATH": path, "HOME": "/tmp"}  # noqa: S108
        words = " ".join(shlex.quote(f"{k}={v}") for k, v in env.items())
        inner = f"exec chroot --userspec={user} {root} env -i {words} sh -c {shlex.quote(command)}"
        script = "set -e; " + "; ".join([*mounts, inner])
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            capture_output=True,
            text=True,
            timeout=BUILD_S if root_mode == "rw" else RUN_S,
        )


if __name__ == "__main__":
    sys.exit(main())
