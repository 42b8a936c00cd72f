"""Draw docs/pictures/terminal.svg from what the commands really print.

`python docs/draw_terminal.py`, after a change of what they print.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

import snapkv

PICTURE = Path(__file__).parent / "pictures" / "terminal.svg"
COLUMNS, TIMEOUT_S = 92, 60
COMMANDS = [
    "snapkv log",
    "snapkv diff '2026-01-31 14:00'",
    "snapkv blame web/config",
    "snapkv restore '2026-01-31 14:00' --prefix web/ --dry-run",
]
THEME = TerminalTheme(
    (24, 30, 39),
    (222, 229, 237),
    [(60, 70, 82), (239, 120, 110), (126, 201, 134), (229, 192, 123), (110, 170, 245),
     (200, 150, 230), (110, 200, 205), (222, 229, 237)],
    [(125, 140, 155), (255, 140, 130), (150, 220, 158), (245, 210, 145), (140, 190, 255),
     (215, 170, 240), (140, 220, 225), (255, 255, 255)],
)  # fmt: skip


def fill(url: str) -> None:
    """Commit a small history of 31 January 2026."""
    clock = snapkv.ManualClock()
    old, new = b'{"image": "web:1.25", "replicas": 2}', b'{"image": "web:1.26", "replicas": 20}'
    with snapkv.open(url, clock=clock) as store:

        def at(hour: int, minute: int) -> None:
            moment = datetime(2026, 1, 31, hour, minute, 7, 412_000, UTC)
            clock.set(int(moment.timestamp() * 1000))

        at(9, 12)
        store.commit(
            puts={"web/config": old, "web/limits": b"cpu: 1"}, note="first release", writer="ann"
        )
        at(11, 40)
        store.save("mail/config", b'{"host": "mail.example"}', writer="carol")
        at(14, 5)
        store.save("web/config", new, note="release 1.26", writer="bob")
        at(14, 6)
        store.remove("web/limits", note="not needed any more?", writer="bob")


def shown(command: str, environment: dict[str, str], folder: str) -> str:
    """Run a command of snapkv on a terminal; return what it prints, with its colours."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "snapkv.cli", *shlex.split(command)[1:]],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder,
    ) as process:  # fmt: skip
        os.close(theirs)
        read = b""
        try:
            while chunk := os.read(ours, 4096):
                read += chunk
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        process.wait(TIMEOUT_S)
    return read.decode().replace("\r\n", "\n")


def draw() -> str:
    """Return the picture."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        fill(f"lmdb:{folder}/meta")
        environment = os.environ | {
            "SNAPKV_STORE": "lmdb:./meta",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "TERM": "xterm-256color",
            "COLUMNS": str(COLUMNS),
            "TZ": "UTC",
            "SNAPKV_PAGER": "",
        }
        environment.pop("NO_COLOR", None)
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bright_black"), (command, "bold")))
            console.print(Text.from_ansi(shown(command, environment, folder).rstrip()))
            console.print()
    svg = console.export_svg(title="snapkv", theme=THEME, unique_id="terminal")
    # The picture loads nothing: the reader's own font of fixed width replaces that of rich.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "ui-monospace, DejaVu Sans Mono, Menlo, Consolas")


if __name__ == "__main__":
    PICTURE.write_text(draw())
