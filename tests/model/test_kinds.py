"""Rows of operations and of activities."""

from __future__ import annotations

import re
from collections import Counter

from otel_torchdist.capture.core.calls.schemas import collective_schemas
from otel_torchdist.model.activity_kinds import CHECKPOINT_OPERATIONS, TRAITS, Detail
from otel_torchdist.model.collectives import COLLECTIVES, operation_named
from otel_torchdist.telemetry import semconv
from tests.support.repository import REPOSITORY

# --- The rows of activities -------------------------------------------------------------------------------------------


NAMED_BY_DETAIL = (Detail.STAGE, Detail.FUNCTION)


def test_spans_are_described_under_their_titles() -> None:
    """The span reference lists exactly the activities that are not named after their detail."""
    titles = {row.title for row in TRAITS.values() if row.detail not in NAMED_BY_DETAIL}
    described = (
        *(semconv.OPTIMIZER_STEP_SPAN, semconv.DATA_WAIT_SPAN, semconv.BACKWARD_SPAN),
        *(semconv.RPC_JOIN_SPAN, semconv.RPC_SHUTDOWN_SPAN),
        *(semconv.CHECKPOINT_SPAN.format(operation=name) for name in CHECKPOINT_OPERATIONS.values()),
    )
    assert sorted(titles) == sorted(described)


# --- The rows of operations cover what torch has, and their names lead to one row each --------------------------------


def test_torch_has_no_operation_without_a_row() -> None:
    """Each operation of the dispatcher that takes a process group has a row."""
    assert {schema.name for schema in collective_schemas()} <= COLLECTIVES.keys()


def test_names_are_unique() -> None:
    """No name or alias belongs to two operations, and each resolves to its operation."""
    named = [(name, row.name) for row in COLLECTIVES.values() for name in (row.name, *row.aliases)]
    assert [name for name, count in Counter(name for name, _ in named).items() if count > 1] == []
    assert [name for name, operation in named if operation_named(name) != operation] == []


def test_names_of_each_dialect() -> None:
    """The dispatcher, the flight recorder, traces, kernels and the watchdog name the same operations differently."""
    recorded = ("_allgather_base_", "_all_gather_base", "ALLGATHER_SINGLE", "all_gather_single", "RECVANYSOURCE", "put")
    gather = "all_gather_into_tensor"
    assert [operation_named(name) for name in recorded] == [gather, gather, gather, gather, "recv", "put"]


def test_pages_have_a_color_for_each_family() -> None:
    """The timelines of the report and the live page know each family that moves data or waits."""
    script = (REPOSITORY / "otel_torchdist" / "show" / "pages" / "assets" / "operations.js").read_text()
    [table] = re.findall(r"const FAMILIES = \{([^}]*)\}", script)
    families = {row.family.name for row in COLLECTIVES.values()} - {"new_window"}
    assert set(re.findall(r"(\w+): \d", table)) == families
