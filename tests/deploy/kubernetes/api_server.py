"""A real API server with its etcd, on free ports, without nodes: it checks and changes what it is given."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.native.ports import HOST, free_port
from deploy.native.program import Program, Running
from tests.deploy.kubernetes.chart import helm
from tests.deploy.kubernetes.tools import etcd, server_program
from tests.support.waiting import until

ADMINISTRATOR: Final = "tests"
"""Token of a user with all rights."""


@dataclass(frozen=True)
class ApiServer:
    """A running server, as kubectl reaches it.

    Attributes:
        port: Where it serves HTTPS.
        home: kubectl's home, in which it caches what the server offers.
    """

    port: int
    home: Path

    def kubectl(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl as an administrator."""
        access = ("--server", f"https://{HOST}:{self.port}", "--insecure-skip-tls-verify", "--token", ADMINISTRATOR)
        return subprocess.run(
            [server_program("kubectl"), *access, *arguments],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"HOME": str(self.home)},
        )

    def helm(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run Helm as an administrator."""
        access = (
            *("--kube-apiserver", f"https://{HOST}:{self.port}", "--kube-token", ADMINISTRATOR),
            "--kube-insecure-skip-tls-verify",
        )
        return helm(*access, *arguments)

    def apply(self, text: str, namespace: str = "training", *options: str) -> subprocess.CompletedProcess[str]:
        """Apply manifests on the server's side, which refuses unknown and repeated fields."""
        return self.kubectl(
            "--namespace",
            namespace,
            "apply",
            "--server-side",
            "--validate=strict",
            *options,
            "--filename=-",
            given=text,
        )

    def created(self, pod: dict[str, Any], namespace: str = "training") -> dict[str, Any]:
        """What the server makes of a pod; nothing is kept."""
        done = self.kubectl(
            *("--namespace", namespace, "create", "--dry-run=server", "--output=json", "--filename=-"),
            given=yaml.safe_dump(pod),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refusal(self, pod: dict[str, Any], namespace: str) -> str:
        """Why the server refuses a pod; '' if it does not."""
        done = self.kubectl(
            "--namespace", namespace, "create", "--dry-run=server", "--filename=-", given=yaml.safe_dump(pod)
        )
        return done.stderr if done.returncode else ""

    def add_namespace(self, name: str, security: str) -> None:
        """Create a namespace with a level of pod security."""
        label = {"pod-security.kubernetes.io/enforce": security}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": label}}
        done = self.kubectl("apply", "--filename=-", given=yaml.safe_dump(namespace))
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def running_api_server(home: Path) -> Iterator[ApiServer]:
    """Start a server that allows everything, with all that it writes in `home`."""
    with started(home, "--cert-dir", home / "certs", "--authorization-mode", "AlwaysAllow") as port:
        server = ApiServer(port, home)
        until(lambda: server.kubectl("get", "--raw", "/readyz").stdout == "ok", what="the API server is ready")
        yield server


@contextlib.contextmanager
def started(home: Path, *options: str | Path) -> Iterator[int]:
    """Start the server and its etcd; yields the port, on which the server may not answer yet.

    Args:
        home: The directory of their files.
        *options: More options of the server, for certificates and authorization.
    """
    store, peers, port = free_port(), free_port(), free_port()
    with Running(_etcd(home, store, peers)), Running(_server(home, store, port, options)):
        yield port


def _etcd(home: Path, port: int, peers: int) -> Program:
    url, peer_url = f"http://{HOST}:{port}", f"http://{HOST}:{peers}"
    command = (
        *(etcd(), "--data-dir", home / "etcd", "--unsafe-no-fsync", "--log-level", "error"),
        *("--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer_url),
        *("--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"default={peer_url}"),
    )
    return Program("etcd", command, home, f"{url}/health")


def _server(home: Path, store: int, port: int, options: tuple[str | Path, ...]) -> Program:
    key, tokens = home / "account.key", home / "tokens"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens.write_text(f"{ADMINISTRATOR},admin,admin,system:masters\n")
    # Without the controllers that create service accounts, pods could not have theirs.
    command = (
        *(server_program("kube-apiserver"), "--etcd-servers", f"http://{HOST}:{store}", *options),
        *("--bind-address", HOST, "--secure-port", str(port), "--token-auth-file", tokens),
        *("--service-account-issuer", "https://tests", "--service-account-key-file", key),
        *("--service-account-signing-key-file", key, "--service-cluster-ip-range", "10.0.0.0/24"),
        *("--disable-admission-plugins", "ServiceAccount"),
    )
    return Program("kube-apiserver", command, home, f"http://{HOST}:{store}/health")
