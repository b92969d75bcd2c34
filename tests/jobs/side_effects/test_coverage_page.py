"""The page on coverage keeps up with torch."""

from __future__ import annotations

import torch

from otel_torchdist.capture.core.calls.schemas import collective_schemas
from otel_torchdist.capture.core.torch_api import dispatcher_overloads
from otel_torchdist.capture.parts.one_sided import symmetric_schemas
from tests.support.repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "coverage.md"


def all_names(namespace: str) -> set[str]:
    """All operations of a namespace that torch has defined, whether they have a kernel or not."""
    names: list[str] = torch._C._dispatch_get_all_op_names()
    return {name for name in names if name.startswith(f"{namespace}::")}


def test_every_operation_is_found() -> None:
    """No collective of this torch is missed, though its operations are only looked for where it has kernels."""
    assert {overload.name() for overload in dispatcher_overloads("c10d")} == all_names("c10d")


def test_every_operation_is_named() -> None:
    """Every group operation of this torch is on the page, under its name on the tape."""
    page = PAGE.read_text()
    names = {schema.name for schema in collective_schemas()}
    assert len(names) > 15
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_symmetric_memory_is_apart() -> None:
    """Symmetric memory has operations of its own, not collectives; the page lists those whose group is known."""
    of_their_own = all_names("symm_mem")
    assert of_their_own
    assert not of_their_own & {schema.overload.name() for schema in collective_schemas()}
    recorded = {schema.overload.name() for schema in symmetric_schemas()}
    assert recorded < of_their_own
    page = PAGE.read_text()
    assert "symm_mem::one_shot_all_reduce" in recorded
    assert "`one_shot_all_reduce`" in page
    assert "symm_mem::nvshmem_put" in of_their_own - recorded
    assert "`nvshmem_put`" in page
