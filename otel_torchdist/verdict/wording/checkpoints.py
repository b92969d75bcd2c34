"""In which checkpoint ranks are, in words."""

from __future__ import annotations

from collections.abc import Iterable

from otel_torchdist.model.checkpoints import CheckpointView
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.units import seconds, size
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.world.places import RankPlace


def describe_checkpoint(place: RankPlace) -> str:
    """`checkpoint save /ckpt/1200, write_data, for 63.0 s (410 MB)`; '' for a rank that is in none."""
    checkpoint = place.checkpoint
    if checkpoint is None:
        return ""
    parts = [name_checkpoint(checkpoint.operation, checkpoint.checkpoint)]
    doing = checkpoint.stage or (checkpoint.meeting and f"stage {checkpoint.meeting}")
    if doing:
        parts.append(doing)
    how_much = f" ({size(checkpoint.message_bytes)})" if checkpoint.message_bytes else ""
    return f"{', '.join(parts)}, for {seconds(place.checkpoint_for_ns / 1e9)}{how_much}"


def name_checkpoint(operation: str, checkpoint: str) -> str:
    """`checkpoint save /ckpt/1200`, `torch.save rank0.pt`."""
    known = operation if operation.startswith("torch.") else f"checkpoint {operation}"
    return f"{known} {checkpoint}".rstrip()


def lone_saver(verdict: Verdict) -> RankPlace | None:
    """The place of the rank that is missing alone, if it is in a checkpoint: that explains more than its absence."""
    if verdict.kind is not VerdictKind.ABSENT or len(verdict.ranks) != 1:
        return None
    place = verdict.places.get(verdict.ranks[0])
    return place if place is not None and place.checkpoint is not None else None


def shared_meeting(verdict: Verdict) -> str:
    """In which stage of a checkpoint all ranks wait; '' if it is none, or not known of all."""
    return _only(verdict.places[rank].checkpoint for rank in verdict.waiting if rank in verdict.places)


def _only(checkpoints: Iterable[CheckpointView | None]) -> str:
    found = {checkpoint.meeting if checkpoint is not None else "" for checkpoint in checkpoints}
    return found.pop() if len(found) == 1 else ""
