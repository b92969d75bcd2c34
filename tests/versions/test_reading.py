"""Commands of one release on what a job of another one has left: it is read, or refused with one line."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.tapes.directories import memory_directory
from tests.versions.jobs import RANKS, Leftovers, finished_job
from tests.versions.releases import Release

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
Command = Callable[[Leftovers, Path], list[str | Path]]
COMMANDS: dict[str, tuple[str, Command]] = {
    "diagnose a job": ("TAPE", lambda job, folder: ["diagnose", job.directory]),
    "analyze a job": ("TAPE", lambda job, folder: ["analyze", job.directory]),
    "export a job": ("TAPE", lambda job, folder: ["export", "--perfetto", folder / "job", job.directory]),
    "watch a job": ("TAPE", lambda job, folder: ["watch", "--plain", "--keep", "0", "--run-dir", job.directory]),
    "replay a job": ("TAPE", lambda job, folder: ["watch", "--replay", job.directory]),
    "diagnose a bundle": ("BUNDLE", lambda job, folder: ["diagnose", job.bundle]),
    "analyze a bundle": ("BUNDLE", lambda job, folder: ["analyze", job.bundle]),
    "export a bundle": ("BUNDLE", lambda job, folder: ["export", "--perfetto", folder / "b", job.bundle]),
    "replay a bundle": ("BUNDLE", lambda job, folder: ["watch", "--replay", job.bundle]),
    "analyze an archive": ("ARCHIVE", lambda job, folder: ["analyze", job.archive]),
    "export an archive": (
        "ARCHIVE",
        lambda job, folder: ["export", "--perfetto", folder / "a", job.archive],
    ),
}
NAMES = {"TAPE": "tape format", "BUNDLE": "bundle format", "ARCHIVE": "archive format"}


@pytest.fixture(scope="module")
def others_job(other: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leftovers]:
    """What a job of the other release has left."""
    with memory_directory() as base:
        yield finished_job(other, base, tmp_path_factory.mktemp("others"))


@pytest.fixture(scope="module")
def own_job(this: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leftovers]:
    """What a job of this release has left."""
    with memory_directory() as base:
        yield finished_job(this, base, tmp_path_factory.mktemp("own"))


def check(reader: Release, writer: Release, job: Leftovers, name: str, folder: Path) -> None:
    """Run a command; check that it reads the job if the formats are equal, and says what to do otherwise."""
    kind, command = COMMANDS[name]
    done = reader.ask(*command(job, folder), OTEL_PYTHON_TORCHDIST_TAPE_DIR=str(job.base))
    shown = done.stdout + done.stderr
    if reader.formats[kind] == writer.formats[kind]:
        assert done.returncode == 0, shown
        assert NAMES[kind] not in shown
        return
    assert (done.returncode, done.stdout) == (2, ""), shown
    assert done.stderr.count("\n") == 1, done.stderr
    own = f"this is otel-torchdist {reader.version}, which reads {NAMES[kind]} {reader.formats[kind]}: "
    assert f"{NAMES[kind]} {writer.formats[kind]}, of " in done.stderr
    is_newer = writer.formats[kind] > reader.formats[kind]
    if kind == "BUNDLE":
        assert f"of otel-torchdist {writer.version}; {own}read it with version {writer.version}\n" in done.stderr
    elif is_newer:
        assert f"of a newer otel-torchdist; {own}upgrade it, or read it with the newer one\n" in done.stderr
    else:
        assert f"of an older otel-torchdist; {own}read it with the older one\n" in done.stderr
    if kind == "TAPE":
        assert f"{job.directory}: {RANKS} tapes in tape format" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_job_of_the_other_release(
    other: Release, this: Release, others_job: Leftovers, name: str, tmp_path: Path
) -> None:
    """This release reads the other's tapes, bundles and archives if the number is the same, and else exits with 2."""
    check(this, other, others_job, name, tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_job_of_this_release(other: Release, this: Release, own_job: Leftovers, name: str, tmp_path: Path) -> None:
    """The other release does the same with what this one has left: what a next release promises to say."""
    check(other, this, own_job, name, tmp_path)


def test_bundle_unpacked_by_hand(other: Release, this: Release, others_job: Leftovers, tmp_path: Path) -> None:
    """A bundle of another format is not mistaken for a live job directory after `tar xf`."""
    with tarfile.open(others_job.bundle) as bundle:
        bundle.extractall(tmp_path, filter="data")
    [directory] = {manifest.parent for manifest in tmp_path.rglob("bundle.json")}
    done = this.ask("diagnose", "--run-dir", directory)
    is_read = this.formats["BUNDLE"] == other.formats["BUNDLE"]
    assert done.returncode == (0 if is_read else 2), done.stderr
    assert ("bundle format" in done.stderr) is not is_read
