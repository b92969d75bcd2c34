"""Detects checkpoints that could not be saved, and the ranks whose exceptions were the cause.

Loads are left out, because many programs start by looking for a checkpoint that need not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.verdict.wording.places import name_checkpoint
from otel_torchdist.model.rank_state.occupations import FailedCheckpoint
from otel_torchdist.model.reports.finding import Finding, FindingKind, JudgedWorld, Severity
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import name_ranks
from otel_torchdist.telemetry import semconv

SETTLED_NS: Final = 2_000_000_000
"""Time in ns to wait until the other ranks have ended the same save."""
MAX_REPORTED: Final = 16
"""Maximum number of findings of a run. A full disk would repeat the same finding again and again."""

_Checkpoint = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A checkpoint that was not saved.

    Attributes:
        operation: `save`, `async_save` or `torch.save`.
        checkpoint: Its path or id, or ''.
        ranks: Ranks that raised the exception, ascending; if unknown, the ranks that received an exception.
        notified: Other ranks that received the exception, ascending.
        are_known: Whether `ranks` are known to be the cause.
        stage: The stage that raised on the first of these ranks; '' if none.
        error: Type of its exception.
        step: Step of that rank.
    """

    operation: str
    checkpoint: str
    ranks: tuple[int, ...]
    notified: tuple[int, ...]
    are_known: bool
    stage: str
    error: str
    message: str
    step: int

    @property
    def text(self) -> str:
        """The failed ranks and the reason, as a sentence."""
        save = f"{name_checkpoint(self.operation, self.checkpoint)} in step {self.step}"
        why = f"{self.error}: {self.message}" if self.message else self.error
        if not self.are_known:
            return f"{save} has failed; {name_ranks(self.ranks)} received an exception: {why}"
        stage = f", in {self.stage}" if self.stage else ""
        notified = f"; {name_ranks(self.notified)} received it" if self.notified else ""
        return f"{save} has failed on {name_ranks(self.ranks)}{stage}: {why}{notified}"

    def finding(self, judged: JudgedWorld) -> Finding:
        """Return the finding on a checkpoint that was not saved."""
        operation = name_checkpoint(self.operation, "")
        return Finding(
            kind=FindingKind.CHECKPOINT_FAILED,
            severity=Severity.ERROR,
            incident=judged.incident(f"checkpoint {self.operation} {self.checkpoint} {judged.world.taken_ns}"),
            ranks=self.ranks,
            group="",
            operation=operation,
            text=self.text,
            world=judged.world,
            attributes={
                semconv.OPERATION: operation,
                semconv.CHECKPOINT_OPERATION: self.operation,
                semconv.CHECKPOINT_ID: self.checkpoint,
                semconv.STEP: self.step,
                semconv.ERROR_TYPE: self.error,
                **({semconv.CHECKPOINT_STAGE: self.stage} if self.stage else {}),
            },
        )


class FailedSaves:
    """Compares the failed saves of one run's ranks."""

    def __init__(self) -> None:
        self._reported = 0
        self._seen: set[tuple[int, int]] = set()
        self._since_ns: dict[_Checkpoint, int] = {}

    def find(self, world: WorldSnapshot, is_last: bool = False) -> list[SaveFailed]:
        """Return the failed saves to report now. At the end of a run, report immediately."""
        new: dict[_Checkpoint, list[tuple[RankView, FailedCheckpoint]]] = {}
        shown = {(view.nonce, failed.number) for view in world.ranks.values() for failed in view.checkpoints.failed}
        self._seen &= shown
        for view in world.in_order:
            for failed in view.checkpoints.failed:
                if (view.nonce, failed.number) not in self._seen:
                    new.setdefault((failed.operation, failed.checkpoint), []).append((view, failed))
        self._since_ns = {key: self._since_ns.get(key, world.taken_ns) for key in new}
        due = [key for key, since_ns in self._since_ns.items() if is_last or world.taken_ns - since_ns >= SETTLED_NS]
        found: list[SaveFailed] = []
        for key in due:
            self._seen |= {(view.nonce, failed.number) for view, failed in new[key]}
            if self._reported < MAX_REPORTED:
                self._reported += 1
                found.append(_describe(key, new[key]))
        return found


def _describe(key: _Checkpoint, failures: list[tuple[RankView, FailedCheckpoint]]) -> SaveFailed:
    everybody = {view.rank for view, _ in failures}
    causes = [(view, failed) for view, failed in failures if failed.is_cause]
    first = min(causes or failures, key=lambda failure: (failure[0].rank, failure[1].number))[1]
    ranks = {view.rank for view, _ in causes} or everybody
    return SaveFailed(
        operation=key[0],
        checkpoint=key[1],
        ranks=tuple(sorted(ranks)),
        notified=tuple(sorted(everybody - ranks)),
        are_known=bool(causes),
        stage=first.stage,
        error=first.error,
        message=first.message,
        step=first.step,
    )
