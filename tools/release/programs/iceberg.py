"""An archive is published for readers of Iceberg."""

import subprocess
import sys
from pathlib import Path

import snapkv

with snapkv.open("lmdb:published") as store:
    for number in range(5):
        store.save("a", b"%d" % number)
snapkv.record("lmdb:published", into="tables").catch_up()
program = Path(sys.executable).with_name("snapkv")
line = [str(program), "archive", "publish", "tables", "--iceberg"]
subprocess.run(line, check=True, timeout=120)
assert list(Path("tables").rglob("*.metadata.json")), "no metadata of Iceberg was written"
