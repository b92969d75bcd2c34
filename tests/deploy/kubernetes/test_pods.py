"""Pods of the chart and of the examples: confined, bounded, scraped, and with the memory that ranks and agent share."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes.chart import VARIANTS, containers, examples, pod_template, pod_templates_in, resources, the

PODS = {"nodeAgent": "DaemonSet", "nodeAgent-user": "DaemonSet", "nodeAgent-hostPID": "DaemonSet", "job": "Job"}
GPU_CLUSTER = "gpu-cluster"
POWERS = {
    "nodeAgent": ["DAC_OVERRIDE", "CHOWN"],
    "nodeAgent-user": [],
    "nodeAgent-hostPID": ["DAC_OVERRIDE", "CHOWN", "KILL", "SYS_PTRACE"],
    "job": [],
    GPU_CLUSTER: [],
}
each_pod = pytest.mark.parametrize("variant", [*PODS, GPU_CLUSTER])


def template_of(variant: str) -> dict[str, Any]:
    """The template of a variant's pods."""
    return pod_template(the(PODS.get(variant, "Job"), resources(*VARIANTS[variant])))


def agent_of(template: dict[str, Any]) -> dict[str, Any]:
    """The agent's container in a pod."""
    (agent,) = [each for each in containers(template) if "otel-torchdist" in each.get("command", [])]
    return agent


@each_pod
def test_agent_is_confined(variant: str) -> None:
    """No pod has a token for the API. The agent cannot write into its image, and has the powers that it needs alone."""
    template = template_of(variant)
    assert template["spec"]["automountServiceAccountToken"] is False
    assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = agent_of(template)["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"].get("add", []) == POWERS[variant]
    for container in containers(template):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in container["securityContext"]
    is_root = variant in {"nodeAgent", "nodeAgent-hostPID"}
    assert template["spec"]["securityContext"]["runAsNonRoot"] is not is_root
    assert template["spec"].get("hostPID", False) is (variant == "nodeAgent-hostPID")


@each_pod
def test_images_have_a_version(variant: str) -> None:
    """No image is `latest`."""
    assert all(re.search(r":\d+\.\d+", each["image"]) for each in containers(template_of(variant)))


@each_pod
def test_memory_is_limited(variant: str) -> None:
    """Each container states the memory that it needs and the most that it may take."""
    for container in containers(template_of(variant)):
        needed, most = (bytes_of(container["resources"][which]["memory"]) for which in ("requests", "limits"))
        assert needed < most, container["name"]


def bytes_of(quantity: str) -> int:
    """The bytes of a Kubernetes quantity, such as `128Mi`."""
    number, unit = quantity[:-2], quantity[-2:]
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


@each_pod
def test_references_to_variables(variant: str) -> None:
    """`$(NAME)` is replaced only if the variable is defined before it."""
    for container in containers(template_of(variant)):
        before: set[str] = set()
        for variable in container.get("env", []):
            assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= before, variable["name"]
            before.add(variable["name"])
        assert set(re.findall(r"\$\((\w+)\)", " ".join(container["command"]))) <= before, container["name"]


@each_pod
def test_agent_is_scraped(variant: str) -> None:
    """The PodMonitor finds each agent by its label and port, and the NetworkPolicy lets the scrape through."""
    template = template_of(variant)
    monitor = the("PodMonitor", resources(*VARIANTS["operator"]))["spec"]
    (expression,) = monitor["selector"]["matchExpressions"]
    assert expression["key"] in template["metadata"]["labels"]
    (port,) = agent_of(template)["ports"]
    assert port["name"] == monitor["podMetricsEndpoints"][0]["port"]
    policy = the("NetworkPolicy", resources(*VARIANTS[variant]))["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert port["containerPort"] in [each["port"] for rule in policy["ingress"] for each in rule.get("ports", [])]


@pytest.mark.parametrize("variant", ["job", GPU_CLUSTER])
def test_training_and_agent_share_memory(variant: str) -> None:
    """Ranks write where the sidecar reads: in one bounded /dev/shm in memory, as one user, seen by pid."""
    spec = template_of(variant)["spec"]
    (agent,) = spec["initContainers"]
    (training,) = spec["containers"]
    assert agent["restartPolicy"] == "Always"
    assert spec["shareProcessNamespace"] is True
    assert not any("runAsUser" in container["securityContext"] for container in (agent, training))
    (shared,) = {mount["name"] for mount in agent["volumeMounts"] if mount["mountPath"] == "/dev/shm"}
    assert {mount["name"] for mount in training["volumeMounts"]} == {shared}
    (memory,) = [volume["emptyDir"] for volume in spec["volumes"] if volume["name"] == shared]
    assert memory["medium"] == "Memory" and memory["sizeLimit"]
    environment = {variable["name"]: variable.get("value") for variable in training["env"]}
    assert environment["OTEL_PYTHON_TORCHDIST_READER"] == "none"


@pytest.mark.parametrize("variant", ["job", GPU_CLUSTER])
def test_as_many_pods_as_nodes(variant: str) -> None:
    """The job waits for as many nodes as it has pods, at a name that the Service provides."""
    found = resources(*VARIANTS[variant])
    job, service = the("Job", found), the("Service", found)
    (training,) = pod_template(job)["spec"]["containers"]
    options = dict(option.split("=", 1) for option in training["command"] if option.startswith("--"))
    assert int(options["--nnodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert pod_template(job)["spec"]["subdomain"] == service["metadata"]["name"]
    assert options["--master-addr"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert service["spec"]["selector"].items() <= pod_template(job)["metadata"]["labels"].items()


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.stem)
def test_examples_state_their_user(path: Any) -> None:
    """Pods that get an agent state the user of their ranks, and are confined as the strictest level wants it."""
    templates = [each for manifest in yaml.safe_load_all(path.read_text()) for each in pod_templates_in(manifest)]
    for template in templates:
        assert template["spec"]["automountServiceAccountToken"] is False
        security = template["spec"]["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 1000)
        for container in containers(template):
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert any("otel-torchdist/agent" in each.get("metadata", {}).get("labels", {}) for each in templates)
