"""The manifests of deploy/kubernetes, as read by the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
CUSTOM = "monitoring.coreos.com/v1"
"""Resources of the Prometheus operator; their schemas are not available."""
POD_KINDS = ("Job", "DaemonSet")


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents in a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def kustomizations() -> list[Path]:
    """All kustomization files."""
    return sorted(KUBERNETES.rglob("kustomization.yaml"))


def named_by(kustomization: Path, field: str) -> list[Path]:
    """The files and directories that a kustomization names in a field."""
    entries = documents(kustomization)[0].get(field, [])
    names = [entry["path"] if isinstance(entry, dict) else entry for entry in entries]
    return [(kustomization.parent / name).resolve() for name in names]


def all_files(field: str) -> list[Path]:
    """The files that any kustomization names in a field, in a fixed order."""
    return sorted({path for file in kustomizations() for path in named_by(file, field) if path.suffix == ".yaml"})


def resources() -> list[dict[str, Any]]:
    """All resources whose files exist."""
    return [document for path in all_files("resources") if path.is_file() for document in documents(path)]


def pod_template(workload: dict[str, Any]) -> dict[str, Any]:
    """The template of a workload's pods."""
    return workload["spec"]["template"]


def pod_templates() -> list[dict[str, Any]]:
    """The pod templates of all workloads."""
    return [pod_template(resource) for resource in resources() if resource["kind"] in POD_KINDS]


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of a pod, including sidecars."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def manifest(path: str, kind: str) -> dict[str, Any]:
    """The only resource of a kind in a file."""
    (found,) = [document for document in documents(KUBERNETES / path) if document["kind"] == kind]
    return found
