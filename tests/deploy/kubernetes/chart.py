"""The chart as Helm renders it, and the examples beside it."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from tests.deploy.kubernetes.tools import tool
from tests.support.repository import REPOSITORY

CHART: Final = REPOSITORY / "deploy" / "helm" / "otel-torchdist"
DASHBOARDS: Final = REPOSITORY / "grafana" / "dashboards"
EXAMPLES: Final = REPOSITORY / "examples" / "kubernetes"
CLUSTER_VALUES: Final = EXAMPLES / "values-gpu-cluster.yaml"
OLDEST: Final = "1.29"
NEWEST: Final = "1.37"
VARIANTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sidecar": (),
        "nodeAgent": ("--set", "sidecar.enabled=false,nodeAgent.enabled=true"),
        "nodeAgent-user": ("--set", "sidecar.enabled=false,nodeAgent.enabled=true,nodeAgent.user=1000"),
        "nodeAgent-hostPID": ("--set", "sidecar.enabled=false,nodeAgent.enabled=true,nodeAgent.hostPID=true"),
        "job": ("--set", "sidecar.enabled=false,job.enabled=true"),
        "operator": (
            "--set",
            "sidecar.enabled=false,prometheusOperator.podMonitor=true,prometheusOperator.rules=true",
        ),
        "files": ("--set", "sidecar.enabled=false,prometheusFiles.enabled=true,dashboards.enabled=true"),
        "gpu-cluster": ("--values", str(CLUSTER_VALUES)),
    }
)
"""Ways to install it, by what they turn on."""
ON_OLDEST: Final = tuple(name for name in VARIANTS if name not in {"sidecar", "gpu-cluster"})
"""Variants that do not need the newest Kubernetes."""


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Helm."""
    return subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, check=False)


@functools.cache
def rendered(*options: str, version: str = NEWEST) -> str:
    """What `helm template` prints with these options."""
    done = helm("template", "torchdist", CHART, "--namespace", "training", "--kube-version", version, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def resources(*options: str, version: str = NEWEST) -> list[dict[str, Any]]:
    """The resources that Helm renders with these options."""
    return [each for each in yaml.safe_load_all(rendered(*options, version=version)) if each is not None]


def the(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The only resource of a kind."""
    (one,) = [each for each in found if each["kind"] == kind]
    return one


def pod_template(workload: dict[str, Any]) -> dict[str, Any]:
    """The template of a workload's pods."""
    return workload["spec"]["template"]


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of a pod, including sidecars."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def examples() -> list[Path]:
    """The manifests for operators of other projects."""
    return sorted(path for path in EXAMPLES.glob("*.yaml") if not path.name.startswith("values-"))


def pod_templates_in(value: Any) -> Iterator[dict[str, Any]]:
    """All templates of pods in a resource of any kind."""
    if isinstance(value, list):
        for each in value:
            yield from pod_templates_in(each)
    if not isinstance(value, dict):
        return
    if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
        yield value
    for each in value.values():
        yield from pod_templates_in(each)


def leaves(values: Any, path: str = "") -> Iterator[str]:
    """The paths of all values, such as `image.tag`."""
    if not isinstance(values, dict) or not values:
        yield path
        return
    for name, value in values.items():
        yield from leaves(value, f"{path}.{name}".lstrip("."))
