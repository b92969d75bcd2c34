"""One place has the version, and a tag that does not fit it is refused."""

from __future__ import annotations

import re
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest

from release.version import CHART, VersionError, changelog_section, declared_version, set_version, why_not_released
from tests.support.repository import REPOSITORY

CHANGELOG = """# Changelog

## [Unreleased]

### Added

- Stop.

## [0.1.0] - 2026-01-02

### Added

- Start.
"""


def git(folder: Path, *arguments: str) -> None:
    """Run git, with an author."""
    author = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run(["git", "-C", str(folder), *author, *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with the version 0.1.0."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "a"\nversion = "0.1.0"\ntarget-version = "py310"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=First")
    return tmp_path


def test_the_package_has_the_version_of_the_project() -> None:
    """The installed package has the version of pyproject.toml, and no module repeats it."""
    declared = declared_version()
    assert version("otel-torchdist") == declared
    quoted = re.compile(rf'["\']v?{re.escape(declared)}["\']')
    repeated = [path.name for path in (REPOSITORY / "otel_torchdist").rglob("*.py") if quoted.search(path.read_text())]
    assert repeated in ([], ["names.py"])  # the version of the schema, which changes only with names


def test_changelog_has_the_sections_of_its_format() -> None:
    """The headings are Keep a Changelog's, and only those."""
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert {*re.findall(r"^### (.*)$", changelog, re.MULTILINE)} <= kinds
    assert changelog_section(changelog, "Unreleased")


def test_a_version_is_set(project: Path) -> None:
    """Version and heading change, the text stays, and the next changes go into an empty section."""
    set_version("0.2.0", date(2026, 3, 4), project)
    assert declared_version(project) == "0.2.0"
    assert 'target-version = "py310"' in (project / "pyproject.toml").read_text()
    changelog = (project / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-03-04\n\n### Added\n\n- Stop.\n\n## [0.1.0]" in changelog
    assert changelog_section(changelog, "0.2.0") == "### Added\n\n- Stop."
    assert changelog_section(changelog, "Unreleased") == ""
    with pytest.raises(VersionError, match="has nothing below"):
        set_version("0.3.0", date(2026, 3, 5), project)


@pytest.mark.parametrize(("version", "of_chart"), [("0.2.0", "0.2.0"), ("0.2.0rc1", "0.2.0-rc1")])
def test_the_chart_follows(project: Path, version: str, of_chart: str) -> None:
    """The Helm chart gets the version, as Helm writes it, and its image that of the package."""
    chart = project / CHART
    chart.parent.mkdir(parents=True)
    chart.write_text((REPOSITORY / CHART).read_text())
    set_version(version, date(2026, 3, 4), project)
    expected = [f"version: {of_chart}", f"appVersion: {version}"]
    assert [line for line in chart.read_text().splitlines() if "ersion: 0" in line] == expected


@pytest.mark.parametrize(("wrong", "why"), [("0.1.0", "a section 0.1.0 already"), ("v1", "'v1' is not a version")])
def test_a_wrong_version_changes_nothing(project: Path, wrong: str, why: str) -> None:
    """A version that exists, or is none, is refused before a file is written."""
    with pytest.raises(VersionError, match=why):
        set_version(wrong, date(2026, 3, 4), project)
    assert (project / "CHANGELOG.md").read_text() == CHANGELOG
    assert declared_version(project) == "0.1.0"


def test_tags(project: Path) -> None:
    """A tag must name the version, point here, and the checkout must be clean."""
    assert why_not_released("v0.2.0", project) == "the tag is v0.2.0, and pyproject.toml has version 0.1.0"
    assert why_not_released("v0.1.0", project) == "the tag v0.1.0 does not point at the checked-out commit"
    git(project, "tag", "v0.1.0")
    assert why_not_released("v0.1.0", project) == ""
    (project / CHART).parent.mkdir(parents=True)
    (project / CHART).write_text("version: 0.0.9\nappVersion: 0.0.9\n")
    assert why_not_released("v0.1.0", project) == f"{CHART} has another version than 0.1.0"
    (project / CHART).unlink()
    (project / "CHANGELOG.md").write_text(CHANGELOG.replace(" - 2026-01-02", ""))
    assert why_not_released("v0.1.0", project) == "CHANGELOG.md has no section `## [0.1.0] - DATE`"
    (project / "CHANGELOG.md").write_text(CHANGELOG + "- More.\n")
    changed = "the checkout has changes that are not committed: M CHANGELOG.md"
    assert why_not_released("v0.1.0", project) == changed
