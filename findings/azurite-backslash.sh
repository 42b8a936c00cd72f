#!/usr/bin/env bash
# Azurite takes a backslash in the name of a blob for a slash: two names are one blob.
#
# Versions: azurite 3.35.0 (npm), obstore 0.12.1 (PyPI).
# Behaviour: `a\b` and `a/b` are two valid names, and the client sends them as two (`a%5Cb`, `a/b`).
#   Azurite stores both as `a/b`: the second write replaces the first one's content, and a listing
#   has one name, which is not the one that was written. A program that lists what it wrote, and
#   compares names, misses its own blob.
# Seen (2026-11-28):
#   listed: a/b
#   a\b: of a/b
#   a/b: of a/b
# Needs: node, npm, python3.
set -euo pipefail

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; wait; rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --prefix node azurite@3.35.0 > npm.log 2>&1
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check obstore==0.12.1

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export AZURITE_ACCOUNTS=finding:a2V5 # name:key, made up
node/node_modules/.bin/azurite-blob --location blobs --blobHost 127.0.0.1 --blobPort "$port" \
  --skipApiVersionCheck --disableTelemetry > azurite.log 2>&1 &
server=$!
for _ in $(seq 100); do
  (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null && break
  sleep 0.2
done

python/bin/python - "$port" << 'END' | tee found
import base64
import hashlib
import hmac
import sys
from email.utils import formatdate
from urllib.request import Request, urlopen

import obstore
from obstore.store import AzureStore

endpoint = f"http://127.0.0.1:{sys.argv[1]}/finding"


def make_container() -> None:
    """obstore makes none: one signed request."""
    sent = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in sent.items())]
    signed = "\n".join([*lines, "/finding/finding/place", "restype:container"])
    digest = base64.b64encode(hmac.new(b"key", signed.encode(), hashlib.sha256).digest()).decode()
    sent["Authorization"] = f"SharedKey finding:{digest}"
    request = Request(f"{endpoint}/place?restype=container", method="PUT", headers=sent)
    urlopen(request, timeout=10).close()


make_container()
store = AzureStore(
    "place",
    account_name="finding",
    account_key="a2V5",
    endpoint=endpoint,
    client_options={"allow_http": True},
)
names = ("a\\b", "a/b")
for name in names:
    obstore.put(store, name, f"of {name}".encode())
print("listed:", *(found["path"] for found in obstore.list(store).collect()))
for name in names:
    print(f"{name}:", bytes(obstore.get(store, name).bytes()).decode())
END
diff found - << 'END' && echo "as it was seen"
listed: a/b
a\b: of a/b
a/b: of a/b
END
