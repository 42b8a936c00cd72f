"""Names of Kubernetes' objects as people say them, and their keys in etcd.

A name is `RESOURCE/NAMESPACE/NAME`, or `RESOURCE/NAME` of an object without a namespace. `RESOURCE`
is the plural that kubectl takes, with `.GROUP` if the API server stores the group, too: that is so
for custom resources. Where a resource has another folder in etcd, `FOLDERS` says which.
"""

from __future__ import annotations

from dataclasses import dataclass

ROOT = "/registry/"
"""Below this prefix an API server keeps its objects, unless its `--etcd-prefix` is another one."""
ROOTS = (ROOT, "/kubernetes.io/", "/openshift.io/")
"""The prefixes that are known to be of API servers: of Kubernetes, and of OpenShift's two."""
FOLDERS = {
    "apiservices": "apiregistration.k8s.io/apiservices",
    "customresourcedefinitions": "apiextensions.k8s.io/customresourcedefinitions",
    "endpoints": "services/endpoints",
    "ingresses": "ingress",
    "nodes": "minions",
    "replicationcontrollers": "controllers",
    "services": "services/specs",
}
"""The folders of built-in resources that do not have the resource's name."""
_RESOURCES = {folder: resource for resource, folder in FOLDERS.items()}
BUILT_IN_GROUPS = frozenset(
    {
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "apps",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "extensions",
        "flowcontrol.apiserver.k8s.io",
        "internal.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    }
)
"""The groups of the API server itself, whose resources are named without them."""


def resource_name(plural: str, group: str) -> str:
    """Return the name of a resource: with its group, unless that is built in.

    >>> resource_name("deployments", "apps"), resource_name("crontabs", "stable.example.com")
    ('deployments', 'crontabs.stable.example.com')
    """
    return plural if not group or group in BUILT_IN_GROUPS else f"{plural}.{group}"


def name_of(key: str, root: str = ROOT) -> str | None:
    """Return the name of the object that a key in etcd has, or of a prefix; None of other keys.

    >>> name_of("/registry/minions/n1"), name_of("/registry/services/specs/shop/cart")
    ('nodes/n1', 'services/shop/cart')
    >>> name_of("/registry/stable.example.com/crontabs/shop/nightly")
    'crontabs.stable.example.com/shop/nightly'
    """
    if not key.startswith(root):
        return None
    first, slash, rest = key[len(root) :].partition("/")
    if not slash:
        return None
    second, _, below = rest.partition("/")
    if (resource := _RESOURCES.get(f"{first}/{second}")) is not None:
        return f"{resource}/{below}"
    if "." in first:
        return f"{second}.{first}/{below}"
    return f"{_RESOURCES.get(first, first)}/{rest}"


def key_of(name: str, root: str = ROOT) -> str:
    """Return the key in etcd of an object's name, or the prefix of keys of a name's beginning.

    A group of the API server itself may be written, too. What begins with `/` is a key already.

    >>> key_of("nodes/n1"), key_of("deployments.apps/shop/web"), key_of("services/shop/")
    ('/registry/minions/n1', '/registry/deployments/shop/web', '/registry/services/specs/shop/')
    >>> key_of("crontabs.stable.example.com/shop/nightly")
    '/registry/stable.example.com/crontabs/shop/nightly'
    """
    if name.startswith("/"):
        return name
    resource, slash, rest = name.partition("/")
    plural, _, group = resource.partition(".")
    if not group or group in BUILT_IN_GROUPS:
        return f"{root}{FOLDERS.get(plural, plural)}{slash}{rest}"
    return f"{root}{group}/{plural}{slash}{rest}"


@dataclass(frozen=True, slots=True)
class KeyNames:
    """The names of keys below a prefix, if an API server wrote them; other keys are their names.

    >>> names = KeyNames.of("/registry/")
    >>> names.name("/registry/minions/n1"), names.key("nodes/n1"), names.key("/registry/minions/n1")
    ('nodes/n1', '/registry/minions/n1', '/registry/minions/n1')
    >>> KeyNames.of("/app/").name("/app/minions/n1"), KeyNames.of(None).key("nodes/n1")
    ('/app/minions/n1', 'nodes/n1')
    """

    root: str | None = None

    @classmethod
    def of(cls, prefix: str | bytes | None) -> KeyNames:
        """Return the names of keys below an observed or recorded prefix; None: below no such."""
        text = prefix.decode(errors="surrogateescape") if isinstance(prefix, bytes) else prefix
        whole = f"{text}/"
        return cls(text and next((root for root in ROOTS if whole.startswith(root)), None))

    def name(self, key: str) -> str:
        """Return the name of a key, or of a prefix."""
        return key if self.root is None else name_of(key, self.root) or key

    def key(self, name: str) -> str:
        """Return the key of a name, or the prefix of the beginning of one; a key stays as it is."""
        return name if self.root is None or not name else key_of(name, self.root)
