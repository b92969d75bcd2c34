"""The chart: Helm accepts it, every value is described, checked, and changes what is installed."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from release.version import declared_version
from tests.deploy.kubernetes.chart import CHART, DASHBOARDS, VARIANTS, helm, leaves, rendered, resources, the
from tests.support.repository import REPOSITORY

RULES = REPOSITORY / "deploy" / "prometheus" / "rules"
VALUES = (CHART / "values.yaml").read_text()
AGENT_ON_NODES = "nodeAgent.enabled=true"
JOB = "job.enabled=true"
OPERATOR = "prometheusOperator.podMonitor=true,prometheusOperator.rules=true"
FILES = "prometheusFiles.enabled=true"
EFFECTS: dict[str, tuple[str, str, str]] = {
    "image.repository": ("", "image.repository=r.example.com/a", "r.example.com/a:"),
    "image.tag": ("", "image.tag=7.8", "otel-torchdist:7.8"),
    "image.pullPolicy": ("", "image.pullPolicy=Always", 'imagePullPolicy: "Always"'),
    "image.pullSecrets": ("", "image.pullSecrets={one,two}", 'name: "two"'),
    "otlp.endpoint": ("", "otlp.endpoint=https://o:1", "https://o:1"),
    "otlp.headersSecret": ("", "otlp.headersSecret=token", 'secretKeyRef{key: "headers", name: "token"}'),
    "otlp.certificateConfigMap": ("", "otlp.certificateConfigMap=ca", 'mountPath: "/etc/otlp"'),
    "listen": ("", "listen=::", 'name: "OTEL_EXPORTER_PROMETHEUS_HOST", value: "::"'),
    "bundlesClaim": ("", "bundlesClaim=evidence", 'persistentVolumeClaim{claimName: "evidence"}'),
    "settings": ("", "settings.OTEL_METRICS_EXPORTER=otlp", 'name: "OTEL_METRICS_EXPORTER", value: "otlp"'),
    "sidecar.enabled": (JOB, "sidecar.enabled=false", "!MutatingAdmissionPolicy"),
    "sidecar.namespaceSelector": ("", "sidecar.namespaceSelector.matchLabels.team=a", "team: a"),
    "sidecar.user": ("", "sidecar.user=77", "1000 : 77"),
    "sidecar.nonRootUser": ("", "sidecar.nonRootUser=88", "? 88 :"),
    "sidecar.shareProcessNamespace": ("", "sidecar.shareProcessNamespace=false", '!path: "/spec/shareProcessNamespace'),
    "sidecar.sharedMemory": ("", "sidecar.sharedMemory=9Gi", 'sizeLimit: "9Gi"'),
    "sidecar.resources.requests.cpu": ("", "sidecar.resources.requests.cpu=7m", '"cpu": "7m"'),
    "sidecar.resources.requests.memory": ("", "sidecar.resources.requests.memory=7Mi", '"memory": "7Mi"'),
    "sidecar.resources.limits.memory": ("", "sidecar.resources.limits.memory=8Mi", '"memory": "8Mi"'),
    "nodeAgent.enabled": ("", AGENT_ON_NODES, "kind: DaemonSet"),
    "nodeAgent.user": (AGENT_ON_NODES, "nodeAgent.user=1000", "runAsUser: 1000"),
    "nodeAgent.hostPID": (AGENT_ON_NODES, "nodeAgent.hostPID=true", "SYS_PTRACE"),
    "nodeAgent.tolerations": (AGENT_ON_NODES, "nodeAgent.tolerations[0].key=gpu", "key: gpu"),
    "nodeAgent.nodeSelector": (AGENT_ON_NODES, "nodeAgent.nodeSelector.pool=gpu", "pool: gpu"),
    "nodeAgent.resources.requests.cpu": (AGENT_ON_NODES, "nodeAgent.resources.requests.cpu=7m", "cpu: 7m"),
    "nodeAgent.resources.requests.memory": (AGENT_ON_NODES, "nodeAgent.resources.requests.memory=7Mi", "memory: 7Mi"),
    "nodeAgent.resources.limits.memory": (AGENT_ON_NODES, "nodeAgent.resources.limits.memory=8Mi", "memory: 8Mi"),
    "job.enabled": ("", JOB, "kind: Job"),
    "job.image": (JOB, "job.image=mine:2", "image: mine:2"),
    "job.nodes": (JOB, "job.nodes=5", "--nnodes=5"),
    "job.ranksPerNode": (JOB, "job.ranksPerNode=6", "--nproc-per-node=6"),
    "job.command": (JOB, "job.command={a.py,--fast}", "- --fast"),
    "job.user": (JOB, "job.user=1234", "runAsGroup: 1234"),
    "job.gpus": (JOB, "job.gpus=8", 'nvidia.com/gpu: "8"'),
    "job.sharedMemory": (JOB, "job.sharedMemory=9Gi", "sizeLimit: 9Gi"),
    "job.resources.requests.cpu": (JOB, "job.resources.requests.cpu=7", "cpu: 7"),
    "job.resources.requests.memory": (JOB, "job.resources.requests.memory=7Gi", "memory: 7Gi"),
    "job.resources.limits.memory": (JOB, "job.resources.limits.memory=8Gi", "memory: 8Gi"),
    "networkPolicy.enabled": (f"{JOB},{AGENT_ON_NODES}", "networkPolicy.enabled=false", "!kind: NetworkPolicy"),
    "networkPolicy.prometheusNamespace": (
        AGENT_ON_NODES,
        "networkPolicy.prometheusNamespace=seen",
        "metadata.name: seen",
    ),
    "prometheusOperator.podMonitor": ("", "prometheusOperator.podMonitor=true", "kind: PodMonitor"),
    "prometheusOperator.rules": ("", "prometheusOperator.rules=true", "kind: PrometheusRule"),
    "prometheusOperator.labels": (OPERATOR, "prometheusOperator.labels.release=kps", "release: kps"),
    "prometheusOperator.interval": (OPERATOR, "prometheusOperator.interval=9s", "interval: 9s"),
    "prometheusFiles.enabled": ("", FILES, "file_sd_configs"),
    "prometheusFiles.directory": (FILES, "prometheusFiles.directory=/etc/x", "/etc/x/targets"),
    "prometheusFiles.targets": (FILES, "prometheusFiles.targets={n0:9464}", '"targets":["n0:9464"]'),
    "dashboards.enabled": ("", "dashboards.enabled=true", "job-overview.json"),
    "dashboards.labels.grafana_dashboard": (
        "dashboards.enabled=true",
        "dashboards.labels.grafana_dashboard=x",
        "_dashboard: x",
    ),
}
"""For each value: what must be on, the change, and what is in the result only then; with `!`, what no longer is."""


def options(*texts: str) -> tuple[str, ...]:
    """Options of Helm that set values."""
    return tuple(option for text in texts if text for option in ("--set", text))


@pytest.mark.parametrize("variant", VARIANTS)
def test_lint(variant: str) -> None:
    """Helm's own checks find nothing."""
    done = helm("lint", "--strict", CHART, "--kube-version", "1.37", *VARIANTS[variant])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


