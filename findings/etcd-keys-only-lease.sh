#!/usr/bin/env bash
# etcd 3.7 leaves the lease of a key out of the answer to a Range with keys_only.
#
# Versions: etcd 3.6.16 and 3.7.3, built from their Go modules, asked by the JSON gateway with curl.
# Behaviour: a key is put under a lease, and read with and without keys_only. 3.6 returns create
#   revision, mod revision, version and lease in both answers. 3.7 returns all but the lease with
#   keys_only, so a client that looks for leased keys and spares the values finds none. A key without
#   a lease and a key whose lease was left out look the same.
# Seen (2026-11-28):
#   3.6.16: whole true, keys_only true
#   3.7.3: whole true, keys_only false
# Needs: go, curl. Takes some minutes, most of them the two builds.
set -euo pipefail

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; wait; chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS=-mod=mod CGO_ENABLED=0

built() { # VERSION: the program etcd-VERSION
  mkdir "src-$1" && cd "src-$1"
  go mod init finding 2> /dev/null
  printf '%s\n' 'package main' '' 'import ("os"; "go.etcd.io/etcd/server/v3/etcdmain")' '' \
    'func main() { etcdmain.Main(os.Args) }' > main.go
  go get "go.etcd.io/etcd/server/v3@v$1" 2> /dev/null
  go build -o "../etcd-$1" .
  cd ..
}

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

ask() { # PATH BODY
  curl -fsS -m 10 -X POST -d "$2" "http://127.0.0.1:$port/v3/$1"
}

has_lease() { # BODY OF A RANGE
  ask kv/range "$1" | grep -q '"lease"' && echo true || echo false
}

seen() { # VERSION
  port=$(free_port) peer=$(free_port)
  "./etcd-$1" --data-dir "data-$1" --listen-client-urls "http://127.0.0.1:$port" \
    --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "http://127.0.0.1:$peer" \
    --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "default=http://127.0.0.1:$peer" > "log-$1" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    curl -fs -m 1 "http://127.0.0.1:$port/health" > /dev/null && break
    sleep 0.2
  done
  ask lease/grant '{"ID": "7", "TTL": "600"}' > /dev/null
  ask kv/put '{"key": "aw==", "value": "dg==", "lease": "7"}' > /dev/null # k = v
  echo "$1: whole $(has_lease '{"key": "aw=="}')," \
    "keys_only $(has_lease '{"key": "aw==", "keys_only": true}')"
  kill "$server"
  wait "$server" || true
  server=
}

for version in 3.6.16 3.7.3; do
  built "$version"
  seen "$version" >> found
done
cat found
diff found - << 'END' && echo "as it was seen"
3.6.16: whole true, keys_only true
3.7.3: whole true, keys_only false
END
