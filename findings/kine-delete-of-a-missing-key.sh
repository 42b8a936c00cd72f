#!/usr/bin/env bash
# kine makes a revision, and an event, of the deletion of a key that never was.
#
# Versions: kine 0.17.5 on SQLite and etcdctl 3.6.16, built from their Go modules.
# Behaviour: a transaction without compares that gets and deletes a key (what Kubernetes' storage
#   sends) succeeds for a key that does not exist, moves the store's revision by one, and a watch
#   receives a DELETE event for that key. etcd deletes nothing then: no revision, no event. A watcher
#   that mirrors kine meets removals of keys it has never seen. Besides, every key has version 0,
#   which etcd uses for "does not exist".
# Seen (2026-11-28):
#   revisions made: 1
#   event: DELETE /never
#   version of a key that exists: 0
# Needs: go and gcc (SQLite). Takes some minutes, most of them the build.
set -euo pipefail

work=$(mktemp -d)
running=()
trap 'for each in "${running[@]}"; do kill "$each" 2> /dev/null || true; done; wait; chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS=-mod=mod

built() { # FOLDER MODULE VERSION: the main program of a module
  mkdir "$1" && cd "$1"
  go mod init finding 2> /dev/null
  go get "$2@v$3" 2> /dev/null
  go build -o ../bin/ "$2"
  cd ..
}

mkdir bin
CGO_ENABLED=1 built kine github.com/k3s-io/kine 0.17.5
CGO_ENABLED=0 built ctl go.etcd.io/etcd/etcdctl/v3 3.6.16

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export ETCDCTL_ENDPOINTS=127.0.0.1:$port
bin/kine --listen-address "tcp://127.0.0.1:$port" --metrics-bind-address 0 \
  --endpoint "sqlite://$work/db.sqlite?_journal=WAL&cache=shared" > kine.log 2>&1 &
running+=($!)

field() { # NAME: a number in etcdctl's JSON, 0 where it is left out
  python3 -c 'import json, sys
found = json.load(sys.stdin)
print({**found["header"], **(found.get("kvs") or [{}])[0]}.get(sys.argv[1], 0))' "$1"
}

for _ in $(seq 100); do
  bin/etcdctl get /a > /dev/null 2>&1 && break
  sleep 0.2
done
printf 'mod("/a") = "0"\n\nput /a 1\n\n\n' | bin/etcdctl txn > /dev/null
before=$(bin/etcdctl get /a -w json | field revision)
bin/etcdctl watch --prefix / --rev "$((before + 1))" > events 2> /dev/null &
running+=($!)
printf '\nget /never\ndel /never\n\n\n' | bin/etcdctl txn > /dev/null
after=$(bin/etcdctl get /a -w json | field revision)
for _ in $(seq 50); do
  grep -q never events && break
  sleep 0.2
done
{
  echo "revisions made: $((after - before))"
  echo "event: $(head -2 events | paste -sd ' ')"
  echo "version of a key that exists: $(bin/etcdctl get /a -w json | field version)"
} | tee found
diff found - << 'END' && echo "as it was seen"
revisions made: 1
event: DELETE /never
version of a key that exists: 0
END
