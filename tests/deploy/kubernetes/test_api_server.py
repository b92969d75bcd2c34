"""A real API server accepts the chart and the examples, adds sidecars to pods, and keeps its security levels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes.api_server import ApiServer, running_api_server
from tests.deploy.kubernetes.chart import (
    CHART,
    DASHBOARDS,
    VARIANTS,
    containers,
    examples,
    pod_template,
    pod_templates_in,
    rendered,
    resources,
    the,
)
from tests.deploy.kubernetes.tools import resource_definitions
from tests.support.waiting import until

pytestmark = pytest.mark.thorough

RANKS = {
    "OTEL_PYTHON_TORCHDIST_ENABLED",
    "OTEL_PYTHON_TORCHDIST_READER",
    "OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST",
}
AGENT = "torchdist-agent"
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SECURE = {"runAsNonRoot": True, "runAsUser": 1234, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """The server, with the operators' definitions and the chart installed."""
    with running_api_server(tmp_path_factory.mktemp("kubernetes")) as running:
        for path in resource_definitions():
            done = running.kubectl("apply", "--server-side", f"--filename={path}")
            assert done.returncode == 0, done.stderr
        for level in ("restricted", "baseline", "privileged"):
            running.add_namespace(level, level)
        running.add_namespace("training", "restricted")
        # Without a policy that fails, a pod that it cannot change would show no reason.
        policy = rendered().replace("failurePolicy: Ignore", "failurePolicy: Fail")
        done = running.apply(policy)
        assert done.returncode == 0, done.stderr
        until(lambda: initial(running.created(pod())), what="the server applies the policy")
        yield running


def pod(**spec: Any) -> dict[str, Any]:
    """A pod of a job, labelled for a sidecar, as strict security wants it."""
    container = {"name": "training", "image": "training:1.0", "securityContext": CONFINED}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "training", "labels": {"otel-torchdist/agent": "sidecar"}},
        "spec": {"securityContext": SECURE, "containers": [container], **spec},
    }


def initial(created: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod's initial containers."""
    return created["spec"].get("initContainers", [])


def mounted_on(container: dict[str, Any], path: str) -> str:
    """The volume that a container mounts there."""
    (name,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == path]
    return name


@pytest.mark.parametrize("variant", VARIANTS)
def test_chart_is_accepted(server: ApiServer, variant: str) -> None:
    """The server accepts all that the chart installs, and knows each field."""
    done = server.apply(rendered(*VARIANTS[variant]), "privileged", "--dry-run=server", "--force-conflicts")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.stem)
def test_example_is_accepted(server: ApiServer, path: Any) -> None:
    """The server accepts each example, by the definitions of its operator."""
    done = server.apply(path.read_text(), "training", "--dry-run=server")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.stem)
def test_pods_of_examples_get_an_agent(server: ApiServer, path: Any) -> None:
    """Each example has a template of pods to which the server adds the agent, as the user of the ranks."""
    templates = [each for manifest in yaml.safe_load_all(path.read_text()) for each in pod_templates_in(manifest)]
    labelled = [each for each in templates if "otel-torchdist/agent" in each.get("metadata", {}).get("labels", {})]
    (template,) = labelled
    named = {**template["metadata"], "name": "example"}
    created = server.created({"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": template["spec"]})
    (agent,) = initial(created)
    assert agent["securityContext"]["runAsUser"] == template["spec"]["securityContext"]["runAsUser"]


def test_sidecar_is_added(server: ApiServer) -> None:
    """A labelled pod gets the agent of the chart's own job; its ranks are recorded, and share their memory with it."""
    created = server.created(pod())
    (agent,) = initial(created)
    job = pod_template(the("Job", resources(*VARIANTS["job"])))["spec"]
    (own,) = job["initContainers"]
    assert agent["restartPolicy"] == "Always"
    assert agent["command"] == own["command"]
    assert [each["name"] for each in agent["env"]] == [each["name"] for each in own["env"]]
    assert created["spec"]["shareProcessNamespace"] is True
    (training,) = created["spec"]["containers"]
    assert {each["name"] for each in training["env"]} == RANKS
    shared = mounted_on(training, "/dev/shm")
    assert mounted_on(agent, "/dev/shm") == shared
    (volume,) = [each for each in created["spec"]["volumes"] if each["name"] == shared]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}


def test_what_the_pod_states_stays(server: ApiServer) -> None:
    """The pod's own /dev/shm, variables, initial containers, volumes and process namespace are kept."""
    container = {
        "name": "training",
        "image": "training:1.0",
        "env": [{"name": "OTEL_PYTHON_TORCHDIST_ENABLED", "value": "false"}, {"name": "A", "value": "b"}],
        "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}, {"name": "data", "mountPath": "/data"}],
        "securityContext": CONFINED,
    }
    other = {"name": "logs", "image": "logs:1.0", "securityContext": CONFINED}
    own_volumes = [{"name": "dshm", "emptyDir": {"medium": "Memory"}}, {"name": "data", "emptyDir": {}}]
    before = {"name": "before", "image": "before:1.0", "securityContext": CONFINED}
    created = server.created(
        pod(
            containers=[container, other],
            volumes=own_volumes,
            initContainers=[before],
            shareProcessNamespace=False,
        )
    )["spec"]
    assert [each["name"] for each in created["initContainers"]] == [AGENT, "before"]
    assert created.get("shareProcessNamespace", False) is False
    assert [each["name"] for each in created["volumes"]] == ["dshm", "data", "torchdist-tmp"]
    training, logs = created["containers"]
    assert training["env"][:2] == container["env"]
    assert training["volumeMounts"] == container["volumeMounts"]
    assert mounted_on(logs, "/dev/shm") == mounted_on(created["initContainers"][0], "/dev/shm") == "dshm"


