"""A part of capture in this process, which records on a tape of its own."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.capture.core.recorder import Recorder
from otel_torchdist.capture.core.torch_api import Patches
from otel_torchdist.tape.reading.reader import TapeReader


class OwnTape:
    """A tape that this process writes and reads; a part of capture is hooked by a subclass.

    Attributes:
        recorder: Writes the tape.
        reader: Reads it.
        patches: What is replaced in torch.
    """

    def __init__(self, directory: Path, capacity: int = 1024) -> None:
        """Create the tape in a directory, which becomes this user's alone."""
        directory.chmod(0o700)
        self.recorder = Recorder(directory, 0, 1, capacity)
        self.reader = TapeReader.of_writer(self.recorder.tape)
        self.patches = Patches()

    def unhook(self) -> None:
        """Undo what `patches` does not restore."""

    def close(self) -> None:
        """Undo everything."""
        self.unhook()
        self.patches.restore()
        self.recorder.tape.close()
