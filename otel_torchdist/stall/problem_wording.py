"""Failed checkpoints and shared groups as sentences."""

from __future__ import annotations

from otel_torchdist.naming import name_ranks
from otel_torchdist.stall.findings.checkpoints import SaveFailed
from otel_torchdist.stall.findings.shared_groups import GroupShared
from otel_torchdist.verdict.wording.checkpoints import name_checkpoint
from otel_torchdist.verdict.wording.sentence import describe_frame


def describe_problem(found: SaveFailed | GroupShared) -> str:
    """Describe on which ranks a checkpoint has failed and why, or which threads use a group at the same time."""
    return _save_failed(found) if isinstance(found, SaveFailed) else _group_shared(found)


def _save_failed(found: SaveFailed) -> str:
    what = f"{name_checkpoint(found.operation, found.checkpoint)} in step {found.step}"
    why = f"{found.error}: {found.message}" if found.message else found.error
    if not found.are_known:
        return f"{what} has failed; {name_ranks(found.ranks)} received an exception: {why}"
    stage = f", in {found.stage}" if found.stage else ""
    notified = f"; {name_ranks(found.notified)} received it" if found.notified else ""
    return f"{what} has failed on {name_ranks(found.ranks)}{stage}: {why}{notified}"


def _group_shared(found: GroupShared) -> str:
    operations = " and ".join(
        f"{operation} in {describe_frame(site)}" if site is not None else operation
        for operation, site in zip(found.example.operations, found.example.call_sites, strict=True)
    )
    return (
        f"two threads of {name_ranks(found.ranks)} call collectives of {found.group.label} at the same time "
        f"({operations}): gloo pairs calls in the order in which each rank makes them, so results may be wrong; "
        "one of the two needs a group of its own"
    )