def test_version() -> None:
    """The chart and its image have the version of the package."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == declared_version()
    assert chart["version"].replace("-", "") == declared_version()


def test_each_value_is_tried() -> None:
    """The table above has each value of the chart."""
    assert list(EFFECTS) == list(leaves(yaml.safe_load(VALUES)))


@pytest.mark.parametrize("name", EFFECTS)
def test_value_has_an_effect(name: str) -> None:
    """Each value changes what is installed, as it says."""
    needed, change, expected = EFFECTS[name]
    before, after = rendered(*options(needed)), rendered(*options(needed, change))
    if expected.startswith("!"):
        before, after = after, before
    assert expected.removeprefix("!") not in before
    assert expected.removeprefix("!") in after


def test_values_are_described() -> None:
    """Above each group and each value that does not say everything by its name there is a comment."""
    lines = VALUES.splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\w+:", line):
            assert lines[number - 1].startswith("# "), line
    assert all(len(line) <= 130 for line in lines)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("sidecar.enable=true", "enable"),
        ("otlp.endpoint=collector:4317", "/otlp/endpoint"),
        ("settings.OTEL_A=1", "/settings/OTEL_A"),
        ("job.nodes=0", "/job/nodes"),
        ("prometheusFiles.targets={http://a/metrics}", "/prometheusFiles/targets/0"),
        ("sidecar.resources.limit.memory=1Gi", "limit"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
    ],
)
def test_bad_value_is_refused(change: str, named: str) -> None:
    """A wrong name or value is an error that names it."""
    done = helm("template", "torchdist", CHART, "--kube-version", "1.37", "--set", change)
    assert done.returncode != 0
    assert named in done.stderr.replace("'", "")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("OTEL_EXPORTER_OTLP_ENDPOINT", "otlp.endpoint"), ("OTEL_PYTHON_TORCHDIST_BUNDLES", "bundlesClaim")],
)
def test_setting_that_a_value_sets(setting: str, value: str) -> None:
    """A variable that the chart sets itself is refused in `settings`, with the value to use instead."""
    done = helm("template", "torchdist", CHART, "--kube-version", "1.37", "--set", f"settings.{setting}=x")
    assert done.returncode != 0
    assert f"settings.{setting}: set the value {value} instead" in done.stderr


def test_resource_attributes_and_service_name() -> None:
    """A user's attributes come after the chart's, and a user's service name replaces the pod's label."""
    text = rendered("--set", f"{AGENT_ON_NODES},settings.OTEL_RESOURCE_ATTRIBUTES=team=a,settings.OTEL_SERVICE_NAME=s")
    assert "k8s.node.name=$(NODE_NAME),team=a" in text
    assert text.count("OTEL_RESOURCE_ATTRIBUTES") == text.count("OTEL_SERVICE_NAME") == 2


def test_long_name_of_a_release() -> None:
    """Names of services and of pods fit into 63 characters."""
    done = helm("template", 53 * "r", CHART, "--kube-version", "1.37", "--set", f"{JOB},{AGENT_ON_NODES}")
    assert done.returncode == 0
    names = re.findall(r"^  name: (\S+)$", done.stdout, re.MULTILINE)
    assert max(map(len, names)) <= 63
    assert max(len(name) for name in names if name.endswith("-training")) <= 63 - len("-1023")  # the index of a pod


def test_maps_without_entries() -> None:
    """Labels and limits may be empty."""
    text = rendered(
        "--set",
        f"dashboards.enabled=true,dashboards.labels.grafana_dashboard=null,{JOB},job.gpus=1,job.resources.limits.memory=null",
    )
    assert all(isinstance(each, dict) for each in yaml.safe_load_all(text) if each is not None)


def test_old_kubernetes_is_told() -> None:
    """Before 1.36 there is no policy that could add sidecars; the error says what to do instead."""
    done = helm("template", "torchdist", CHART, "--kube-version", "1.35")
    assert done.returncode != 0
    assert "sidecar.enabled needs Kubernetes 1.36 (MutatingAdmissionPolicy), this is v1.35" in done.stderr


def test_rules_are_the_rules() -> None:
    """The PrometheusRule has the groups of all rule files unchanged, and without those of the rules' own tests."""
    found = the("PrometheusRule", resources(*VARIANTS["operator"]))["spec"]
    expected = [group for path in sorted(RULES.glob("*.yaml")) for group in yaml.safe_load(path.read_text())["groups"]]
    assert found == {"groups": expected}
    assert len({group["name"] for group in expected}) == len(expected) > 1


