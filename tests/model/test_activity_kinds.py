"""The rows of activities."""

from __future__ import annotations

from otel_torchdist import semconv
from otel_torchdist.model.activity_kinds import CHECKPOINT_OPERATIONS, TRAITS, Detail

NAMED_BY_DETAIL = (Detail.STAGE, Detail.FUNCTION)


def test_spans_are_described_under_their_titles() -> None:
    """The reference of spans has each activity that is not named after its detail, and no other."""
    titles = {row.title for row in TRAITS.values() if row.detail not in NAMED_BY_DETAIL}
    described = (
        *(semconv.OPTIMIZER_STEP_SPAN, semconv.DATA_WAIT_SPAN, semconv.BACKWARD_SPAN),
        *(semconv.RPC_JOIN_SPAN, semconv.RPC_SHUTDOWN_SPAN),
        *(semconv.CHECKPOINT_SPAN.format(operation=name) for name in CHECKPOINT_OPERATIONS.values()),
    )
    assert sorted(titles) == sorted(described)
