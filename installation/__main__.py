"""Command line: `python -m installation [EXTRAS]`, with the Python of the environment. EXTRAS are comma-separated."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from installation.installer import Installer, NoInstallerError, find_installer
from installation.self_check import check

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = "OTEL_TORCHDIST_WHEEL_LIBRARIES"
"""Variable that hatch_build.py reads. Repeated here, because importing that module needs hatchling."""
OLDEST_PYTHON = (3, 10)
_BUILD_LIBRARY = Path(__file__).with_name("build_library.py")


def main() -> int:
    """Install the package, then its native library, and report which of them records calls; return the exit code."""
    if sys.version_info < OLDEST_PYTHON:  # pip would spend minutes on trying all versions of the dependencies
        oldest, current = ".".join(map(str, OLDEST_PYTHON)), sys.version.split()[0]
        print(f"otel_torchdist needs Python {oldest} or newer; {sys.executable} is {current}", file=sys.stderr)
        return 1
    package = f"{ROOT}[{sys.argv[1]}]" if sys.argv[1:] else str(ROOT)
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-install-") as folder:
        scratch = Path(folder)
        try:
            installer = find_installer(scratch)
        except NoInstallerError as error:
            print(f"otel_torchdist is not installed: {error}", file=sys.stderr)
            return 1
        # First without the library, so that the installer fails before half a minute of compilation, not after.
        code = installer.install(package, {**os.environ, LIBRARIES: ""})
        if code:
            return code
        why_python = _add_library(installer, scratch)
        result = check(scratch)
    print(result.sentence(why_python))
    return 0 if result.is_well else 1


def _add_library(installer: Installer, scratch: Path) -> str:
    """Build the native library for the installed torch, and install it; return the reason if that fails, or ''."""
    libraries = scratch / sysconfig.get_platform().replace("-", "_")
    command = [sys.executable, str(_BUILD_LIBRARY), str(libraries)]
    built = subprocess.run(command, cwd=scratch, stderr=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        reasons = built.stderr.strip().splitlines() or [f"its compiler exited with {built.returncode}"]
        return reasons[-1]
    code = installer.install(str(ROOT), {**os.environ, LIBRARIES: str(libraries)}, "--no-deps", "--quiet")
    return f"the native library could not be installed (exit code {code})" if code else ""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
