"""The workflows fit GitHub's schema, the Makefile and the supported versions; GitHub itself has not run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.pythons import supported_pythons
from tests.support.documented import problems
from tests.support.repository import REPOSITORY
from wheels.libraries import MACHINES
from wheels.torches import VERSIONS

WORKFLOWS = REPOSITORY / ".github" / "workflows"
FILES = sorted(WORKFLOWS.glob("*.yml"))


def jobs_of(name: str) -> dict[str, Any]:
    """The jobs of a workflow."""
    return yaml.safe_load((WORKFLOWS / name).read_text())["jobs"]


def commands(jobs: dict[str, Any]) -> list[str]:
    """The commands of all steps."""
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_schema() -> None:
    """Both files are workflows by GitHub's schema."""
    assert [path.name for path in FILES] == ["ci.yml", "release.yml"]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *map(str, FILES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_says_that_it_has_not_run(path: Path) -> None:
    """The first line says so; the commands are targets and modules that exist."""
    assert path.read_text().startswith("# Not yet run on GitHub.")
    for command in commands(jobs_of(path.name)):
        if command.startswith(("make", ".venv/bin/python")):
            filled = re.sub(r"\$\{\{ matrix.(\w+) \}\}|\$\{GITHUB_\w+\}", "given", command)
            assert problems(f"\n```sh\n{filled}\n```\n") == []


def test_ci_runs_what_runs_here() -> None:
    """The whole suite runs by the script that runs it elsewhere, and each torch and Python has a job."""
    jobs = jobs_of("ci.yml")
    assert ".ci/run" in commands(jobs)
    assert (REPOSITORY / ".ci" / "run").stat().st_mode & 0o100
    combinations = jobs["versions"]["strategy"]["matrix"]["include"]
    assert {one["torch"] for one in combinations} == {*VERSIONS}
    assert {one["python"] for one in combinations} == {*supported_pythons()}


def test_ci_runs_the_oldest_opentelemetry() -> None:
    """A job has the lower bound of pyproject.toml, which SUPPORT promises, and its tests exist."""
    [oldest] = re.findall(r'"opentelemetry-sdk>=([\d.]+)"', (REPOSITORY / "pyproject.toml").read_text())
    [command] = [command for command in commands(jobs_of("ci.yml")) if "OPENTELEMETRY" in command]
    found = re.fullmatch(r'make test OPENTELEMETRY=(\S+) ARGS="(.*)"', command)
    assert found
    assert found[1] == oldest
    assert [path for path in found[2].split() if not (REPOSITORY / path).exists()] == []
    assert f"API and SDK from {oldest};" in (REPOSITORY / "SUPPORT.md").read_text()


def test_release_has_all_pythons_and_machines() -> None:
    """Each job that installs has all supported Pythons, and each architecture with a wheel has such a job."""
    jobs = jobs_of("release.yml")
    for name, machine in (("build", "x86_64"), ("aarch64", "aarch64")):
        assert machine in MACHINES
        [setup] = [step for step in jobs[name]["steps"] if "setup-python" in step.get("uses", "")]
        versions = setup["with"]["python-version"].split()
        assert {*versions} == {*supported_pythons()}
        assert versions[-1] == "3.11"  # `python3`, which makes `.venv`: torch 2.15 needs 3.11
        assert any("make release" in step.get("run", "") for step in jobs[name]["steps"])


def test_only_publishing_may_identify_itself() -> None:
    """Only the job that runs no code of the repository gets a token for the index, and it waits for all checks."""
    jobs = jobs_of("release.yml")
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    publish = jobs["publish"]
    assert {*publish["needs"]} == {*jobs} - {"publish"}
    assert publish["environment"]["name"] == "pypi"
    assert not [step for step in publish["steps"] if "checkout" in step.get("uses", "")]
    [upload] = [step for step in publish["steps"] if "gh-action-pypi-publish" in step.get("uses", "")]
    assert upload["with"]["attestations"] is True
