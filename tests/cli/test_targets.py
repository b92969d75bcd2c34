"""The runs that arguments of commands name."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.cli.targets import Target, target_of
from tests.support.tapes.fake_tape import FakeTape


def test_link_to_a_job_directory(tmp_path: Path) -> None:
    """A user's own link to a job directory names the directory, as its path does."""
    job, link = tmp_path / "job-0123456789abcdef", tmp_path / "newest"
    job.mkdir()
    FakeTape(job)
    link.symlink_to(job)
    for path in (job, link):
        assert target_of([str(path)], None) == Target(run_dir=job)