def test_dashboards_are_the_dashboards() -> None:
    """Each dashboard is in a ConfigMap of its own, as Grafana's sidecar reads it, and small enough for one."""
    maps = [each for each in resources(*VARIANTS["files"]) if "grafana_dashboard" in each["metadata"]["labels"]]
    texts = {name: text for each in maps for name, text in each["data"].items()}
    assert len(maps) == len(texts)
    assert {name: json.loads(text) for name, text in texts.items()} == {
        path.name: json.loads(path.read_text()) for path in DASHBOARDS.glob("*.json")
    }
    assert all(len(text) < 1_000_000 for text in texts.values())


def test_chart_is_complete_wherever_it_is_copied() -> None:
    """No file of the chart is a symbolic link: archives and some checkouts have a text in its place."""
    assert [path for path in CHART.rglob("*") if path.is_symlink()] == []


def test_files_for_prometheus() -> None:
    """Without the operator, Prometheus gets the same rules, the same labels and targets from files."""
    data = the_map("torchdist-otel-torchdist-prometheus")
    for path in RULES.glob("*.yaml"):
        assert yaml.safe_load(data[path.name]) == yaml.safe_load(path.read_text())
    assert json.loads(data["targets.json"]) == [{"targets": []}]
    pods, files = yaml.safe_load(data["scrape.yaml"])["scrape_configs"]
    monitor = the("PodMonitor", resources(*VARIANTS["operator"]))["spec"]
    assert pods["job_name"] == monitor["podMetricsEndpoints"][0]["relabelings"][0]["replacement"]
    assert files["file_sd_configs"] == [{"files": ["/etc/prometheus/torchdist/targets*.json"]}]


def the_map(name: str) -> dict[str, str]:
    """The content of a ConfigMap of the variant with files."""
    (found,) = [each for each in resources(*VARIANTS["files"]) if each["metadata"]["name"] == name]
    return found["data"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_notes(variant: str) -> None:
    """What Helm prints after the installation names what was installed, and is complete text."""
    done = helm(*("install", "torchdist", CHART, "--dry-run=client", "--namespace", "training"), *VARIANTS[variant])
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:\n")[1]
    assert "{{" not in notes and "<no value>" not in notes
    assert ("otel-torchdist/agent: sidecar" in notes) == (variant in {"sidecar", "gpu-cluster"})
    assert ("privileged" in notes) == variant.startswith("nodeAgent")
