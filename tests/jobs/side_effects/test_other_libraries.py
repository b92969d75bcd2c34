"""Other libraries with kernels of their own for c10d's operations, and users' modes, are not affected by us."""

from __future__ import annotations

import pytest

from tests.jobs.side_effects.conftest import Run

EACH = ["all_reduce", "broadcast", "all_gather_into_tensor", "all_reduce", "barrier"]


@pytest.mark.parametrize("order", ["theirs", "ours"])
def test_kernels_on_other_keys(run: Run, order: str) -> None:
    """Whichever came first, and after each has left, their kernels see what they see without us; so do ours."""
    alone = run("other_kernels", 2, "alone", "False")
    job = run("other_kernels", 2, order, "False")
    for with_us, without_us in zip(job.ranks, alone.ranks, strict=True):
        assert with_us.lines() == without_us.lines()
        while_on, after_us, after_them = with_us.lines()
        assert while_on["results"] == [4.0, 1.0, 0.0, 0.0, 1.0, 1.0]
        assert while_on["passed"] == {"before autograd": 2, "as backend": 1}
        assert while_on["seen"] == {"allreduce_": 1, "barrier": 1}
        assert after_us["passed"] == after_them["passed"] == {"before autograd": 4, "as backend": 2}
        assert with_us.err == without_us.err
    for tape in job.tapes:
        assert [operation.name for operation in tape.operations] == EACH
        assert all(operation.has_ended for operation in tape.operations)


def test_a_foreign_kernel(run: Run) -> None:
    """A kernel that was there before us still works: one warning, and only its operation is not recorded."""
    alone = run("other_kernels", 2, "alone", "True")
    job = run("other_kernels", 2, "theirs", "True")
    for with_us, without_us in zip(job.ranks, alone.ranks, strict=True):
        assert with_us.lines() == without_us.lines()
        assert with_us.lines()[0]["passed"]["in our place"] == 1
        [warning] = with_us.err.splitlines()
        assert (
            warning == "another library has already registered a kernel for c10d::_allgather_base_: it is not recorded"
        )
    for tape in job.tapes:
        assert [operation.name for operation in tape.operations] == [
            name for name in EACH if name != "all_gather_into_tensor"
        ]
