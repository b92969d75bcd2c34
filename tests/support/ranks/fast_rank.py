"""A rank that calls faster than anything can read: writes its tape through the native library, as commanded.

Arguments: the directory of its tape, that of the library, records in the ring. Commands, one per line: `burst <count>`
(that many operations, `STEP` to a step, entered every `EVERY_NS` of its own time), `hang` (enters an operation and does
not end it), `go on` (ends it). Each is answered with the number of records so far.
"""

import sys
import time
from pathlib import Path

import torch  # noqa: F401 - the library needs it

from otel_torchdist.model.kinds import Flag, How, RecordKind, RunIdState
from otel_torchdist.model.names import GroupName, SignatureName
from otel_torchdist.native.library import find_library
from otel_torchdist.native.recording import NativeTapeWriter
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.writer import TapeWriter

EVERY_NS = 10_000
"""100,000 operations a second."""
STEP = 100
BYTES = 64


class FastRank:
    """The rank and its tape."""

    def __init__(self, directory: Path, library: Path, capacity: int) -> None:
        self.tape = NativeTapeWriter(find_library(library), directory, identify(0, 0, 1, capacity))
        self.tape.set_run_id(0xFA57, RunIdState.AGREED)
        names = self.tape.names
        group = names.intern(GroupName("0", "default_pg", (0,), 0, "gloo", True))
        signature = names.intern(SignatureName("all_reduce", "sum", ((4,),), ("float32",), "cpu", 1))
        self._tail = TapeWriter.prepare(BYTES, group, signature, 0, 0, -1, 0, 1, RecordKind.OPERATION, Flag.ASYNC)
        self._calls = 0
        self._now_ns = time.monotonic_ns()
        self._open = 0

    @property
    def records(self) -> int:
        """Records written so far."""
        return self.tape.view().cast("Q")[LiveWord.NEXT_NUMBER] - 1

    def enter(self) -> int:
        """Enter an operation."""
        self._now_ns += EVERY_NS
        self._calls += 1
        return self.tape.begin_prepared(self._now_ns, (self._calls - 1) // STEP, self._calls, self._tail)

    def end(self, number: int) -> None:
        """End it."""
        self.tape.complete(number, self._now_ns, self._now_ns + EVERY_NS // 2, How.CALL)
        if self._calls % STEP == 0:
            self.tape.step_ended(self._calls // STEP - 1, self._now_ns + EVERY_NS // 2, self._calls)

    def obey(self, command: str) -> None:
        """Do what a line says."""
        match command.split():
            case ["burst", count]:
                for _ in range(int(count)):
                    self.end(self.enter())
                self.tape.beat()
            case ["hang"]:
                self._open = self.enter()
            case ["go", "on"]:
                self.end(self._open)
            case unknown:
                raise ValueError(unknown)


def main() -> None:
    """Obey until the input ends."""
    rank = FastRank(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    print(rank.tape.path, flush=True)
    for line in sys.stdin:
        rank.obey(line)
        print(rank.records, flush=True)


if __name__ == "__main__":
    main()
