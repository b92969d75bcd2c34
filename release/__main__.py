"""Command line: `python -m release [--tag TAG] [--to FOLDER] [--python PATH]... [--torch-python PATH]...`."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Final

from hatch_metadata import REPOSITORY
from reference.compatibility import KEPT, Installation, add
from release.checks import check_choices, check_contents, check_metadata, write_checksums
from release.metadata import check_descriptions
from release.outcomes import Outcome, Result, outcome, outcomes_table
from release.pythons import find_pythons, supported_pythons
from release.sbom import write_sbom
from release.trials import Trial, try_file, try_oldest, try_recording
from release.version import ROOT, VersionError, declared_version, why_not_released
from wheels.libraries import MACHINES


def main() -> int:
    """Build a release, check it, and print and write the results; return 1 if a check has failed."""
    options = _parser().parse_args()
    try:
        version = declared_version()
        why = why_not_released(options.tag) if options.tag else ""
    except VersionError as error:
        sys.exit(f"release: {error}")
    if why:
        sys.exit(f"release: {why}")
    if not options.checks_only:
        _build(options.to, options.repository or "", options.wheels)
    files = sorted(path for path in options.to.glob("otel_torchdist-*") if path.suffix in (".whl", ".gz"))
    outcomes: list[Outcome] = []
    for checked in _checks(files, version, options):
        print(checked.line, flush=True)
        outcomes.append(checked)
    stem = options.to / f"otel_torchdist-{version}"
    stem.with_name(f"{stem.name}.checks.md").write_text(outcomes_table(outcomes) + "\n", encoding="utf-8")
    failed = [one for one in outcomes if one.result is Result.FAILED]
    missing = [one for one in outcomes if one.result is Result.NOT_RUN]
    print(f"{len(outcomes)} checks, {len(failed)} failed, {len(missing)} not run: {options.to}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release", description="Build and check a release; upload nothing.")
    for name, meaning in _VALUES.items():
        parser.add_argument(name, help=meaning)
    for name, meaning in _PATHS.items():
        parser.add_argument(name, type=Path, action="append", default=[], metavar="PATH", help=meaning)
    for name, meaning in _FLAGS.items():
        parser.add_argument(name, action="store_true", help=meaning)
    parser.add_argument("--to", type=Path, default=Path("dist"), metavar="FOLDER", help="output folder (dist)")
    parser.add_argument("wheels", nargs="*", metavar="-- OPTION", help="options of `make wheels`")
    return parser


_VALUES: Final = {
    "--tag": "tag of this release, such as v0.2.0: version, changelog and checkout must agree with it, and no "
    "supported Python may be missing",
    "--repository": "address of the repository, such as https://github.com/OWNER/NAME: links of the description lead "
    "there on an index",
}
_PATHS: Final = {
    "--python": "a Python to install on; others are found on PATH, of pyenv and of uv",
    "--torch-python": "Python of an environment with torch, of which a call is recorded",
}
_FLAGS: Final = {
    "--checks-only": "check the files that are in the folder already",
    "--keep": "put the results into reference/compatibility.json",
}


def _build(to: Path, repository: str, options: Sequence[str]) -> None:
    """Build all files into the folder, which keeps no others of this package."""
    for old in to.glob("otel_torchdist-*"):
        old.unlink()
    environ = {**os.environ, REPOSITORY: repository}
    command = [sys.executable, "-m", "wheels", "--to", str(to), *options]
    done = subprocess.run(command, cwd=ROOT, env=environ, check=False)
    if done.returncode:
        sys.exit("release: the wheels cannot be built")


def _checks(files: Sequence[Path], version: str, options: argparse.Namespace) -> Iterator[Outcome]:
    """Check all files, the quick checks first."""
    yield from _completeness(files, version)
    yield from check_metadata(files)
    yield from check_descriptions(files, options.repository or "", options.tag or "")
    yield from check_contents(files)
    machines = [machine for machine in MACHINES if any(machine in file.name for file in files)]
    yield from check_choices(options.to, version, machines)
    installable = [file for file in files if _fits_here(file)]
    wheels = [file for file in installable if file.suffix == ".whl"]
    if wheels:
        sbom = options.to / f"otel_torchdist-{version}.cdx.json"
        sbom.unlink(missing_ok=True)
        yield write_sbom(wheels[-1], sbom)
        described = [sbom] if sbom.exists() else []
        write_checksums([*files, *described], options.to / f"otel_torchdist-{version}.sha256")
    for file, trial in _trials(installable, version, options):
        if options.keep and file:
            _keep(file, trial)
        yield trial.outcome
    others = [file for file in files if file not in installable]
    yield from (Outcome("pip install", file.name, Result.NOT_RUN, "another architecture") for file in others)


def _completeness(files: Sequence[Path], version: str) -> Iterator[Outcome]:
    """Check that each expected file exists."""
    stem = f"otel_torchdist-{version}"
    names = [file.name for file in files]
    wheels = [f"{stem}-py3-none-{tag}.whl" for tag in ("any", *(f"manylinux_2_28_{one}" for one in MACHINES))]
    for name in (f"{stem}.tar.gz", *wheels):
        yield outcome("file exists", name, "" if name in names else "it was not built")
    for name in names:
        if not name.startswith((f"{stem}-", f"{stem}.tar")):
            yield outcome("version", name, f"it is not of version {version}")


def _fits_here(file: Path) -> bool:
    return "manylinux" not in file.name or platform.machine() in file.name


def _trials(files: Sequence[Path], version: str, options: argparse.Namespace) -> Iterator[tuple[Path | None, Trial]]:
    """Try each file on each supported Python, and each wheel on each torch; yield the file, or None without one."""
    minors = supported_pythons()
    pythons = find_pythons(minors, options.python)
    for minor in minors:
        if minor not in pythons:
            result = Result.FAILED if options.tag else Result.NOT_RUN
            yield None, Trial(Outcome(f"pip install on Python {minor}", "*", result, "this machine has no such Python"))
            continue
        for file in files:
            yield file, try_file(file, version, pythons[minor])
    wheels = [file for file in files if file.suffix == ".whl"]
    if pythons and wheels:
        yield wheels[0], try_oldest(wheels[0], version, next(iter(pythons.values())))
    for python in options.torch_python:
        for wheel in wheels:
            yield wheel, try_recording(wheel, python)


def _keep(file: Path, trial: Trial) -> None:
    kind = "sources" if file.suffix == ".gz" else file.stem.rpartition("-")[2]
    works = trial.outcome.result is Result.PASSED
    add(KEPT, Installation(kind, trial.python, trial.sdk, trial.torch, platform.machine(), works, date.today()))


if __name__ == "__main__":
    sys.exit(main())