def test_pods_without_label_stay(server: ApiServer) -> None:
    """A pod that has no label, or an agent already, is left as it is."""
    plain = pod()
    del plain["metadata"]["labels"]
    assert not initial(server.created(plain))
    agent = {"name": AGENT, "image": "mine:1.0", "restartPolicy": "Always", "securityContext": CONFINED}
    (kept,) = initial(server.created(pod(initContainers=[agent])))
    assert kept["image"] == "mine:1.0"


@pytest.mark.parametrize(
    ("security", "of_container", "expected"),
    [
        ({"runAsUser": 7}, {}, 7),
        ({"runAsUser": 7}, {"runAsUser": 8}, 8),
        ({"runAsNonRoot": True}, {}, 1000),
        ({}, {}, 0),
    ],
)
def test_agent_is_the_user_of_the_ranks(
    server: ApiServer, security: dict[str, Any], of_container: dict[str, Any], expected: int
) -> None:
    """The agent runs as the user that the pod states for its ranks, otherwise as the chart says."""
    container = {"name": "training", "image": "training:1.0", "securityContext": of_container}
    created = server.created(pod(securityContext=security, containers=[container]), "privileged")
    assert initial(created)[0]["securityContext"]["runAsUser"] == expected


@pytest.mark.parametrize(
    ("variant", "kind", "strictest"),
    [
        ("job", "Job", "restricted"),
        ("nodeAgent", "DaemonSet", "privileged"),
        ("nodeAgent-user", "DaemonSet", "privileged"),
        ("nodeAgent-hostPID", "DaemonSet", "privileged"),
    ],
)
def test_pod_security(server: ApiServer, variant: str, kind: str, strictest: str) -> None:
    """The job's pods are allowed at the strictest level, those of the node's agent only without one."""
    template = pod_template(the(kind, resources(*VARIANTS[variant])))
    metadata = {"name": "tried", "labels": template["metadata"]["labels"]}
    tried = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    levels = ["privileged", "baseline", "restricted"]
    allowed = [level for level in levels if not server.refusal(tried, level)]
    assert allowed == levels[: levels.index(strictest) + 1]
    if strictest == "privileged":
        assert "hostPath" in server.refusal(tried, "baseline")


def test_confined_pod_stays_confined(server: ApiServer) -> None:
    """A pod that the strictest level allows is still allowed with the agent in it: it was created in that namespace."""
    assert server.refusal(pod(), "restricted") == ""
    assert len(containers({"spec": server.created(pod(), "restricted")["spec"]})) == 2


def test_helm_installs_changes_and_removes_it(server: ApiServer) -> None:
    """Helm installs a whole cluster's values, changes them, and leaves nothing behind."""
    options = ("torchdist", CHART, "--namespace", "restricted", "--set", "sidecar.enabled=false")
    done = server.helm("upgrade", "--install", *options, *VARIANTS["gpu-cluster"])
    assert done.returncode == 0, done.stderr
    kinds = "job,service,networkpolicy,podmonitor,prometheusrule,configmap"
    listed = (
        "--namespace",
        "restricted",
        "get",
        kinds,
        "--selector=app.kubernetes.io/managed-by=Helm",
        "--output=name",
    )
    assert len(server.kubectl(*listed).stdout.split()) == 5 + len(list(DASHBOARDS.glob("*.json")))
    changed = server.helm("upgrade", *options, *VARIANTS["gpu-cluster"], "--set", "dashboards.enabled=false")
    assert changed.returncode == 0, changed.stderr
    assert len(server.kubectl(*listed).stdout.split()) == 5
    assert server.helm("uninstall", "torchdist", "--namespace", "restricted").returncode == 0
    until(lambda: not server.kubectl(*listed).stdout.split(), what="nothing is left")


def test_policy_is_left_out_elsewhere(server: ApiServer) -> None:
    """With a selector, pods in other namespaces get no agent."""
    text = rendered("--set", "sidecar.namespaceSelector.matchLabels.team=a").replace("Ignore", "Fail")
    assert server.apply(text, "training", "--force-conflicts").returncode == 0
    try:
        until(lambda: not initial(server.created(pod())), what="the server applies the change")
        server.kubectl("label", "namespace", "restricted", "team=a")
        until(lambda: initial(server.created(pod(), "restricted")), what="the namespace is selected")
    finally:
        assert server.apply(rendered().replace("Ignore", "Fail"), "training", "--force-conflicts").returncode == 0
        until(lambda: initial(server.created(pod())), what="the server applies the change back")
