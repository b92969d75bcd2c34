"""The adapter for Kubernetes against a real API server, with the rights of our manifest and no others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.actions.machine_advice import NodeAction
from otel_torchdist.node.job.description import JobDescription
from tests.deploy.actions.kubernetes_server import KubernetesServer, kubernetes_server
from tests.deploy.actions.verdict import ADAPTERS, REASON, adapt, verdict
from tests.servers.certificates import make_certificate

pytestmark = pytest.mark.thorough
FAULT, SUSPECTED = "TorchdistMachineFault", "TorchdistMachineSuspected"
JOB = JobDescription(kubernetes_namespace="training")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the server's files."""
    return tmp_path_factory.mktemp("kubernetes")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[KubernetesServer]:
    """The server, with three nodes, two pods and our service account, whose token is in a file."""
    with kubernetes_server(home) as running:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}}
        running.call("POST", "/api/v1/namespaces", namespace)
        running.create((ADAPTERS / "kubernetes-rbac.yaml").read_text())
        for name in ("n1", "n2", "n3"):
            running.add_node(name)
        running.add_pod("train-0", "n2")
        running.add_pod("train-1-x7k2", "n3", hostname="train-1")
        (home / "token").write_text(running.account_token("otel-torchdist-actions"))
        yield running


def act(server: KubernetesServer, home: Path, document: str, *arguments: str) -> tuple[int, str]:
    """Run the adapter with the token of the account."""
    access = ("--server", server.url, "--token-file", str(home / "token"), "--ca-file", str(server.certificate.file))
    return adapt("kubernetes_node.py", document, *access, "--state", str(home / "taken"), *arguments)


def test_condition_of_a_node(server: KubernetesServer, home: Path) -> None:
    """Advice is only printed; with the switch the condition is set, once, beside the others; and cleared by hand."""
    shutil.rmtree(home / "taken", ignore_errors=True)
    assert act(server, home, verdict("n1")) == (0, f"would set {FAULT} of node n1 (--act does it): {REASON}")
    assert server.conditions("n1").keys() == {"Ready"}
    assert act(server, home, verdict("n1"), "--act") == (0, f"set {FAULT} of node n1: {REASON}")
    conditions = server.conditions("n1")
    assert conditions.keys() == {"Ready", FAULT} and conditions["Ready"]["status"] == "True"
    found = conditions[FAULT]
    assert (found["status"], found["reason"]) == ("True", "VerdictDead")
    assert found["message"] == f"otel_torchdist run abcdef01: {REASON}"
    assert found["lastTransitionTime"] and found["lastHeartbeatTime"]
    assert act(server, home, verdict("n1"), "--act") == (0, f"node n1 has {FAULT} already: {REASON}")
    assert len(list((home / "taken").iterdir())) == 1

    assert act(server, home, "", "--clear", "n1") == (0, f"would clear {FAULT} of node n1 (--act does it)")
    assert act(server, home, "", "--clear", "n1", "--act") == (0, f"cleared {FAULT} of node n1")
    assert server.conditions("n1")[FAULT]["status"] == "False"
    assert act(server, home, "", "--clear", "n1", "--act") == (0, "cleared nothing of node n1")


@pytest.mark.parametrize(("host", "node"), [("train-0", "n2"), ("train-1", "n3")])
def test_node_of_a_pod(server: KubernetesServer, home: Path, host: str, node: str) -> None:
    """Without the host's network, a host is a pod or the host name of one. `exclude` only suspects the node."""
    shutil.rmtree(home / "taken", ignore_errors=True)
    document = verdict(host, action=NodeAction.EXCLUDE, job=JOB)
    assert act(server, home, document, "--act") == (0, f"set {SUSPECTED} of node {node}: {REASON}")
    assert server.conditions(node)[SUSPECTED]["status"] == "True"


def test_pod_of_an_earlier_attempt(server: KubernetesServer, home: Path) -> None:
    """A failed pod with the same host name, on another node, does not hide the pod that runs."""
    shutil.rmtree(home / "taken", ignore_errors=True)
    server.add_pod("train-2-aaaa", "n1", hostname="train-2", phase="Failed")
    server.add_pod("train-2-bbbb", "n3", hostname="train-2")
    assert act(server, home, verdict("train-2", job=JOB)) == (
        0,
        f"would set {FAULT} of node n3 (--act does it): {REASON}",
    )


def test_unknown_hosts(server: KubernetesServer, home: Path) -> None:
    """A host that is no node and no pod of the job is refused, and no path of the API is made of its name."""
    assert act(server, home, verdict("nowhere"), "--act") == (
        1, "refused: there is no node nowhere, and the job's namespace is not known",
    )  # fmt: skip
    for host in ("nowhere", "../namespaces/default", "n1/status", "N1"):
        said = f"refused: no node, and no single pod in training, has the host name {host}"
        assert act(server, home, verdict(host, job=JOB), "--act") == (1, said)


def test_limit(server: KubernetesServer, home: Path) -> None:
    """After as many nodes as are allowed on one day, no condition is set."""
    shutil.rmtree(home / "taken", ignore_errors=True)
    assert act(server, home, verdict("n2"), "--act", "--a-day", "1")[0] == 0
    code, said = act(server, home, verdict("n3"), "--act", "--a-day", "1")
    assert code == 1 and said.startswith("refused: 1 nodes have been taken today")
    assert FAULT not in server.conditions("n3")


def test_no_rights(server: KubernetesServer, home: Path, tmp_path: Path) -> None:
    """Our account may set conditions and nothing else; another one may not even do that, and hears why."""
    account = server.account_token("otel-torchdist-actions")
    for method, path in (("GET", "/api/v1/nodes"), ("DELETE", "/api/v1/nodes/n3"), ("GET", "/api/v1/secrets")):
        with pytest.raises(OSError, match="403"):
            server.call(method, path, token=account)
    server.create("{apiVersion: v1, kind: ServiceAccount, metadata: {name: other, namespace: training}}")
    (tmp_path / "token").write_text(server.account_token("other"))
    code, said = act(server, home, verdict("n3"), "--act", "--token-file", str(tmp_path / "token"))
    assert code == 1 and said.startswith("GET /api/v1/nodes/n3: 403 Forbidden: ")
    (tmp_path / "token").write_text("wrong")
    code, said = act(server, home, verdict("n3"), "--act", "--token-file", str(tmp_path / "token"))
    assert code == 1 and said.startswith("GET /api/v1/nodes/n3: 401 Unauthorized: ")


def test_certificate(server: KubernetesServer, home: Path, tmp_path: Path) -> None:
    """A server with another certificate does not get the token."""
    other = make_certificate(tmp_path, "other")
    code, said = act(server, home, verdict("n3"), "--act", "--ca-file", str(other.file))
    assert code == 1 and "certificate verify failed" in said
