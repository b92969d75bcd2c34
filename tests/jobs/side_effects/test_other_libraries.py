"""Other libraries with kernels of their own for c10d's operations, and users' modes, are not affected by us."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from otel_torchdist.model.kinds import Kernel
from tests.jobs.side_effects.conftest import Run
from tests.support.launch.jobs import Job
from tests.support.native.native_library import KERNELS, environ_of

WORKER = "other_kernels"
PYTHONS_KEY = "TESTING_ONLY_GenericMode"
"""Where the kernels in Python are if those of the native library come before them."""
EACH = ["all_reduce", "broadcast", "all_gather_into_tensor", "all_reduce", "barrier"]


@pytest.fixture(scope="module", params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> str:
    """What records."""
    return request.param


@pytest.fixture(scope="module")
def alone(run: Run) -> Callable[[str], Job]:
    """Runs the worker without us, once for each key at which they have a kernel."""
    return functools.cache(lambda key: run(WORKER, 2, "alone", key))


@pytest.mark.parametrize("order", ["theirs", "ours"])
def test_kernels_on_other_keys(run: Run, alone: Callable[[str], Job], kernel: str, order: str) -> None:
    """Whichever came first, and after each has left, their kernels see what they see without us; so do ours."""
    job = run(WORKER, 2, order, "", environ=environ_of(kernel))
    for with_us, without_us in zip(job.ranks, alone("").ranks, strict=True):
        assert with_us.lines() == without_us.lines()
        while_on, after_us, after_them = with_us.lines()
        assert while_on["results"] == [4.0, 1.0, 0.0, 0.0, 1.0, 1.0]
        assert while_on["passed"] == {"before autograd": 2, "as backend": 1}
        assert while_on["seen"] == {"allreduce_": 1, "barrier": 1}
        assert after_us["passed"] == after_them["passed"] == {"before autograd": 4, "as backend": 2}
        assert with_us.err == without_us.err
    for tape in job.tapes:
        assert tape.identity.kernel.name.lower() == kernel
        assert [operation.name for operation in tape.operations] == EACH
        assert all(operation.has_ended for operation in tape.operations)


def test_a_foreign_kernel(run: Run, alone: Callable[[str], Job], kernel: str) -> None:
    """A kernel that was there before us still works: one warning, and only its operation is not recorded."""
    job = run(WORKER, 2, "theirs", "BackendSelect", environ=environ_of(kernel))
    for with_us, without_us in zip(job.ranks, alone("BackendSelect").ranks, strict=True):
        assert with_us.lines() == without_us.lines()
        assert with_us.lines()[0]["passed"]["in our place"] == 1
        [warning] = with_us.err.splitlines()
        assert (
            warning == "another library has already registered a kernel for c10d::_allgather_base_: it is not recorded"
        )
    for tape in job.tapes:
        assert tape.identity.kernel.name.lower() == kernel
        assert [operation.name for operation in tape.operations] == [
            name for name in EACH if name != "all_gather_into_tensor"
        ]


def test_a_foreign_kernel_where_those_in_python_would_go(run: Run, alone: Callable[[str], Job], kernel: str) -> None:
    """The native library is then not used, with one warning: all is recorded in Python, and theirs is not called."""
    job = run(WORKER, 2, "theirs", PYTHONS_KEY, environ=environ_of(kernel))
    for with_us, without_us in zip(job.ranks, alone(PYTHONS_KEY).ranks, strict=True):
        assert with_us.lines() == without_us.lines()
        assert with_us.err.splitlines() == without_us.err.splitlines() + (kernel == "native") * [
            "another library has already registered a kernel for c10d::_allgather_base_ where the native library needs "
            "one: recording in Python, which takes longer (OTEL_PYTHON_TORCHDIST_CAPTURE)"
        ]
    for tape in job.tapes:
        assert tape.identity.kernel is Kernel.PYTHON
        assert [operation.name for operation in tape.operations] == EACH
