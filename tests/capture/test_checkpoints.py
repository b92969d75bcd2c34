"""Checkpoints on the tape."""

from __future__ import annotations

from tests.support.jobs import Jobs


def test_dump(jobs: Jobs) -> None:
    job = jobs.run("checkpoints", 2)
    for done, tape in zip(job.ranks, job.tapes):
        print(done.out, done.err)
        for a, t in tape.activities:
            print(
                a.number,
                a.parent,
                a.kind.name,
                t[-60:],
                a.how,
                a.step,
                a.message_bytes,
                a.files,
                ((a.completed_ns or 0) - a.entered_ns) // 1000,
            )
    assert 0
