#!/usr/bin/env bash
# s3rver takes a create-only put (If-None-Match: *) of an object that exists, and overwrites it.
#
# Versions: s3rver 3.7.1 (npm), obstore 0.12.1 (PyPI).
# Behaviour: S3 and most servers of its protocol answer 412 to such a put since 2024, and programs
#   build locks and manifests on that. s3rver does not look at the header: both puts succeed, the
#   second one wins, and its client has no sign of it. Tests against it pass for code that would
#   lose the race on S3, and fail for code that relies on the refusal.
# Seen (2026-11-28):
#   first: stored
#   second: stored
#   content: second
# Needs: node, npm, python3.
set -euo pipefail

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; wait; rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --prefix node s3rver@3.7.1 > npm.log 2>&1
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check obstore==0.12.1

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir objects
node/node_modules/.bin/s3rver -d objects -a 127.0.0.1 -p "$port" --configure-bucket place > s3rver.log 2>&1 &
server=$!
for _ in $(seq 100); do
  (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null && break
  sleep 0.2
done

python/bin/python - "$port" << 'END' | tee found
import sys

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

store = S3Store(
    "place",
    endpoint=f"http://127.0.0.1:{sys.argv[1]}",
    access_key_id="S3RVER",
    secret_access_key="S3RVER",
    region="us-east-1",
    client_options={"allow_http": True},
)
for content in ("first", "second"):
    try:
        obstore.put(store, "object", content.encode(), mode="create")
        print(f"{content}: stored")
    except AlreadyExistsError:
        print(f"{content}: refused")
print("content:", bytes(obstore.get(store, "object").bytes()).decode())
END
diff found - << 'END' && echo "as it was seen"
first: stored
second: stored
content: second
END
