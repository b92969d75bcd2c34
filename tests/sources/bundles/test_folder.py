"""Bundles in their directory: whole or absent, within the bound, and no remains of killed writers."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from otel_torchdist.node.job.bundled import decode_manifest
from otel_torchdist.sources.bundles.folder import BundleFolder, BundleTooLargeError, host_name
from otel_torchdist.sources.bundles.reading import manifest_of, unpack
from otel_torchdist.tape.reading.reader import TapeReader
from tests.sources.bundles.written import TRACE, evidence, folder, job
from tests.support.waiting import until

BOUND = 1 << 20
SLOW_WRITER = """
import sys, time
from pathlib import Path
from otel_torchdist.sources.bundles import content
from tests.sources.bundles.written import evidence, folder
before = content._add_file
def slowly(*arguments):
    before(*arguments)
    time.sleep(600)
content._add_file = slowly
folder(Path(sys.argv[2])).write(evidence(Path(sys.argv[1])))
"""


def names_in(path: Path) -> list[str]:
    """Names of all files in a directory."""
    return sorted(entry.name for entry in path.iterdir())


def test_bundle_of_a_job(tmp_path: Path) -> None:
    """A bundle holds tapes, names and state, for its owner alone; not the run's secret, and nothing half written."""
    directory = job(tmp_path / "job-1")
    (directory / "peers-00.json").write_text("secret")
    (directory / "agent.log").write_text("a line\n")
    (directory / "agent.log.1").write_text("an older line\n")
    (directory / ".hidden.tape").write_text("not a tape yet")
    (directory / "elsewhere.log").symlink_to("/etc/hostname")
    path = folder(tmp_path / "new" / "bundles").write(evidence(directory, "verdict", verdict="absent", trace_id=TRACE))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names_in(path.parent) == [path.name]
    assert path.name.startswith("torchdist-bundle-2")
    assert path.name.endswith(f"-1234abcd-verdict-absent-00000000-{host_name()}.tar.gz")
    with tarfile.open(path) as bundle:
        members = [member.name.split("/", 2)[-1] for member in bundle.getmembers()]
        contents = [bundle.extractfile(member).read() for member in bundle.getmembers()]  # type: ignore[union-attr]
    tape = next(name for name in members if name.endswith(".tape"))
    assert members[0] == "bundle.json"
    assert members[-1] == "moment.json"
    assert members.index(tape) < members.index(tape.replace(".tape", ".names"))
    assert {"agent.log", "agent.log.1"} < {*members}
    assert not any("hidden" in name or "elsewhere" in name for name in members)
    assert not any(b"secret" in content for content in contents)
    assert decode_manifest(contents[0], "").verdict == "absent"


def test_oldest_bundles_make_room(tmp_path: Path) -> None:
    """At every moment the bundles of this user stay within the bound; files of others in the directory stay."""
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    (bundles / "notes.txt").write_text("mine")
    directory = job(tmp_path / "job-1")
    first = folder(bundles).write(evidence(directory))
    size = first.stat().st_size
    first.unlink()
    kept = folder(bundles, 3 * size + size // 2)
    for number in range(6):
        path = kept.write(evidence(directory, f"end{number}"))
        os.utime(path, (number, number))
        total = sum(file.stat().st_size for file in bundles.glob("torchdist*"))
        assert total <= 3 * size + size // 2
    left = names_in(bundles)
    assert left[0] == "notes.txt"
    assert [name.split("-")[5] for name in left[1:]] == ["end3", "end4", "end5"]


def test_large_bundle_keeps_newest_records(tmp_path: Path) -> None:
    """A bundle that exceeds half the bound holds the newest records of each tape, and operations without an end."""
    directory = job(tmp_path / "job-1", operations=30_000, capacity=32_768)
    whole = folder(tmp_path / "whole").write(evidence(directory)).stat().st_size
    path = folder(tmp_path / "bundles", whole).write(evidence(directory))
    assert path.stat().st_size <= whole // 2
    manifest = manifest_of(path)
    assert manifest is not None
    assert manifest.records == 4096
    bundle = unpack(path, tmp_path)
    assert bundle is not None
    assert bundle.notes == (f"{path}: it holds the newest 4,096 records of each tape, and open operations",)
    [tape] = [TapeReader(file) for file in bundle.directory.glob("*.tape")]
    ended = [operation.sequence for batch in tape.poll_to_end() for operation in batch.ended]
    assert ended[-1] == 30_000
    assert 4000 < len(ended) <= 4096
    [still_open] = tape.open_operations()
    assert still_open.sequence == 30_001
    tape.close()


def test_bundle_that_cannot_fit(tmp_path: Path) -> None:
    """If not even the newest records fit, nothing is written, and nothing is left over."""
    directory = job(tmp_path / "job-1")
    (directory / "agent.log").write_bytes(random.Random(1).randbytes(BOUND))
    with pytest.raises(BundleTooLargeError, match="even the newest 64 records"):
        folder(tmp_path / "bundles", BOUND).write(evidence(directory))
    assert names_in(tmp_path / "bundles") == []


def test_same_incident_of_this_node(tmp_path: Path) -> None:
    """A next agent finds that this node has a bundle of an incident; of another incident or node it has none."""
    bundles, directory = folder(tmp_path / "bundles"), job(tmp_path / "job-1")
    ours = evidence(directory, "verdict", verdict="dead", trace_id=TRACE)
    assert not bundles.has_incident(ours)
    path = bundles.write(ours)
    assert bundles.has_incident(ours)
    assert not bundles.has_incident(evidence(directory, "verdict", verdict="dead", trace_id=f"{7 << 100:032x}"))
    assert not bundles.has_incident(evidence(directory))
    path.rename(path.with_name(path.name.replace(f"-{host_name()}.", "-elsewhere.")))
    assert not bundles.has_incident(ours)


def test_killed_writer_leaves_no_bundle(tmp_path: Path) -> None:
    """A writer killed in the middle leaves only an unfinished file, which the next bundle's writer removes."""
    directory, bundles = job(tmp_path / "job-1"), tmp_path / "bundles"
    script = [sys.executable, "-c", SLOW_WRITER, str(directory), str(bundles)]
    with subprocess.Popen(script) as writer:

        def parts() -> list[str]:
            return [name for name in (names_in(bundles) if bundles.exists() else []) if name.endswith(".part")]

        until(parts)
        folder(bundles).write(evidence(directory))  # the writer is alive: its file is left alone
        assert len(parts()) == 1
        writer.send_signal(signal.SIGKILL)
        writer.wait(60)
    assert len(parts()) == 1
    elsewhere = bundles / f".torchdist-bundle-x-elsewhere.1-{2**62}.part"
    for age_s, is_kept in ((0, True), (3600, False)):
        elsewhere.touch()
        changed_s = time.time() - age_s
        os.utime(elsewhere, (changed_s, changed_s))
        folder(bundles).write(evidence(directory))
        assert parts() == ([elsewhere.name] if is_kept else [])


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in place of the directory is an error, and stays."""
    (tmp_path / "bundles").write_text("mine")
    with pytest.raises(OSError, match="File exists"):
        BundleFolder(tmp_path / "bundles", BOUND).write(evidence(job(tmp_path / "job-1")))
    assert (tmp_path / "bundles").read_text() == "mine"
