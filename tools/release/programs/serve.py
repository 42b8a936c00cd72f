"""The server that the command line names, such as `snapkv ui`, serves a store until SIGTERM."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import snapkv

LINE_S = 60

with snapkv.open("lmdb:store") as store:
    store.save("a", b"1")
program = Path(sys.executable).with_name(sys.argv[1])
line = [str(program), *sys.argv[2:], "--port", "0", "--store", "lmdb:store"]
server = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
try:
    ready = server.stderr.readline()
    if "http://" not in ready:
        sys.exit(f"{' '.join(line)} said {ready}{server.stderr.read()}")
    with urllib.request.urlopen(ready.split()[-1], timeout=LINE_S) as answer:
        assert answer.status == 200
finally:
    server.terminate()
assert server.wait(LINE_S) in (0, -15), server.stderr.read()
