"""The compose file with its two overlays: read and checked, as there is no container engine to run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
OVERLAYS = ("compose/secure.yaml", "compose/grafana-admin.yaml")
FILES = ("compose.yaml", *OVERLAYS)
LOOPBACK = "127.0.0.1"
VARIABLE = re.compile(r"\$\{\w+:(?P<kind>[-?])(?P<text>[^}]*)\}")


def by_default(value: Any) -> Any:
    """The value when no variable is set; a variable that must be set becomes the path of a user's file."""
    if isinstance(value, dict):
        return {key: by_default(item) for key, item in value.items()}
    if isinstance(value, list):
        return [by_default(item) for item in value]
    if isinstance(value, str):
        return VARIABLE.sub(lambda found: found["text"] if found["kind"] == "-" else "/users-own", value)
    return value


def services(file: str) -> dict[str, dict[str, Any]]:
    """The services of a compose file, with default values."""
    return by_default(yaml.safe_load((DEPLOY / file).read_text()))["services"]


def mounts(service: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Source, target and whether it is read-only, of all mounts."""
    found: list[tuple[str, str, bool]] = []
    for volume in service.get("volumes", []):
        if isinstance(volume, dict):
            found.append((volume["source"], volume["target"], volume["read_only"]))
        else:
            source, target, *mode = volume.split(":")
            found.append((source, target, mode == ["ro"]))
    return found


def mounted_files(file: str) -> list[Path]:
    """Mounts from the repository."""
    sources = [source for service in services(file).values() for source, _, _ in mounts(service)]
    return [DEPLOY / source for source in sources if source.startswith(".")]


def texts_of(service: dict[str, Any]) -> str:
    """Everything that a service gets from files of the repository."""
    files = [DEPLOY / source for source, _, _ in mounts(service) if source.startswith(".")]
    inside = [path for file in files for path in ([file] if file.is_file() else file.rglob("*")) if path.is_file()]
    return "\n".join(path.read_text() for path in inside)


@pytest.mark.parametrize("file", FILES)
def test_schema(file: str) -> None:
    """The file is valid by the specification's own schema."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / file]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES)
def test_mounted_files_exist(file: str) -> None:
    """Files mounted from the repository exist."""
    missing = [str(path) for path in mounted_files(file) if not path.exists()]
    assert missing == []


@pytest.mark.parametrize("file", FILES)
def test_mounts_from_outside_are_read_only(file: str) -> None:
    """Only named volumes are writable, and no directory is created by mistake where the jobs' tapes lie."""
    for service in services(file).values():
        for source, target, is_read_only in mounts(service):
            assert is_read_only or re.fullmatch(r"[a-z]+", source), target
    tapes = [volume for volume in services("compose.yaml")["prometheus"]["volumes"] if isinstance(volume, dict)]
    assert [volume["bind"] for volume in tapes] == [{"create_host_path": False}]


@pytest.mark.parametrize("name", services("compose.yaml"))
def test_container_is_confined(name: str) -> None:
    """No container can write to its image, has a capability, or gets more privileges than it began with."""
    service = services("compose.yaml")[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service and "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", services("compose.yaml"))
def test_image_is_pinned(name: str) -> None:
    """Each image has a full version."""
    assert re.fullmatch(r"[a-z]+/[a-z-]+:v?\d+\.\d+\.\d+", services("compose.yaml")[name]["image"])


def test_images_have_the_versions_that_tests_run() -> None:
    """Each image has the version that `make stack` builds from Go modules, under the module's number for it."""
    images = {name: service["image"].rpartition(":")[2] for name, service in services("compose.yaml").items()}
    prometheus = re.sub(r"v0\.(\d)(\d\d)\.", r"v\1.\2.", module_version("prometheus"))
    assert images["prometheus"] == prometheus
    assert images["alertmanager"] == module_version("alertmanager")
    assert (images["jaeger"], module_version("jaeger")) == ("2.13.0", "v1.76.0")  # two names of one release
    collector = yaml.safe_load((DEPLOY / "native" / "collector.yaml").read_text())
    assert images["collector"] == collector["dist"]["version"]


def module_version(name: str) -> str:
    """The version of a server's own module, such as `v0.316.0`."""
    text = (DEPLOY / "native" / name / "go.mod").read_text()
    [version] = re.findall(rf"^\tgithub\.com/\w+/{name} (\S+) // indirect$", text, re.MULTILINE)
    return version


@pytest.mark.parametrize("name", services("compose.yaml"))
def test_listens_on_loopback(name: str) -> None:
    """By default nothing is reachable from another machine."""
    service = services("compose.yaml")[name]
    hosts = [port.split(":")[0] for port in service.get("ports", [])]
    if service.get("network_mode") == "host":
        options = dict(option.split("=", 1) for option in service.get("command", []))
        listen = options.get("--web.listen-address", f"{service.get('environment', {}).get('GF_SERVER_HTTP_ADDR')}:")
        hosts.append(listen.rpartition(":")[0])
        assert not any(value == "0.0.0.0" for value in service["environment"].values())
    assert hosts
    assert set(hosts) == {LOOPBACK}


@pytest.mark.parametrize("file", FILES)
def test_no_password(file: str) -> None:
    """Secrets come from the user's files, and Grafana's administrator exists only with one."""
    for service in services(file).values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN|KEY", name):
                assert value.startswith("/"), name
    grafana = services("compose.yaml")["grafana"]["environment"]
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert grafana["GF_AUTH_BASIC_ENABLED"] == "false"
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FILES for name in services(file)])
def test_environment_is_read(file: str, name: str) -> None:
    """Every variable that is set is one that the component's configuration uses."""
    service = services(file)[name]
    names = {key for key in service.get("environment", {}) if not key.startswith("GF_")}
    text = texts_of(service)
    assert {key for key in names if not re.search(rf"\$\{{?(env:)?{key}\b", text)} == set()


@pytest.mark.parametrize("name", ["jaeger", "collector"])
def test_published_ports_are_served(name: str) -> None:
    """Every published port is one that the configuration opens by default."""
    service = services("compose.yaml")[name]
    text = texts_of(service)
    for published in service["ports"]:
        assert f":-{published.split(':')[-1]}}}" in text, published


@pytest.mark.parametrize("name", ["alertmanager", "collector"])
def test_targets_are_published(name: str) -> None:
    """Prometheus looks for Alertmanager and for the Collector where they are published."""
    target = json.loads((DEPLOY / "compose" / "targets" / name / "compose.json").read_text())
    published = services("compose.yaml")[name]["ports"][-1]
    assert [entry["targets"] for entry in target] == [[published.rpartition(":")[0]]]


def test_overlays_change_services_that_exist() -> None:
    """An overlay names services of the compose file, and repeats the options that it replaces."""
    base = services("compose.yaml")
    for file in OVERLAYS:
        for name, change in services(file).items():
            assert name in base
            if "command" in change:
                assert change["command"][: len(base[name]["command"])] == base[name]["command"]
