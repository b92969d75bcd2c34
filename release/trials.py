"""Installs the files of a release as users do, in empty environments without a compiler, and uses them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from installation.self_check import check as check_recording
from release.environments import lend_packages, new_environment, without_compiler
from release.metadata import metadata_of
from release.outcomes import Outcome, Result, last_line, outcome
from release.pythons import Interpreter
from release.version import ROOT

_FIRST_STEPS: Final = Path(__file__).with_name("first_steps.py")
_LOG: Final = ROOT / "tests" / "sources" / "evidence" / "data" / "gloo_raise.log"
"""The log of a job that failed: rank 1 with a ValueError."""
_VERDICT: Final = "rank 1        ended with exit code 1, after ValueError: loss is nan"
_PROBLEM: Final = 1
"""Exit code of `diagnose` for a job with a problem."""
_QUICKLY: Final = ("--quiet", "--no-compile", "--disable-pip-version-check")
_INSTALL_S: Final = 900


@dataclass(frozen=True)
class Trial:
    """The trial of one file in one environment.

    Attributes:
        outcome: Its result.
        python: Version of the environment's Python; '' if unknown.
        sdk: Version of OpenTelemetry's SDK there; '' if unknown.
        torch: Version of the torch whose call was recorded; '' without torch.
    """

    outcome: Outcome
    python: str = ""
    sdk: str = ""
    torch: str = ""


def try_file(file: Path, version: str, interpreter: Interpreter, *options: str, lent: Path | None = None) -> Trial:
    """Install a wheel or the sources with pip in a new environment, and use the commands there, without torch.

    Args:
        file: The file.
        version: The version that it must have.
        interpreter: The Python of the environment.
        options: Further options of `pip install`.
        lent: A folder of packages that the environment sees, so that pip need not download them.
    """
    check = f"pip install on Python {interpreter.version}"
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-trial-") as scratch:
        environment = Path(scratch) / "venv"
        try:
            python = new_environment(interpreter.path, environment, lent=lent)
            _run([str(python), "-m", "pip", "install", *_QUICKLY, *options, f"{file.resolve()}[cli]"], environment)
            found = json.loads(last_line(_run([str(python), "-I", str(_FIRST_STEPS)], environment).stdout))
            trouble = _trouble(found, file, version) or _diagnose(environment)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return Trial(outcome(check, file.name, _reason(error)), interpreter.version)
        detail = f"{found['modules']} modules, {len(found['libraries'])} libraries"
        return Trial(outcome(check, file.name, trouble, detail), interpreter.version, found["sdk"])


def try_oldest(wheel: Path, version: str, interpreter: Interpreter) -> Trial:
    """Install a wheel beside the oldest packages that its metadata accepts, and use the commands there.

    uv chooses them: pip has no such option. What they need themselves is as new as they accept.
    """
    check = f"oldest dependencies on Python {interpreter.version}"
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if not uv:
        return Trial(Outcome(check, wheel.name, Result.NOT_RUN, "there is no uv"))
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-trial-") as scratch:
        environment = Path(scratch) / "venv"
        try:
            python = new_environment(interpreter.path, environment, "--without-pip")
            install = [uv, "pip", "install", "--quiet", "--resolution=lowest-direct", f"--python={python}"]
            _run([*install, str(wheel.resolve()), *requirements(wheel, "cli")], environment)
            found = json.loads(last_line(_run([str(python), "-I", str(_FIRST_STEPS)], environment).stdout))
            trouble = _trouble(found, wheel, version) or _diagnose(environment)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return Trial(outcome(check, wheel.name, _reason(error)), interpreter.version)
        return Trial(outcome(check, wheel.name, trouble, found["sdk"]), interpreter.version, found["sdk"])


def requirements(wheel: Path, extra: str) -> list[str]:
    """Return the packages that a wheel needs with an extra, as its metadata names them."""
    required = metadata_of(wheel).get_all("Requires-Dist") or []
    of_extra = [line.partition(";")[0].strip() for line in required if line.endswith(f"extra == '{extra}'")]
    return [line for line in required if ";" not in line] + of_extra


def _trouble(found: dict[str, object], file: Path, version: str) -> str:
    if found["version"] != version:
        return f"it says that it is version {found['version']}"
    if found["missing"]:
        return f"modules cannot be imported: {found['missing']}"
    if bool(found["libraries"]) != ("manylinux" in file.name):
        return f"it brings the libraries {found['libraries']}"
    return ""


def _diagnose(environment: Path) -> str:
    """Diagnose the log of a failed job with the installed command; return why the answer is wrong, or ''."""
    log = shutil.copy(_LOG, environment / "job.log")
    command = [str(environment / "bin" / "otel-torchdist"), "diagnose", str(log)]
    done = _run(command, environment, codes=(_PROBLEM,))
    return "" if _VERDICT in done.stdout else f"`diagnose` answers: {done.stdout.strip()[:200]}"


def try_recording(wheel: Path, torch_python: Path) -> Trial:
    """Install a wheel in an environment that sees the packages of another one, and record a call of its torch.

    Args:
        wheel: The wheel.
        torch_python: Python of an environment with torch and our dependencies. It is not changed.
    """
    torch_python = torch_python.absolute()  # not resolved: the link is in the environment
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-trial-") as scratch:
        environment = Path(scratch) / "venv"
        try:
            asked = _run([str(torch_python), "-I", "-c", _WHERE], torch_python.parents[1])
            home, packages, version, sdk = asked.stdout.split()
            lent = lend_packages(Path(packages), Path(scratch) / "lent", "pip")
            python = new_environment(Path(home), environment, lent=lent)
            install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel.resolve())]
            _run(install, environment)
            (Path(scratch) / "call").mkdir()
            recorded = check_recording(Path(scratch) / "call", python, cache=Path(scratch) / "cache")
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return Trial(outcome(f"record a call with {torch_python}", wheel.name, _reason(error)))
    how = f"natively, with {Path(recorded.library).name}" if recorded.library else "in Python"
    is_right = recorded.is_recorded and recorded.is_own and bool(recorded.library) == ("manylinux" in wheel.name)
    trouble = "" if is_right else recorded.trouble or f"recorded {how}"
    check = f"record a call of torch {recorded.torch} on Python {version}"
    return Trial(outcome(check, wheel.name, trouble, how), version, sdk, recorded.torch.partition("+")[0])


_WHERE: Final = (
    "import importlib.metadata, os, platform, sys, sysconfig;"
    "print(os.path.realpath(sys.executable), sysconfig.get_path('purelib'), platform.python_version(),"
    " importlib.metadata.version('opentelemetry-sdk'))"
)
"""A program that prints the Python that an environment is made of, its packages, and its OpenTelemetry."""


def chosen_by_pip(folder: Path, version: str, python: Path, *options: str) -> str:
    """Return the name of the file in a folder that pip chooses for a platform; '' if it finds none."""
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-trial-") as scratch:
        command = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-index", "--only-binary=:all:"]
        command += [f"--find-links={folder.resolve()}", f"--dest={scratch}", *options, f"otel-torchdist=={version}"]
        subprocess.run(command, capture_output=True, check=False)
        return next((path.name for path in Path(scratch).iterdir()), "")


def _run(command: Sequence[str], environment: Path, codes: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
    """Run a program as in a shell with the environment active and no other program.

    Raises:
        subprocess.SubprocessError: It has another exit code, or does not end.
    """
    environ = without_compiler(environment)
    done = subprocess.run(
        command, env=environ, cwd="/", capture_output=True, text=True, timeout=_INSTALL_S, check=False
    )
    if done.returncode not in codes:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done


def _reason(error: Exception) -> str:
    said = getattr(error, "stderr", "") or ""
    return f"{last_line(said)} ({error})" if said else str(error)
