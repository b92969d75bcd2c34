"""The checks of a release accept what is built here, and find changes in it; nothing is downloaded."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution, requires, version
from pathlib import Path

import pytest

from hatch_metadata import REPOSITORY as ADDRESS
from release.checks import check_choices, check_contents, check_metadata, write_checksums
from release.environments import site_packages
from release.metadata import check_descriptions
from release.outcomes import Result
from release.pythons import Interpreter
from release.sbom import component_name, components_of, describe
from release.trials import requirements, try_file, try_oldest, try_recording
from tests.support.environments import at_hand, make_environment
from wheels.package import pure_wheel, source_distribution

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
VERSION = version("otel-torchdist")
HERE = Interpreter(Path(sys.executable), platform.python_version())


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, and the wheel for all machines."""
    folder = tmp_path_factory.mktemp("dist")
    pure_wheel(folder)
    source_distribution(folder)
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages that pip would download, without pip and torch."""
    # PyInstaller runs programs of the system when it is imported.
    return at_hand(tmp_path_factory.mktemp("packages") / "at-hand", "pip", "torch", "pyarrow", "PyInstaller")


def changed(wheel: Path, folder: Path, without: str = "", added: str = "") -> Path:
    """A copy of a wheel, without one file or with another one, which `RECORD` follows."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w") as new:
        assert not without or without in old.namelist()
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("/RECORD"):
                lines = content.decode().splitlines()
                lines = [line for line in lines if not without or not line.startswith(f"{without},")]
                content = "\n".join([*lines, *([f"{added},,"] if added else []), ""]).encode()
            if name != without:
                new.writestr(name, content)
        if added:
            new.writestr(added, "")
    return copy


def test_files_are_built_the_same_twice(dist: Path, tmp_path: Path) -> None:
    """A second build has the same bytes, so that anyone can check what is published."""
    again = [pure_wheel(tmp_path), source_distribution(tmp_path)]
    assert [path.read_bytes() for path in again] == [(dist / path.name).read_bytes() for path in again]


def test_good_files_pass(dist: Path, tmp_path: Path) -> None:
    """Metadata, contents and pip's choice are right, and `sha256sum` agrees with the checksums."""
    files = sorted(dist.iterdir())
    outcomes = [*check_metadata(files), *check_contents(files), *check_choices(dist, VERSION, ())]
    failed = [one.line for one in outcomes if one.result is not Result.PASSED]
    assert [line for line in failed if "not in the repository" not in line] == []  # a new file of a developer's
    write_checksums(files, tmp_path / "sums")
    subprocess.run(["sha256sum", "--check", "--strict", str(tmp_path / "sums")], cwd=dist, check=True)


def test_a_stray_module_is_found(dist: Path, tmp_path: Path) -> None:
    """A module beside the package would be installed for all programs."""
    [wheel] = dist.glob("*.whl")
    [outcome] = check_contents([changed(wheel, tmp_path, added="stray.py")])
    assert outcome.result is Result.FAILED
    assert "stray" in outcome.detail


def test_a_file_that_is_not_in_the_repository_is_found(dist: Path, tmp_path: Path) -> None:
    """Notes beside the code would be published with the sources."""
    [sources] = dist.glob("*.tar.gz")
    copy = tmp_path / sources.name
    with tarfile.open(sources) as old, tarfile.open(copy, "w:gz") as new:
        for member in old:
            new.addfile(member, old.extractfile(member))
        new.addfile(tarfile.TarInfo(f"otel_torchdist-{VERSION}/docs/notes.txt"))
    [outcome] = check_contents([copy])
    assert outcome.result is Result.FAILED
    assert "docs/notes.txt" in outcome.detail


def test_links_of_the_description(dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README's links lead to the repository's tag if it is named, and are found to be dead on an index if it is not.

    A wheel that a user builds of the sources has the same metadata, though the user names no repository.
    """
    files = sorted(dist.iterdir())
    assert {one.result for one in check_descriptions(files, "", "")} == {Result.NOT_RUN}
    assert {one.result for one in check_descriptions(files, "https://example.org/o/n", "")} == {Result.FAILED}
    monkeypatch.setenv(ADDRESS, "https://example.org/o/n/")
    named = [pure_wheel(tmp_path), source_distribution(tmp_path)]
    monkeypatch.delenv(ADDRESS)
    assert [one.line for one in check_descriptions(named, "https://example.org/o/n", "") if one.detail] == []
    with tarfile.open(named[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / f"otel_torchdist-{VERSION}"
    build = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(tmp_path / "of-sources"),
    ]
    subprocess.run(build, cwd=root, capture_output=True, check=True)
    [again] = (tmp_path / "of-sources").iterdir()
    metadata = metadata_of(again)
    assert metadata == metadata_of(named[0])
    assert f"Project-URL: Changelog, https://example.org/o/n/blob/v{VERSION}/CHANGELOG.md\n" in metadata
    assert f"(https://example.org/o/n/blob/v{VERSION}/docs/settings.md)" in metadata
    assert f"(https://example.org/o/n/raw/v{VERSION}/docs/pictures/demo.svg)" in metadata
    assert "(#be-ready-next-time)" in metadata


def metadata_of(wheel: Path) -> str:
    """The metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"otel_torchdist-{VERSION}.dist-info/METADATA").decode()


