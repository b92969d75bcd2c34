"""A real API server of Kubernetes with its etcd, with RBAC and TLS, on free ports, without nodes."""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.native.ports import HOST
from tests.deploy.kubernetes.api_server import ADMINISTRATOR, started
from tests.servers.certificates import Certificate, make_certificate
from tests.support.waiting import until

_RESOURCES: Final = {
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
}


@dataclass(frozen=True)
class KubernetesServer:
    """A running server.

    Attributes:
        url: Its address.
        certificate: Its certificate.
    """

    url: str
    certificate: Certificate

    def call(self, method: str, path: str, body: object = None, token: str = ADMINISTRATOR) -> dict[str, Any]:
        """Call the API; fails if the server refuses."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        context = ssl.create_default_context(cafile=str(self.certificate.file))
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return json.load(answer)

    @property
    def is_ready(self) -> bool:
        """Whether it serves, with its own roles in place."""
        try:
            self.call("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin")
            self.call("GET", "/api/v1/namespaces/default")
        except (OSError, urllib.error.HTTPError):
            return False
        return True

    def create(self, manifests: str) -> None:
        """Create the objects of manifests."""
        for manifest in yaml.safe_load_all(manifests):
            group, plural = _RESOURCES[manifest["kind"]]
            namespace = manifest["metadata"].get("namespace")
            self.call("POST", f"{group}/{f'namespaces/{namespace}/' if namespace else ''}{plural}", manifest)

    def add_node(self, name: str) -> None:
        """Create a node that is ready."""
        self.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        node = self.call("GET", f"/api/v1/nodes/{name}")
        node["status"]["conditions"] = [{"type": "Ready", "status": "True", "reason": "Tests", "message": ""}]
        self.call("PUT", f"/api/v1/nodes/{name}/status", node)

    def add_pod(self, name: str, node: str, hostname: str = "", phase: str = "Pending") -> None:
        """Create a pod on a node, in a phase of its life."""
        spec: dict[str, Any] = {"nodeName": node, "containers": [{"name": "main", "image": "none"}]}
        if hostname:
            spec["hostname"] = hostname
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        created = self.call("POST", "/api/v1/namespaces/training/pods", pod)
        created["status"]["phase"] = phase
        self.call("PUT", f"/api/v1/namespaces/training/pods/{name}/status", created)

    def conditions(self, node: str) -> dict[str, dict[str, str]]:
        """The conditions of a node, by type."""
        return {entry["type"]: entry for entry in self.call("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]}

    def account_token(self, account: str) -> str:
        """A token of a service account of the namespace, as a pod gets it."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = self.call("POST", f"/api/v1/namespaces/training/serviceaccounts/{account}/token", request)
        return answer["status"]["token"]


@contextlib.contextmanager
def kubernetes_server(home: Path) -> Iterator[KubernetesServer]:
    """Start the server and its etcd, with all their files in `home`; skips the test where they are missing."""
    certificate = make_certificate(home, "server")
    files = ("--tls-cert-file", certificate.file, "--tls-private-key-file", certificate.key)
    with started(home, *files, "--authorization-mode", "RBAC") as port:
        running = KubernetesServer(f"https://{HOST}:{port}", certificate)
        until(lambda: running.is_ready, 120.0, lambda: (home / "kube-apiserver.log").read_text()[-3000:])
        yield running
