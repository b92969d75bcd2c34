"""The version of a release: `pyproject.toml` has it; the changelog, the Helm chart and the tag must agree."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
UNRELEASED: Final = "## [Unreleased]"
CHART: Final = Path("deploy/helm/otel-torchdist/Chart.yaml")
_VERSION: Final = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_VALID: Final = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_HEADING: Final = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\S+))?$", re.MULTILINE)


class VersionError(Exception):
    """The version cannot be released or set."""


def declared_version(root: Path = ROOT) -> str:
    """Return the version that pyproject.toml declares.

    Raises:
        VersionError: It declares none.
    """
    found = _VERSION.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    if not found:
        raise VersionError(f'{root / "pyproject.toml"} has no line `version = "…"`')
    return found[1]


def changelog_section(changelog: str, version: str) -> str:
    """Return the text of a version's section, or of `Unreleased`; '' if there is none."""
    headings = list(_HEADING.finditer(changelog))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading["version"] == version:
            return changelog[heading.end() : following.start() if following else len(changelog)].strip()
    return ""


def set_version(version: str, day: date, root: Path = ROOT) -> None:
    """Set the version in pyproject.toml and the chart; make the changelog's `Unreleased` the section of the version.

    Raises:
        VersionError: The version is malformed, has a section already, or nothing has changed since the last one.
    """
    if not _VALID.fullmatch(version):
        raise VersionError(f"{version!r} is not a version such as 0.2.0 or 0.2.0rc1")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if changelog_section(changelog, version):
        raise VersionError(f"CHANGELOG.md has a section {version} already")
    if not changelog_section(changelog, "Unreleased"):
        raise VersionError(f"CHANGELOG.md has nothing below {UNRELEASED}")
    declared_version(root)
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    (root / "pyproject.toml").write_text(_VERSION.sub(f'version = "{version}"', project, count=1), encoding="utf-8")
    _set_version_of_chart(root / CHART, version)
    heading = f"{UNRELEASED}\n\n## [{version}] - {day.isoformat()}"
    (root / "CHANGELOG.md").write_text(changelog.replace(UNRELEASED, heading, 1), encoding="utf-8")


def _set_version_of_chart(path: Path, version: str) -> None:
    if not path.is_file():
        return
    path.write_text(_with_version(path.read_text(encoding="utf-8"), version), encoding="utf-8")


def _with_version(chart: str, version: str) -> str:
    # Helm wants 0.2.0-rc1; the image has the version of the package.
    of_chart = re.sub(r"(a|b|rc)(\d+)$", r"-\1\2", version)
    text = re.sub(r"^version: .*$", f"version: {of_chart}", chart, flags=re.MULTILINE)
    return re.sub(r"^appVersion: .*$", f"appVersion: {version}", text, flags=re.MULTILINE)


def why_not_released(tag: str, root: Path = ROOT) -> str:
    """Return why the checked-out commit is not the release that a tag names; '' if it is."""
    version = declared_version(root)
    if tag != f"v{version}":
        return f"the tag is {tag}, and pyproject.toml has version {version}"
    chart = (root / CHART).read_text(encoding="utf-8") if (root / CHART).is_file() else ""
    if chart != _with_version(chart, version):
        return f"{CHART} has another version than {version}"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = next((found for found in _HEADING.finditer(changelog) if found["version"] == version), None)
    if dated is None or not dated["date"]:
        return f"CHANGELOG.md has no section `## [{version}] - DATE`"
    if not changelog_section(changelog, version):
        return f"CHANGELOG.md says nothing about {version}"
    if tag not in _git(root, "tag", "--points-at", "HEAD").split():
        return f"the tag {tag} does not point at the checked-out commit"
    changed = _git(root, "status", "--porcelain")
    return f"the checkout has changes that are not committed: {changed.splitlines()[0].strip()}" if changed else ""


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise VersionError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def main() -> None:
    """Command line: `python -m release.version VERSION`, or `--notes` for the changelog's section of this version."""
    try:
        match sys.argv[1:]:
            case ["--notes"]:
                print(changelog_section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), declared_version()))
            case [version]:
                set_version(version, date.today())
                print(f"version {version}: commit this, then tag the commit v{version}")
            case _:
                sys.exit("usage: python -m release.version VERSION, or --notes; with make: make version VERSION=0.2.0")
    except VersionError as error:
        sys.exit(f"release: {error}")


if __name__ == "__main__":
    main()
