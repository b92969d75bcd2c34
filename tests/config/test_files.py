"""Settings in configuration files: what is read, what wins, and what is logged about the rest."""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_torchdist.config import Config, PageAccess, declared_files
from otel_torchdist.config.declared_file import MAX_BYTES
from otel_torchdist.environment_variables import (
    OTEL_CONFIG_FILE,
    OTEL_PYTHON_TORCHDIST_CONFIG,
    OTEL_PYTHON_TORCHDIST_ENABLED,
    OTEL_PYTHON_TORCHDIST_SHARE,
    OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT,
)

pytest.importorskip("yaml")

OF_NODE, OF_JOB = OTEL_PYTHON_TORCHDIST_CONFIG, OTEL_CONFIG_FILE
SECTION = "instrumentation/development: {python: {torch_distributed: %s}}\n"


def written(folder: Path, text: str, name: str = "config.yaml") -> str:
    """Write a file that only its owner can change, whatever the umask; return its path."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All that was logged, as warnings of ours."""
    assert all((record.name, record.levelno) == ("otel_torchdist", logging.WARNING) for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("variable", [OF_NODE, OF_JOB])
def test_section_switches_on_and_sets(variable: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both files have the same keys: our section switches on, and its values mean what they mean in variables."""
    text = """
file_format: "1.0"
instrumentation/development:
  python:
    torch_distributed:
      stall_timeout: 2500
      page: off          # a word, as in the variable, and no boolean of YAML 1.1
      compare_calls: false
      numerics_ranks: [0, 8-15]
      tape_dir: ${SCRATCH:-/dev/shm}/tapes-${env:WHO}-$$
"""
    environ = {variable: written(tmp_path, text), "WHO": "me"}
    config = Config.from_environment(environ)
    assert config.switched_on
    assert (config.stall_timeout, config.page, config.compare_calls) == (2.5, PageAccess.OFF, False)
    assert config.numerics_ranks == (range(1), range(8, 16))
    assert config.tape_dir == Path("/dev/shm/tapes-me-$")
    assert Config.from_environment(environ | {"SCRATCH": "/scratch"}).tape_dir == Path("/scratch/tapes-me-$")
    assert not caplog.records


@pytest.mark.parametrize(
    ("section", "on"), [("", True), ("{}", True), ("{enabled: true}", True), ("{enabled: false}", False)]
)
def test_listed_is_on(section: str, on: bool, tmp_path: Path) -> None:
    """As for every instrumentation in a declarative configuration, being listed means on."""
    assert Config.from_environment({OF_NODE: written(tmp_path, SECTION % section)}).switched_on is on


def test_other_keys_do_not_switch_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file without our section switches nothing on, whatever else it has."""
    text = "file_format: '1.0'\ninstrumentation/development: {python: {requests: {}}}\n# torch_distributed\n"
    assert Config.from_environment({OF_JOB: written(tmp_path, text)}) == Config()
    assert not caplog.records


def test_openTelemetrys_own_keys(tmp_path: Path) -> None:
    """`disabled` switches all off, and the address of a Prometheus exporter is that of `/metrics`."""
    text = SECTION % "{}" + "disabled: ${OFF}\n"
    text += "meter_provider: {readers: [{pull: {exporter: {prometheus/development: {host: 0.0.0.0, port: 9500}}}}]}\n"
    environ = {OF_JOB: written(tmp_path, text)}
    config = Config.from_environment(environ)
    assert (config.prometheus_host, config.prometheus_port, config.switched_on) == ("0.0.0.0", 9500, True)
    assert not Config.from_environment(environ | {"OFF": "true"}).switched_on


@pytest.mark.parametrize("where", list(itertools.product([False, True], repeat=3)))
def test_precedence(where: tuple[bool, bool, bool], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Environment variable, OTEL_CONFIG_FILE, the node's file, default: the first that has a setting decides it."""
    variable, job, node = where
    environ = {
        OF_JOB: written(tmp_path, SECTION % ("{stall_timeout: 2000}" if job else "{span_budget: 7}"), "job.yaml"),
        OF_NODE: written(tmp_path, SECTION % ("{stall_timeout: 3000}" if node else "{keep_runs: 9}"), "node.yaml"),
        OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT: "1000" if variable else "",
    }
    config = Config.from_environment(environ)
    assert config.stall_timeout == (1.0 if variable else 2.0 if job else 3.0 if node else 10.0)
    assert (config.span_budget, config.keep_runs) == (1000 if job else 7, 8 if node else 9)
    assert not caplog.records


@pytest.mark.parametrize(
    ("switch", "job", "node", "on", "share"),
    [
        ("", "", "{share: 0.1}", True, 0.1),
        ("", "", "{share: 0.1, enabled: false}", False, 0.1),
        ("true", "", "{share: 0.1}", True, 1.0),
        ("true", "", "{enabled: false}", True, 1.0),
        ("false", "", "{share: 0.1}", False, 1.0),
        ("", "{}", "{share: 0.1}", True, 1.0),
        ("", "{enabled: false}", "{share: 0.1}", False, 1.0),
        ("", "{share: 0.2}", "{share: 0.1}", True, 0.2),
        ("", "{share: 0.2}", "{}", True, 0.2),
    ],
)
def test_share_yields_to_a_users_switch(
    switch: str, job: str, node: str, on: bool, share: float, tmp_path: Path
) -> None:
    """A share applies to jobs that its own file switches on, and to none that a source above it switches on."""
    environ = {OF_NODE: written(tmp_path, SECTION % node, "node.yaml"), OTEL_PYTHON_TORCHDIST_ENABLED: switch}
    if job:
        environ[OF_JOB] = written(tmp_path, SECTION % job, "job.yaml")
    config = Config.from_environment(environ)
    assert (config.switched_on, config.share) == (on, share)


def test_share_in_the_environment() -> None:
    """A wrapper of a site may set both variables."""
    on = {OTEL_PYTHON_TORCHDIST_ENABLED: "true"}
    assert Config.from_environment(on | {OTEL_PYTHON_TORCHDIST_SHARE: ".25"}).share == 0.25


def test_bad_values_and_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each bad key or value is one warning with the file, the key, the value, and what is used instead."""
    section = "{stall_timeout: 10s, share: 30%, spam_budget: 7, sdk_disabled: true, archive: {a: b}, keep_runs: [1, 2]}"
    path = written(tmp_path, SECTION % section)
    below = written(tmp_path, SECTION % "{stall_timeout: 3000}", "node.yaml")
    config = Config.from_environment({OF_JOB: path, OF_NODE: below})
    assert (config.stall_timeout, config.share, config.archive, config.sdk_disabled) == (3.0, 1.0, None, False)
    name = f"OTEL_CONFIG_FILE={path}: torch_distributed"
    assert sorted(messages(caplog)) == [
        f"{name} has no setting 'sdk_disabled': it is ignored",
        f"{name} has no setting 'spam_budget' (did you mean span_budget?): it is ignored",
        f"{name}.archive is neither a scalar nor a list of scalars: it is ignored",
        f"{name}.keep_runs='1,2' is not a whole number at least 0: using 8",
        f"{name}.share='30%' is not a number from 0 to 1: using 1",
        f"{name}.stall_timeout='10s' is not a whole number of milliseconds from 100 to 2147483647: using 3000",
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"torch_distributed: [", "it is not YAML: "),
        (b"- torch_distributed", "it is not a mapping of keys to values"),
        (b"torch_distributed: \xff", "it is not UTF-8 (byte 19)"),
        (b"torch_distributed: " + b"#" * MAX_BYTES, f"it is larger than {MAX_BYTES} bytes"),
    ],
)
def test_unusable_content(content: bytes, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be used is one warning of one line that names it, and counts as empty."""
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    path.chmod(0o600)
    assert Config.from_environment({OF_NODE: str(path)}).switched_on is False
    [message] = messages(caplog)
    assert message.startswith(f"{path}: {reason}")
    assert message.endswith(": its settings are not used")
    assert "\n" not in message


def test_missing_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A node without a file is no news; a file that a user has named, and that is missing, is."""
    assert Config.from_environment({OF_NODE: str(tmp_path / "none.yaml")}) == Config(node_file=tmp_path / "none.yaml")
    assert not caplog.records
    Config.from_environment({OF_JOB: str(tmp_path / "none.yaml")})
    assert messages(caplog) == [
        f"OTEL_CONFIG_FILE={tmp_path}/none.yaml: it cannot be read (No such file or directory): "
        "its settings are not used"
    ]


def test_no_file(caplog: pytest.LogCaptureFixture) -> None:
    """`/dev/null` stands for no file, and a folder or a pipe is one warning, without waiting for a writer."""
    assert not Config.from_environment({OF_NODE: "/dev/null"}).switched_on
    assert not caplog.records


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_not_a_regular_file(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder or a pipe is one warning, without waiting for a writer."""
    path = tmp_path / kind
    (path.mkdir if kind == "folder" else lambda: os.mkfifo(path))()
    Config.from_environment({OF_NODE: str(path)})
    assert messages(caplog) == [f"{path}: it is not a regular file: its settings are not used"]


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_file_that_others_can_write(mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node's file is refused if others can write to it: they could make every rank of a user run their hook."""
    path = written(tmp_path, SECTION % "{}")
    os.chmod(path, mode)
    assert not Config.from_environment({OF_NODE: path}).switched_on
    assert messages(caplog) == [
        f"{path}: users other than its owner can write to it (mode {mode:04o}): its settings are not used"
    ]
    assert Config.from_environment({OF_JOB: path}).switched_on  # the job's user has named this one


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node's file is refused if it belongs to a user other than root and this one."""
    path = written(tmp_path, SECTION % "{}")
    os.chown(path, 4711, -1)
    assert not Config.from_environment({OF_NODE: path}).switched_on
    assert messages(caplog) == [
        f"{path}: it belongs to user 4711, and neither to root nor to this user: its settings are not used"
    ]


def test_link_is_followed(tmp_path: Path) -> None:
    """Kubernetes mounts a ConfigMap as links."""
    (tmp_path / "link.yaml").symlink_to(written(tmp_path, SECTION % "{}"))
    assert Config.from_environment({OF_NODE: str(tmp_path / "link.yaml")}).switched_on


def test_without_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without PyYAML a YAML file is one warning and off, and a JSON file works."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = written(tmp_path, SECTION % "{}")
    assert not Config.from_environment({OF_NODE: path}).switched_on
    assert messages(caplog) == [
        f"{path}: PyYAML is not installed (pip install pyyaml, or name a .json file): its settings are not used"
    ]
    section = {"instrumentation/development": {"python": {"torch_distributed": {"share": 0.5, "announce": False}}}}
    config = Config.from_environment({OF_NODE: written(tmp_path, json.dumps(section), "config.json")})
    assert (config.switched_on, config.share, config.announce) == (True, 0.5, False)


def test_nothing_for_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A file with exporters only is not parsed in a rank, which saves PyYAML's memory."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = written(tmp_path, "file_format: '1.0'\ntracer_provider: {processors: []}\n")
    assert Config.from_environment({OF_JOB: path}) == Config()
    assert not caplog.records
    [file] = declared_files({OF_JOB: path}, for_rank=False)
    assert file.problem.startswith("PyYAML is not installed")


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["python", "enabled", "share", "x"]), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ANY, st.sampled_from(["instrumentation/development", "meter_provider", "disabled", "tracer_provider"]))
def test_any_content_is_survived(tmp_path: Path, value: object, key: str) -> None:
    """Whatever a file has under the keys that we read, nothing is raised."""
    text = json.dumps({key: value, "x": "torch_distributed"})
    Config.from_environment({OF_NODE: written(tmp_path, text, "config.json")})
    nested = {"instrumentation/development": {"python": {"torch_distributed": value}}}
    Config.from_environment({OF_NODE: written(tmp_path, json.dumps(nested), "config.json")})
