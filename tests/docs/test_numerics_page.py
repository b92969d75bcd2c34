"""The page on numeric health says what the code does."""

from __future__ import annotations

from otel_torchdist.capture.tensors.eligible import COPIED_TO_ALL, PROMISES, REDUCED_TO_ALL, Promise, makes_equal
from tests.support.repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "numerics.md"


def row_of(promise: Promise) -> str:
    """A row of the page's table."""
    backends = ", ".join(f"`{backend}`" for backend in promise.backends)
    operations = ", ".join(f"`{name}`" for name in sorted(promise.operations)) or "nothing"
    return f"| {backends} | {operations} | {promise.reason} |"


def test_backends() -> None:
    """The table on the page is that of the code, row by row."""
    _, table = PAGE.read_text().split("<!-- promises -->\n")
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    assert rows == [row_of(promise) for promise in PROMISES]


def test_what_is_not_promised_is_not_compared() -> None:
    """Neither of a backend that is not listed, nor with RCCL under NCCL's name, nor results that differ by right."""
    for operation in REDUCED_TO_ALL | COPIED_TO_ALL:
        assert makes_equal(operation, "gloo", is_rocm=False)
        assert makes_equal(operation, "nccl2", is_rocm=False)
        assert not makes_equal(operation, "nccl", is_rocm=True)
        assert not any(makes_equal(operation, one, is_rocm=False) for one in ("fake", "mpi", "ucc", "mine", ""))
    others = ("reduce", "reduce_scatter", "reduce_scatter_tensor", "gather", "scatter", "all_to_all", "send", "barrier")
    assert not any(makes_equal(one, "nccl", is_rocm=False) for one in others)
