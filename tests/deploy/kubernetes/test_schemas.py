"""Everything that the chart installs and all examples are valid by the schemas of Kubernetes and of the operators."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.kubernetes.chart import NEWEST, OLDEST, ON_OLDEST, VARIANTS, examples, rendered
from tests.deploy.kubernetes.tools import resource_definitions, tool

SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
SCHEMA_FILE = "{{ .Group }}-{{ .ResourceKind }}-{{ .ResourceAPIVersion }}.json"

BUILT_IN = {
    *("_definitions", "configmap-v1", "daemonset-apps-v1", "job-batch-v1", "networkpolicy-networking-v1", "service-v1"),
    *("mutatingadmissionpolicy-admissionregistration-v1", "mutatingadmissionpolicybinding-admissionregistration-v1"),
}


class _Loader(yaml.CSafeLoader):
    """A reader for definitions, in which `=` is a text."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda _loader, node: node.value)


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kubernetes' own schemas, which refer to each other by their place on a server."""
    folder = tmp_path_factory.mktemp("built-in")
    for version in (OLDEST, NEWEST):
        (folder / version).mkdir()
        for path in (SCHEMAS / f"v{version}.0-local-strict").glob("*.json"):
            if path.stem in BUILT_IN:
                schema = json.loads(path.read_text().replace('"/api/_definitions.json', '"_definitions.json'))
                del schema["$id"]
                (folder / version / path.name).write_text(json.dumps(schema))
    return folder


@pytest.fixture(scope="module")
def monitoring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schemas of the Prometheus operator."""
    return schemas_of({"podmonitors", "prometheusrules"}, tmp_path_factory.mktemp("monitoring"))


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schemas of the operators that the examples are for, which are large."""
    return schemas_of(
        {"jobsets", "trainingruntimes", "trainjobs", "rayjobs", "instrumentations"},
        tmp_path_factory.mktemp("operators"),
    )


def schemas_of(names: set[str], folder: Path) -> Path:
    """Write the schemas of some resources into a folder; they allow no unknown field."""
    for path in resource_definitions():
        if path.stem.split("_")[1] not in names:
            continue
        definition = yaml.load(path.read_text(), Loader=_Loader)
        group, kind = definition["spec"]["group"], definition["spec"]["names"]["kind"].lower()
        for version in definition["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            for part in objects(schema):
                part.setdefault("additionalProperties", False)
            schema["properties"]["metadata"] = {"type": "object"}
            (folder / f"{group}-{kind}-{version['name']}.json").write_text(json.dumps(schema))
    assert len(list(folder.iterdir())) >= len(names)
    return folder


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """All parts of a schema that describe objects with known fields."""
    if isinstance(schema, list):
        for each in schema:
            yield from objects(each)
    if not isinstance(schema, dict):
        return
    is_object = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if is_object and not schema.get("x-kubernetes-preserve-unknown-fields"):
        yield schema
    for each in schema.values():
        yield from objects(each)


def complaints(text: str, built_in: Path, definitions: Path) -> str:
    """What kubeconform finds; '' if nothing."""
    done = subprocess.run(
        [
            *(tool("kubeconform"), "-strict", "-summary", "-output", "json"),
            *("-schema-location", f"{built_in}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"),
            *("-schema-location", f"{definitions}/{SCHEMA_FILE}"),
        ],
        input=text,
        capture_output=True,
        text=True,
    )
    result = json.loads(done.stdout)
    assert result["summary"]["valid"] + result["summary"]["invalid"] + result["summary"]["errors"] > 0
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(("variant", "version"), [(v, NEWEST) for v in VARIANTS] + [(v, OLDEST) for v in ON_OLDEST])
def test_chart(variant: str, version: str, built_in: Path, monitoring: Path) -> None:
    """All that the chart installs is valid in the oldest Kubernetes that it supports and in the newest."""
    assert complaints(rendered(*VARIANTS[variant], version=version), built_in / version, monitoring) == ""


@pytest.mark.thorough
@pytest.mark.parametrize("path", examples(), ids=lambda path: path.stem)
def test_example(path: Path, built_in: Path, operators: Path) -> None:
    """Each example is valid by the definitions of the operator that it is for."""
    assert complaints(path.read_text(), built_in / NEWEST, operators) == ""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("jobset", "replicatedJobs:", "replicatedJob:"),
        ("trainjob", "numProcPerNode:", "procPerNode:"),
        ("rayjob", "workerGroupSpecs:", "workerGroups:"),
        ("instrumentation", "python:", "snake:"),
    ],
)
def test_mistake_is_found(name: str, right: str, wrong: str, built_in: Path, operators: Path) -> None:
    """A misspelt field of an operator's resource is found, so the check above checks."""
    (text,) = [path.read_text() for path in examples() if path.stem == name]
    assert right in text
    assert wrong.rstrip(":") in complaints(text.replace(right, wrong), built_in / NEWEST, operators)
