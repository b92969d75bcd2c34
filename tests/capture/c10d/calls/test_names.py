"""Names in a job that has more than its dictionary holds."""

from __future__ import annotations

from otel_torchdist.tape.layout import Flag
from tests.support.launch.jobs import Jobs
from tests.support.ranks.rank import SHOWS_REDUCE_OP


def test_shapes_that_never_repeat(jobs: Jobs) -> None:
    """Only the shapes are left out: later calls still have operation, dtype, reduce op, group and call site."""
    job = jobs.run("ragged")
    [tape] = job.tapes
    assert job.ranks[0].lines() == [{"dropped": 0}]
    assert job.ranks[0].err.count("has used nearly all of the 8192 names") == 1
    assert [operation.name for operation in tape.operations] == ["all_reduce"] * 6 + ["barrier"]
    for operation in tape.operations:
        assert (operation.function, operation.group.description) == ("late", "late")
    *sums, largest, barrier = tape.operations
    for size, operation in enumerate(sums, 1):
        assert operation.signature.shapes == ()
        assert (operation.signature.tensors, operation.signature.dtypes) == (1, ("float32",))
        assert operation.raw.message_bytes == 4 * size
        assert Flag.SIGNATURE_CAPPED in operation.raw.flags
    assert largest.signature.dtypes == ("int32",)
    if SHOWS_REDUCE_OP:
        assert (sums[0].signature.reduce_op, largest.signature.reduce_op) == ("sum", "max")
    assert Flag.SIGNATURE_CAPPED not in barrier.raw.flags
