"""The software bill of materials of a release, in CycloneDX's JSON.

It lists the packages that pip installs with `otel-torchdist[cli]`, with their licenses, and which of them need which.
The native libraries contain no code of others: they link torch's and the system's libraries, which are there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from release.environments import new_environment, site_packages, without_compiler
from release.outcomes import Outcome, last_line, outcome
from release.version import ROOT

_SPECIFICATION: Final = "1.6"


def write_sbom(wheel: Path, to: Path, *options: str) -> Outcome:
    """Install a wheel, and write the bill of materials of what has been installed; it is validated by its schema.

    Args:
        wheel: The wheel.
        to: The file to write.
        options: Further options of `pip install`.
    """
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-sbom-") as scratch:
        environment = Path(scratch) / "venv"
        pip = [sys.executable, "-m", "pip", "--python"]
        try:
            python = new_environment(Path(sys.executable), environment, "--without-pip")
            environ = without_compiler(environment)
            install = [*pip, str(python), "install", "--quiet", *options, f"{wheel.resolve()}[cli]"]
            subprocess.run(install, env=environ, cwd="/", capture_output=True, text=True, check=True)
            describe(python, to)
        except subprocess.CalledProcessError as error:
            return outcome("CycloneDX", to.name, f"{last_line(error.stderr)} ({error})")
        installed = {path.name.partition("-")[0] for path in site_packages(environment).glob("*.dist-info")}
    components = {component_name(one["name"]) for one in components_of(to)}
    missing = {component_name(name) for name in installed} - components - {"otel-torchdist"}
    trouble = f"it lacks {', '.join(sorted(missing))}" if missing else ""
    return outcome("CycloneDX", to.name, trouble, f"{len(components)} components, specification {_SPECIFICATION}")


def describe(python: Path, to: Path) -> None:
    """Write the bill of materials of an environment, the same for the same packages."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--validate", "--output-reproducible"]
    command += [f"--pyproject={ROOT / 'pyproject.toml'}", "--mc-type=library", f"--spec-version={_SPECIFICATION}"]
    command += ["--output-format=JSON", f"--output-file={to}", str(python)]
    environ = {**os.environ, "SOURCE_DATE_EPOCH": _epoch()}
    subprocess.run(command, env=environ, capture_output=True, text=True, check=True)


def _epoch() -> str:
    """Return the time of the checked-out commit in seconds, or that of pyproject.toml outside of a repository."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or str(int((ROOT / "pyproject.toml").stat().st_mtime))


def components_of(sbom: Path) -> list[dict[str, Any]]:
    """Return the components of a bill of materials."""
    document: dict[str, Any] = json.loads(sbom.read_text(encoding="utf-8"))
    return document["components"]


def component_name(name: str) -> str:
    """Return the normalized name of a package, as the index compares it."""
    return name.lower().replace("_", "-").replace(".", "-")
