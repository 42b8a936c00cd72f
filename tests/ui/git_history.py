"""A git repository with a history of a platform's configuration, and a store made from it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import snapkv
from snapkv import ManualClock

FIRST_S = 1_789_980_000  # 21 September 2026
DAY_S = 86_400
AUTHORS = ("ann", "bob", "deploy-bot")


def manifest(name: str, image: str, replicas: int, **env: str) -> str:
    """Return a deployment as JSON, indented as people commit it."""
    container = {
        "name": name,
        "image": image,
        "env": [{"name": k, "value": v} for k, v in env.items()],
    }
    return (
        json.dumps(
            {
                "kind": "Deployment",
                "metadata": {"name": name, "labels": {"app": name, "tier": "web"}},
                "spec": {"replicas": replicas, "template": {"containers": [container]}},
            },
            indent=2,
        )
        + "\n"
    )


def settings(**values: object) -> str:
    """Return settings as YAML."""
    return "".join(f"{name}: {value}\n" for name, value in values.items())


def hosts(*names: str) -> str:
    """Return a text with a line for each host."""
    return "".join(f"{name:<10} {len(name)} cores, do not restart by day\n" for name in names)


@dataclass(frozen=True)
class Edit:
    """A commit: seconds after the first, author, subject, files (None: removed)."""

    after_s: int
    author: str
    subject: str
    files: dict[str, str | None]


def edits() -> Iterator[Edit]:
    """Yield the commits; some days are busy, as when something breaks."""
    ann, bob, bot = AUTHORS
    shop = "deployments/shop"
    yield Edit(0, ann, "Describe the shop", {
        f"{shop}/web.json": manifest("web", "shop-web:1.4.0", 2, LOG="info"),
        f"{shop}/cart.json": manifest("cart", "shop-cart:2.0.1", 2, LOG="info", CACHE="on"),
        "services/web.yaml": settings(port=8080, timeout="30s", retries=2),
        "README": "Configuration of the shop.\n",
        "hosts": hosts("web-1", "web-2", "cart-1"),
    })  # fmt: skip
    yield Edit(DAY_S, bob, "Add the payment service", {
        f"{shop}/payment.json": manifest("payment", "payment:0.9.0", 1, LOG="debug"),
        "services/payment.yaml": settings(port=9000, timeout="5s", retries=0),
        "hosts": hosts("web-1", "web-2", "cart-1", "payment-1"),
    })  # fmt: skip
    for number in range(1, 13):
        yield Edit(DAY_S + number * DAY_S // 4, bot, f"Deploy shop-web 1.4.{number}", {
            f"{shop}/web.json": manifest("web", f"shop-web:1.4.{number}", 2, LOG="info"),
        })  # fmt: skip
    busy = 5 * DAY_S
    yield Edit(busy, bob, "Retry payments, which time out", {
        "services/payment.yaml": settings(port=9000, timeout="5s", retries=5),
    })  # fmt: skip
    for number in range(8):
        yield Edit(busy + 600 + number * 420, ann, f"Try {3 + number} replicas of cart", {
            f"{shop}/cart.json": manifest(
                "cart", "shop-cart:2.0.1", 3 + number, LOG="debug", CACHE="on"
            ),
        })  # fmt: skip
    yield Edit(busy + 5_400, ann, "Turn the cache of cart off: it served old prices", {
        f"{shop}/cart.json": manifest("cart", "shop-cart:2.0.2", 3, LOG="info", CACHE="off"),
        "services/web.yaml": settings(port=8080, timeout="10s", retries=2),
        "hosts": hosts("web-1", "web-9", "cart-1", "cart-2", "payment-1"),
        "NOTES": "# What happened\n\nThe cache of cart served old prices.\n",
    })  # fmt: skip
    yield Edit(6 * DAY_S, bob, "Remove the notes, they are in the wiki", {"NOTES": None})
    yield Edit(7 * DAY_S, bot, "Deploy payment 1.0.0 <stable>", {
        f"{shop}/payment.json": manifest("payment", "payment:1.0.0", 3, LOG="info"),
        "services/payment.yaml": settings(port=9000, timeout="15s", retries=3, currency="EUR"),
    })  # fmt: skip


class GitHistory:
    """The repository, in a folder of its own, and answers of git itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        for edit in edits():
            for name, text in edit.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if text is None:
                    path.unlink()
                else:
                    path.write_text(text)
            self.git("add", "--all")
            self.git(
                "commit",
                "--quiet",
                "-m",
                edit.subject,
                author=edit.author,
                at=FIRST_S + edit.after_s,
            )

    def git(self, *words: str, author: str = "x", at: int = 0) -> str:
        """Run git; return what it prints."""
        date = f"{at} +0000"
        variables = {
            "GIT_AUTHOR_NAME": author, "GIT_AUTHOR_EMAIL": "x@example.org", "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_NAME": author, "GIT_COMMITTER_EMAIL": "x@example.org",
            "GIT_COMMITTER_DATE": date, "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
        }  # fmt: skip
        done = subprocess.run(
            ["git", *words], cwd=self.folder, env={**os.environ, **variables},
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return done.stdout

    def hashes(self) -> list[str]:
        """Return the commits, oldest first."""
        return self.git("log", "--reverse", "--format=%H").split()

    def changed(self, commit: str) -> list[str]:
        """Return the files of a commit, each with A, M or D and a tab before it."""
        shown = self.git("show", "--format=", "--name-status", "--no-renames", commit)
        return shown.splitlines()

    def import_into(self, url: str) -> list[int]:
        """Commit each commit to a store, at its own time, by its author; return the timestamps."""
        clock, made = ManualClock(), []
        stores = {name: snapkv.open(url, writer=name, clock=clock) for name in AUTHORS}
        for commit in self.hashes():
            author, at, subject = self.git(
                "log", "-1", "--format=%an%n%at%n%s", commit
            ).splitlines()
            clock.set(int(at) * 1_000)
            puts, deletes = {}, []
            for line in self.changed(commit):
                status, name = line.split("\t")
                if status == "D":
                    deletes.append(name)
                else:
                    puts[name] = self.git("show", f"{commit}:{name}").encode()
            made.append(stores[author].commit(puts=puts, deletes=deletes, note=subject).ts)
        for store in stores.values():
            store.close()
        return made