def test_a_wrong_choice_is_found(dist: Path, tmp_path: Path) -> None:
    """Where a wheel for the architecture was expected, the one for all machines is wrong."""
    outcomes = check_choices(dist, VERSION, ["x86_64"])
    assert [one.check for one in outcomes if one.result is Result.FAILED] == ["choice of pip on manylinux_2_28_x86_64"]


@pytest.mark.parametrize(("pattern", "options"), [("*.whl", []), ("*.tar.gz", ["--no-build-isolation"])])
def test_installation(dist: Path, packages: Path, pattern: str, options: list[str]) -> None:
    """Without a compiler and without torch, wheel and sources install, and the commands work."""
    [file] = dist.glob(pattern)
    trial = try_file(file, VERSION, HERE, "--no-index", *options, lent=packages)
    assert trial.outcome.result is Result.PASSED, trial.outcome.line
    assert (trial.python, trial.sdk) == (platform.python_version(), version("opentelemetry-sdk"))


def test_an_incomplete_wheel_is_found(dist: Path, packages: Path, tmp_path: Path) -> None:
    """A wheel without one of its modules is named with the modules that need it."""
    [wheel] = dist.glob("*.whl")
    broken = changed(wheel, tmp_path, without="otel_torchdist/analysis/advice.py")
    trial = try_file(broken, VERSION, HERE, "--no-index", lent=packages)
    assert trial.outcome.result is Result.FAILED
    assert "No module named 'otel_torchdist.analysis.advice'" in trial.outcome.detail


def test_a_missing_dependency_is_found(dist: Path) -> None:
    """An installation that lacks a package fails, with the reason of the program that failed."""
    [wheel] = dist.glob("*.whl")
    trial = try_file(wheel, VERSION, HERE, "--no-index")
    assert trial.outcome.result is Result.FAILED
    assert "No matching distribution found" in trial.outcome.detail


def test_oldest_dependencies(dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lower bounds are the wheel's, with those of its commands; a version that cannot be had is a failure."""
    [wheel] = dist.glob("*.whl")
    declared = [line.partition(";") for line in requires("otel-torchdist") or []]
    needed = {name.strip() for name, _, marker in declared if not marker or marker.strip() == "extra == 'cli'"}
    assert {*requirements(wheel, "cli")} == needed
    assert {"opentelemetry-sdk>=1.39", "typer>=0.15"} <= needed
    if not shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"):
        pytest.skip("there is no uv")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty"))
    trial = try_oldest(wheel, VERSION, HERE)
    assert (trial.outcome.result, trial.sdk) == (Result.FAILED, "")
    assert "network was disabled" in trial.outcome.detail


def test_an_absent_environment_is_found(dist: Path) -> None:
    """A Python with torch that does not exist is a failed check, and ends no other checks."""
    [wheel] = dist.glob("*.whl")
    trial = try_recording(wheel, Path("absent/bin/python"))
    assert trial.outcome.result is Result.FAILED
    assert "absent/bin/python" in trial.outcome.detail


def test_another_version_is_found(dist: Path, packages: Path) -> None:
    """A file with another version than the release's is refused."""
    [wheel] = dist.glob("*.whl")
    trial = try_file(wheel, "9.9.9", HERE, "--no-index", lent=packages)
    assert trial.outcome.detail == f"it says that it is version {VERSION}"


def test_bill_of_materials(tmp_path: Path) -> None:
    """It is valid CycloneDX, with the version of each package that ours needs, and licenses."""
    needed = [line.partition(">")[0] for line in requires("otel-torchdist") or [] if "extra ==" not in line]
    assert len(needed) >= 7
    python = make_environment(tmp_path / "venv", None)
    for name in needed:  # only what describes them: describing all packages of the tests takes a minute
        described = Path(str(distribution(name).locate_file(""))).glob(f"{name.replace('-', '_')}-*.dist-info")
        for folder in described:
            (site_packages(tmp_path / "venv") / folder.name).symlink_to(folder)
    bill = tmp_path / "described.json"
    describe(python, bill)
    document = json.loads(bill.read_text())
    assert (document["bomFormat"], document["metadata"]["component"]["name"]) == ("CycloneDX", "otel-torchdist")
    found = {component_name(one["name"]): one for one in components_of(bill)}
    assert {name: found[name]["version"] for name in needed} == {name: version(name) for name in needed}
    assert found["opentelemetry-sdk"]["licenses"] == [{"license": {"acknowledgement": "declared", "id": "Apache-2.0"}}]
    assert str(tmp_path) not in bill.read_text()


def test_programs_that_the_checks_need() -> None:
    """The extra `release` is installed where tests run."""
    assert [name for name in ("twine", "check-wheel-contents", "cyclonedx-py") if not _is_here(name)] == []


def _is_here(name: str) -> bool:
    return shutil.which(name, path=str(Path(sys.executable).parent)) is not None
