"""A rank in this process: the parts of its steps are recorded on a tape of its own."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.capture.parts.step_parts import StepParts
from otel_torchdist.capture.parts.steps import StepDetector
from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import ActivityKind
from otel_torchdist.tape.figures import StepFigures, read_figures
from tests.support.tapes.own_tape import OwnTape


class Rank(OwnTape):
    """Parts of this process's steps, recorded on a tape of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.parts = StepParts()
        self.steps = StepDetector(lambda: 0, lambda recorder: self.parts.mark_training_thread())
        self.steps.hook(self.patches)
        self.parts.hook(self.patches)
        self.steps.recorder = self.recorder
        self.parts.begins(self.recorder)

    @property
    def figures(self) -> StepFigures:
        """Return the counted figures."""
        return read_figures(self.reader.words)

    def ended(self, kind: ActivityKind) -> list[Activity]:
        """Return the activities that ended since the last call."""
        return [one for one in self.reader.poll().activities_ended if one.kind is kind]

    def unhook(self) -> None:
        """Undo the hooks that `patches` does not restore."""
        self.parts.unhook()
        self.steps.unhook()
