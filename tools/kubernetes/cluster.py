"""A control plane on loopback: etcd or kine, an API server and a controller manager.

It has neither a scheduler nor a kubelet: a pod stays as it was made, unless a client binds it.

    tools/kubernetes/build build/kubernetes         # once
    python -m tools.kubernetes run FOLDER           # until Ctrl-C; prints how to reach it
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

BUILT = Path(__file__).resolve().parents[2] / "build" / "kubernetes"
"""Where `build` puts the programs."""
START_S = 120.0
STOP_S = 20.0
ADMIN = "admin"


class ClusterError(Exception):
    """A program of the cluster failed; the message has what it printed."""


class Cluster:
    """A control plane whose data, keys and logs are in a folder; each part starts and stops alone.

    `kubeconfig` names the file that kubectl and other clients take, `etcd_url` the URL of its
    etcd, as snapkv takes it.
    """

    def __init__(self, folder: Path, *, programs: Path = BUILT, kine: bool = False) -> None:
        self.folder, self.programs, self.kine = Path(folder), programs, kine
        self.folder.mkdir(parents=True, exist_ok=True)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        ports = self._kept("ports", lambda: json.dumps(_free_ports(3)))
        self.etcd_port, self.peer_port, self.api_port = json.loads(ports)
        self._token = self._kept("token", lambda: secrets.token_hex(16))
        self.encryption: list[Mapping[str, object]] = []
        """The providers of `encrypt_with`, the one that writes first."""

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        path = self.folder / name
        if not path.exists():
            path.write_text(make())
        return path.read_text()

    @property
    def etcd_url(self) -> str:
        """The URL of its etcd, or of its kine."""
        return f"etcd://127.0.0.1:{self.etcd_port}"

    @property
    def kubeconfig(self) -> Path:
        """The file that says how an administrator reaches the API server."""
        path = self.folder / "kubeconfig"
        if not path.exists():
            path.write_text(self.kubeconfig_of(self._token))
        return path

    def kubeconfig_of(self, token: str) -> str:
        """Return a kubeconfig for the user of a token."""
        server = f"https://127.0.0.1:{self.api_port}"
        cluster = {"server": server, "insecure-skip-tls-verify": True}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "here", "cluster": cluster}],
                "users": [{"name": "user", "user": {"token": token}}],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "user"}}],
            }
        )

    # --- parts ---

    def start(self) -> None:
        """Start all parts, and wait until they answer."""
        self.start_etcd()
        self.start_api()
        self.start_controllers()

    def start_etcd(self) -> None:
        """Start etcd, or kine on SQLite."""
        url = f"http://127.0.0.1:{self.etcd_port}"
        if self.kine:
            data = f"sqlite://{self.folder}/kine.db?_journal=WAL&cache=shared"
            self._start("kine", "--listen-address", url.replace("http", "tcp"), "--endpoint", data)
        else:
            peer = f"http://127.0.0.1:{self.peer_port}"
            self._start(
                "etcd",
                *("--name", "one", "--data-dir", str(self.folder / "etcd")),
                *("--listen-client-urls", url, "--advertise-client-urls", url),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"one={peer}", "--snapshot-count", "10000"),
            )
        _wait(lambda: _listens(self.etcd_port), "etcd")

    def start_api(self, *more: str) -> None:
        """Start the API server; `more` are further options."""
        key = self.folder / "accounts.key"
        if not key.exists():
            subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True)
        tokens = self.folder / "tokens.csv"
        if not tokens.exists():
            tokens.write_text(f'{self._token},{ADMIN},{ADMIN},"system:masters"\n')
        options = (
            ["--encryption-provider-config", str(self._encryption())] if self.encryption else []
        )
        self._start(
            "kube-apiserver",
            *("--etcd-servers", f"http://127.0.0.1:{self.etcd_port}"),
            *("--bind-address", "127.0.0.1", "--secure-port", str(self.api_port)),
            *("--cert-dir", str(self.folder / "certificates")),
            *("--token-auth-file", str(tokens), "--authorization-mode", "RBAC"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *(
                "--service-account-key-file",
                str(key),
                "--service-account-signing-key-file",
                str(key),
            ),
            *("--service-cluster-ip-range", "10.96.0.0/16"),
            *("--audit-log-path", str(self.audit_log), "--audit-policy-file", str(self._audit())),
            *options,
            *more,
        )
        _wait(self._is_ready, "kube-apiserver")

    def start_controllers(self) -> None:
        """Start the controller manager."""
        self._start(
            "kube-controller-manager",
            *("--kubeconfig", str(self.kubeconfig), "--use-service-account-credentials"),
            *("--service-account-private-key-file", str(self.folder / "accounts.key")),
            *("--secure-port", "0", "--controllers", "*,-ttl"),
        )
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        _wait(lambda: self._has(path), "kube-controller-manager")

    def restart_api(self, *, kill: bool = False) -> None:
        """Stop the API server and start it; so the controller manager, which ends without it."""
        self.stop("kube-controller-manager", "kube-apiserver", kill=kill)
        self.start_api()
        self.start_controllers()

    def stop(self, *names: str, kill: bool = False) -> None:
        """Stop the parts of these names (all by default); with `kill` by SIGKILL."""
        for name in names or tuple(reversed(self._running)):
            if (process := self._running.pop(name, None)) is None:
                continue
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, *words: str) -> None:
        program = self.programs / name
        if not program.exists():
            raise FileNotFoundError(f"{program}: run tools/kubernetes/build {self.programs}")
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(program), *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    # --- clients ---

    @property
    def audit_log(self) -> Path:
        """The audit log: each write of an object, with metadata and the object."""
        return self.folder / "audit.log"

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as the administrator; return what it prints."""
        done = subprocess.run(
            [str(self.programs / "kubectl"), "--kubeconfig", str(self.kubeconfig), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check and done.returncode:
            raise ClusterError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def api(self, path: str, *, method: str = "GET", body: object = None) -> bytes:
        """Send a request to the API server as the administrator; return the answer's bytes."""
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.api_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, context=_unchecked(), timeout=60) as answer:
            found: bytes = answer.read()
            return found

    def etcdctl(self, *words: str) -> str:
        """Run etcdctl on its etcd; return what it prints."""
        endpoint = f"127.0.0.1:{self.etcd_port}"
        words = (str(self.programs / "etcdctl"), "--endpoints", endpoint, *words)
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout

    @property
    def revision(self) -> int:
        """The newest revision of its etcd."""
        status = json.loads(self.etcdctl("endpoint", "status", "-w", "json"))[0]["Status"]
        revision: int = status["header"]["revision"]
        return revision

    def restore(self, backup: Path) -> None:
        """Set the data of etcd, which does not run, back to a backup."""
        shutil.rmtree(self.folder / "etcd")
        peer = f"http://127.0.0.1:{self.peer_port}"
        words = [
            *(str(self.programs / "etcdutl"), "snapshot", "restore", str(backup)),
            *("--data-dir", str(self.folder / "etcd"), "--name", "one"),
            *("--initial-cluster", f"one={peer}", "--initial-advertise-peer-urls", peer),
        ]
        subprocess.run(words, check=True, capture_output=True, timeout=60)

    def _has(self, path: str) -> bool:
        try:
            return bool(self.api(path))
        except urllib.error.HTTPError:
            return False

    # --- settings ---

    def encrypt_with(self, *providers: Mapping[str, object]) -> None:
        """Set the providers of encryption at rest of secrets; a new start of the API takes them.

        The first one writes, all read: `{"aescbc": {"keys": [{"name": "key1", "secret": ...}]}}`.
        """
        self.encryption = [*providers, {"identity": {}}]

    def _encryption(self) -> Path:
        path = self.folder / "encryption.json"
        resources = [{"resources": ["secrets"], "providers": self.encryption}]
        version = "apiserver.config.k8s.io/v1"
        text = {"apiVersion": version, "kind": "EncryptionConfiguration", "resources": resources}
        path.write_text(json.dumps(text))
        return path

    def _audit(self) -> Path:
        path = self.folder / "audit-policy.json"
        rules = [
            {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
            {"level": "None", "verbs": ["get", "list", "watch"]},
            {"level": "RequestResponse", "omitStages": ["RequestReceived"]},
        ]
        version = "audit.k8s.io/v1"
        path.write_text(json.dumps({"apiVersion": version, "kind": "Policy", "rules": rules}))
        return path

    def _is_ready(self) -> bool:
        if (process := self._running["kube-apiserver"]).poll() is not None:
            log = (self.folder / "kube-apiserver.log").read_text()[-2_000:]
            raise ClusterError(f"kube-apiserver ended with {process.returncode}:\n{log}")
        try:
            return self.api("/readyz") == b"ok"
        except (OSError, urllib.error.HTTPError):
            return False


@contextmanager
def running(folder: Path, *, programs: Path = BUILT, kine: bool = False) -> Iterator[Cluster]:
    """Start a cluster, and stop it in the end."""
    cluster = Cluster(folder, programs=programs, kine=kine)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _unchecked() -> ssl.SSLContext:
    """Return a context that trusts the certificate that the API server made for itself."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _free_ports(count: int) -> Sequence[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _wait(is_true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + START_S
    while not is_true():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not answer within {START_S:.0f} s")
        time.sleep(0.1)


os.environ.setdefault("KUBECTL_KUBERC", "false")  # settings of the user's own kubectl do not count
