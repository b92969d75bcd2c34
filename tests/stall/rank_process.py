"""A rank as a process: writes a real tape as it is told on its standard input, and answers requests for its stacks.

Commands, one a line, each acknowledged with `ok`: `enter <sequence>`, `end`, `load` (stays in `load_batch` until the
next line), `exit`.
"""

import sys
import threading
import time
from pathlib import Path

from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import How, RecordKind, RunIdState, TapeState
from otel_torchdist.tape.records import CallSiteName, GroupName, SignatureName
from otel_torchdist.tape.stacks import ThreadStack, write_stacks
from otel_torchdist.tape.writer import TapeWriter

RUN = 0xBEEF
BEAT_S = 0.1


class Rank:
    """One rank and its tape."""

    def __init__(self, directory: Path, rank: int, size: int) -> None:
        self.tape = TapeWriter(directory, identify(rank, rank, size, 64))
        self.tape.set_run_id(RUN, RunIdState.AGREED)
        names = self.tape.names
        self.group = names.intern(GroupName("0", "default_pg", tuple(range(size)), 0, "gloo", True))
        self.signature = names.intern(SignatureName("all_reduce", "sum", ((4,),), ("float32",), "cpu", 1))
        self.call_site = names.intern(CallSiteName("train_step", __file__, 1))
        self.number = self.entered_ns = 0
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            self.tape.beat()
            request = self.tape.pending_request()
            if request:
                write_stacks(self.tape.path, request, [main_stack()])
                self.tape.answer_request(request)
            time.sleep(BEAT_S)

    def enter(self, sequence: int) -> None:
        """Enter an operation."""
        self.entered_ns = time.monotonic_ns()
        thread = threading.get_native_id()
        self.number = self.tape.begin(
            self.entered_ns, 0, sequence, 16, self.group, self.signature, self.call_site, 0, -1, 0, thread,
            RecordKind.OPERATION, 0,
        )  # fmt: skip

    def end(self) -> None:
        """End it."""
        self.tape.complete(self.number, self.entered_ns, time.monotonic_ns(), How.CALL)

    def load_batch(self) -> None:
        """Be elsewhere until the next line comes."""
        print("ok", flush=True)
        sys.stdin.readline()


def main_stack() -> ThreadStack:
    """Where the main thread is."""
    main = threading.main_thread()
    frame = sys._current_frames()[main.ident or 0]
    frames: list[CallSiteName] = []
    while frame is not None:
        frames.append(CallSiteName(frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return ThreadStack(main.native_id or 0, main.name, tuple(frames))


def main() -> None:
    """Do as told."""
    rank = Rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print("ok", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "enter":
            rank.enter(int(arguments[0]))
        elif command == "end":
            rank.end()
        elif command == "load":
            rank.load_batch()
        elif command == "exit":
            rank.tape.finish(TapeState.FINISHED)
            return
        print("ok", flush=True)


if __name__ == "__main__":
    main()
