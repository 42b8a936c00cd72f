#!/usr/bin/env bash
# After a scale to zero, an object of Kubernetes no longer says which manager owns its replicas.
#
# Versions: kube-apiserver and kubectl 1.37.2, etcd 3.7.3, built from their Go modules.
# Behaviour: `metadata.managedFields` names the manager that last set a field. A scale of a Deployment
#   to another number makes `kubectl` (subresource scale) the owner of `spec.replicas`. A scale to 0
#   removes every owner of that field, and later scales, also to other numbers than 0, add none. A
#   patch of the Deployment itself has an owner, also one to 0. So of "who scaled this down to
#   nothing?", and of all scales after it, only an audit log knows the answer.
# Seen (2026-11-29):
#   create 2 kubectl-create
#   scale 3 kubectl
#   scale 0 -
#   scale 5 -
#   patch 0 kubectl-patch
# Needs: go, openssl, python3, curl. Takes ten to fifteen minutes on two cores, nearly all of it the build.
set -euo pipefail

work=$(mktemp -d)
running=()
trap 'for each in "${running[@]}"; do kill "$each" 2> /dev/null || true; done; wait; chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS=-mod=mod CGO_ENABLED=0

mkdir bin etcd kubernetes
(
  cd etcd
  go mod init finding 2> /dev/null
  printf 'package main\n\nimport (\n\t"os"\n\n\t"go.etcd.io/etcd/server/v3/etcdmain"\n)\n\nfunc main() { etcdmain.Main(os.Args) }\n' > main.go
  go get go.etcd.io/etcd/server/v3@v3.7.3 2> /dev/null
  go build -o ../bin/etcd .
)
(
  cd kubernetes
  go mod init finding 2> /dev/null
  go mod edit -require k8s.io/kubernetes@v1.37.2
  # Its go.mod points at folders of its repository; their published modules take their places.
  go mod edit -json "$(go mod download -json k8s.io/kubernetes@v1.37.2 | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')" |
    sed -n 's/.*"Path": "\.\/staging\/src\/\(.*\)".*/\1/p' | sort -u |
    while read -r path; do go mod edit -replace "$path=$path@v0.37.2"; done
  for each in kube-apiserver kubectl; do go build -o "../bin/$each" "k8s.io/kubernetes/cmd/$each" 2> build.log; done
)

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
client=$(free_port) peer=$(free_port) api=$(free_port)
bin/etcd --data-dir data --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
  --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
  --initial-cluster "default=http://127.0.0.1:$peer" > etcd.log 2>&1 &
running+=($!)
openssl genrsa -out key.pem 2048 2> /dev/null
echo 'token,admin,admin,"system:masters"' > tokens.csv
bin/kube-apiserver --etcd-servers "http://127.0.0.1:$client" --bind-address 127.0.0.1 --secure-port "$api" \
  --cert-dir certificates --token-auth-file tokens.csv --authorization-mode RBAC --service-account-issuer https://here \
  --service-account-key-file key.pem --service-account-signing-key-file key.pem > api.log 2>&1 &
running+=($!)
for _ in $(seq 300); do
  [ "$(curl -sk -H 'Authorization: Bearer token' "https://127.0.0.1:$api/readyz" || true)" = ok ] && break
  sleep 0.2
done

kubectl() {
  KUBECONFIG=$work/none HOME=$work bin/kubectl --server "https://127.0.0.1:$api" --token token \
    --insecure-skip-tls-verify "$@"
}

owner() { # WHAT: the replicas of the deployment, and the managers that own them
  kubectl get deployment web -o json --show-managed-fields | python3 -c 'import json, sys
found = json.load(sys.stdin)
fields = [each for each in found["metadata"]["managedFields"] if "f:replicas" in each["fieldsV1"].get("f:spec", {})]
print(sys.argv[1], found["spec"]["replicas"], ",".join(each["manager"] for each in fields) or "-")' "$1"
}

kubectl create deployment web --image=nginx:1.25 --replicas=2 > /dev/null
{
  owner create
  for number in 3 0 5; do
    kubectl scale deployment/web --replicas="$number" > /dev/null
    owner scale
  done
  kubectl patch deployment web -p '{"spec": {"replicas": 0}}' > /dev/null
  owner patch
} | tee seen

diff seen - << 'SEEN' && echo "as the head of this file says"
create 2 kubectl-create
scale 3 kubectl
scale 0 -
scale 5 -
patch 0 kubectl-patch
SEEN
