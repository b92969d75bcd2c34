"""The page on coverage keeps up with torch."""

from __future__ import annotations

from otel_torchdist.capture.c10d.calls.schemas import collective_schemas
from otel_torchdist.capture.one_sided.symmetric_memory import symmetric_schemas
from otel_torchdist.capture.torch_api import dispatcher_overloads
from tests.support.repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "coverage.md"


def test_every_operation_is_named() -> None:
    """Every group operation of this torch is on the page, under its name on the tape."""
    page = PAGE.read_text()
    names = {schema.name for schema in collective_schemas()}
    assert len(names) > 15
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_symmetric_memory_is_apart() -> None:
    """Symmetric memory has operations of its own, not collectives; the page lists those whose group is known."""
    of_their_own = {overload.name() for overload in dispatcher_overloads("symm_mem")}
    assert of_their_own
    assert not of_their_own & {schema.overload.name() for schema in collective_schemas()}
    recorded = {schema.overload.name() for schema in symmetric_schemas()}
    assert recorded < of_their_own
    page = PAGE.read_text()
    assert "symm_mem::one_shot_all_reduce" in recorded
    assert "`one_shot_all_reduce`" in page
    assert "symm_mem::nvshmem_put" in of_their_own - recorded
    assert "`nvshmem_put`" in page
