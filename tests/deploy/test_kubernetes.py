"""The Kubernetes manifests: complete, valid by Kubernetes' own schemas, and consistent with each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.manifests import (
    CUSTOM,
    KUBERNETES,
    POD_KINDS,
    all_files,
    containers,
    documents,
    kustomizations,
    manifest,
    named_by,
    pod_template,
    pod_templates,
    resources,
)

OLDEST = "1.29"
VERSIONS = (OLDEST, kubernetes_validate.latest_version())
BUILT_IN = [resource for resource in resources() if resource["apiVersion"] != CUSTOM]
PATCHES = [document for path in all_files("patches") for document in documents(path)]


each_pod = pytest.mark.parametrize(
    "template", pod_templates(), ids=lambda template: template["metadata"]["labels"]["app.kubernetes.io/name"]
)


def name_of(resource: dict[str, Any]) -> str:
    """The id of a test for a resource."""
    return f"{resource['kind']}-{resource['metadata']['name']}"


@pytest.mark.parametrize("file", kustomizations(), ids=lambda file: file.parent.name)
def test_everything_named_exists(file: Path) -> None:
    """Everything that a kustomization names exists: a file, or a directory with a kustomization."""
    named = [path for field in ("resources", "patches", "components") for path in named_by(file, field)]
    assert named
    missing = [path for path in named if not (path.is_file() or (path / "kustomization.yaml").is_file())]
    assert missing == []


def test_everything_that_exists_is_named() -> None:
    """Every manifest is applied by a kustomization."""
    named = {path for field in ("resources", "patches") for path in all_files(field)}
    there = set(KUBERNETES.resolve().rglob("*.yaml")) - {path.resolve() for path in kustomizations()}
    assert there - named == set()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resource", BUILT_IN, ids=name_of)
def test_schema(resource: dict[str, Any], version: str) -> None:
    """The resource is valid in the oldest version of Kubernetes that has sidecars and in the newest."""
    kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: f"{patch['kind']}-{patch['metadata']['name']}")
def test_patch_finds_its_target(patch: dict[str, Any]) -> None:
    """A patch changes a resource that exists, and containers that it has."""
    (target,) = [r for r in resources() if name_of(r) == name_of(patch) and r["apiVersion"] == patch["apiVersion"]]
    if patch["kind"] not in POD_KINDS:
        assert patch["data"].keys() & target["data"].keys()
        return
    for field in ("containers", "initContainers"):
        ours = {container["name"] for container in pod_template(patch)["spec"].get(field, [])}
        assert ours <= {container["name"] for container in pod_template(target)["spec"].get(field, [])}


@pytest.mark.parametrize("resource", resources(), ids=name_of)
def test_selectors_find_pods(resource: dict[str, Any]) -> None:
    """Every selector of pods matches some that are here."""
    spec = resource.get("spec", {})
    wanted = {
        "DaemonSet": lambda: spec["selector"]["matchLabels"],
        "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"],
        "Service": lambda: spec["selector"],
    }.get(resource["kind"])
    if wanted is not None:
        found = [template["metadata"]["labels"] for template in pod_templates()]
        assert any(wanted().items() <= labels.items() for labels in found)
    assert resource["kind"] == "Namespace" or "app.kubernetes.io/name" in resource["metadata"]["labels"]


@each_pod
def test_agent_is_scraped(template: dict[str, Any]) -> None:
    """The PodMonitor finds each agent by its label and port, and the NetworkPolicy lets the scrape through."""
    monitor = manifest("base/monitoring/pod-monitor.yaml", "PodMonitor")["spec"]
    (expression,) = monitor["selector"]["matchExpressions"]
    assert expression["key"] in template["metadata"]["labels"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    (agent,) = [container for container in containers(template) if container["name"] == "agent"]
    (port,) = agent["ports"]
    assert port["name"] == endpoint["port"]
    labels = template["metadata"]["labels"]
    policies = [r["spec"] for r in resources() if r["kind"] == "NetworkPolicy"]
    (policy,) = [p for p in policies if p["podSelector"]["matchLabels"].items() <= labels.items()]
    assert port["containerPort"] in [p["port"] for rule in policy["ingress"] for p in rule.get("ports", [])]


@each_pod
def test_pods_are_confined(template: dict[str, Any]) -> None:
    """No pod has a token for the API, and no container more privileges than it states."""
    assert template["spec"]["automountServiceAccountToken"] is False
    assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(template):
        assert re.search(r":\d+\.\d+$", container["image"]), container["name"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in container["securityContext"]


@each_pod
def test_memory_is_limited(template: dict[str, Any]) -> None:
    """Each container states the memory that it needs and the most that it may take."""
    for container in containers(template):
        needed, most = (container["resources"][which]["memory"] for which in ("requests", "limits"))
        assert bytes_of(needed) < bytes_of(most), container["name"]


def bytes_of(quantity: str) -> int:
    """The bytes of a Kubernetes quantity, such as `128Mi`."""
    number, unit = quantity[:-2], quantity[-2:]
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


@each_pod
def test_references_to_variables(template: dict[str, Any]) -> None:
    """`$(NAME)` is replaced only if the variable is defined before it."""
    for container in containers(template):
        before: set[str] = set()
        for variable in container.get("env", []):
            assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= before, variable["name"]
            before.add(variable["name"])
        assert set(re.findall(r"\$\((\w+)\)", " ".join(container["command"]))) <= before, container["name"]


def test_training_and_agent_share_memory() -> None:
    """Ranks write where the sidecar reads: in one bounded in-memory /dev/shm, as one user, seen by pid."""
    spec = pod_template(manifest("base/training/job.yaml", "Job"))["spec"]
    (agent,) = spec["initContainers"]
    (training,) = spec["containers"]
    assert agent["restartPolicy"] == "Always"
    assert spec["shareProcessNamespace"] is True
    assert not any("runAsUser" in container["securityContext"] for container in (agent, training))
    shared = {mount["name"] for mount in agent["volumeMounts"] if mount["mountPath"] == "/dev/shm"}
    assert shared == {mount["name"] for mount in training["volumeMounts"] if mount["mountPath"] == "/dev/shm"}
    (memory,) = [volume["emptyDir"] for volume in spec["volumes"] if volume["name"] in shared]
    assert memory["medium"] == "Memory" and memory["sizeLimit"]
    environment = {variable["name"]: variable.get("value") for variable in training["env"]}
    assert environment["OTEL_PYTHON_TORCHDIST_READER"] == "none"


@pytest.mark.parametrize("job", ["base/training/job.yaml", "overlays/example/job.yaml"])
def test_as_many_pods_as_nodes(job: str) -> None:
    """The job waits for as many nodes as it has pods, at a name that the Service provides."""
    spec = manifest(job, "Job")["spec"]
    (training,) = spec["template"]["spec"]["containers"]
    options = dict(option.split("=", 1) for option in training["command"] if option.startswith("--"))
    assert int(options["--nnodes"]) == spec["completions"] == spec["parallelism"]
    service = manifest("base/training/service.yaml", "Service")["metadata"]["name"]
    base = manifest("base/training/job.yaml", "Job")
    assert base["spec"]["template"]["spec"]["subdomain"] == service
    assert options["--master-addr"] == f"{base['metadata']['name']}-0.{service}"
