"""A rank as a process: writes a real tape as commanded on its standard input, and answers requests for its stacks.

It ends when it is asked to.

Commands, one per line, each acknowledged with `ok`: `enter <sequence>`, `end`, `load` (stays in `load_batch` until the
next line), `step <sequence>` (the step of that operation is over), `many <count>` (that many operations, each a step of
its own), `half` (is interrupted while writing a record), `clock <seconds>` (the wall clock is set, for this process),
`helper <sequence>` (starts a process that makes a group of its own, which enters that operation unless it is 0, and is
terminated at the end), `helper gone` (ends it), `exports` (claims to export its tape itself), `hold` (holds the GIL in
native code from then on, permanently).
Not acknowledged: `leave <code>` (exits without reporting), `exit`.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from otel_torchdist.model.kinds import How, RecordKind, RunIdState, TapeState
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.node.job.ancestry import parent_tape
from otel_torchdist.node.job.requests.commands import abort_path
from otel_torchdist.node.job.requests.stacks import write_stacks
from otel_torchdist.tape import layout
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter

RUN = 0xBEEF
HELPERS_RUN = 0xCAFE << 112
PR_SET_PDEATHSIG = 1
BEAT_S = 0.1

machine_time_ns = time.time_ns


class Rank:
    """One rank and its tape."""

    def __init__(self, directory: Path, rank: int, size: int, capacity: int = 64, run: int = RUN) -> None:
        self.tape = TapeWriter(directory, identify(rank, rank, size, capacity, parent_tape(directory)))
        self.tape.set_run_id(run, RunIdState.AGREED)
        names = self.tape.names
        self.group = names.intern(GroupName("0", "default_pg", tuple(range(size)), 0, "gloo", True))
        self.signature = names.intern(SignatureName("all_reduce", "sum", ((4,),), ("float32",), "cpu", 1))
        self.call_site = names.intern(CallSiteName("train_step", __file__, 1))
        self.number = self.entered_ns = 0
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            self.tape.beat()
            if abort_path(self.tape.path).exists():
                os._exit(1)
            request = self.tape.pending_request()
            if request:
                with contextlib.suppress(PermissionError):  # a test has given the directory away: we are root still
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

    def end_step(self, sequence: int) -> None:
        """End the step of an operation."""
        self.tape.step_ended(sequence - 1, time.monotonic_ns(), sequence)

    def many(self, count: int) -> None:
        """Enter and end operations, a step each."""
        for sequence in range(1, count + 1):
            self.enter(sequence)
            self.end()
            self.end_step(sequence)

    def start_helper(self, sequence: int) -> int:
        """Start a process with a group of its own, as `async_save` does; returns its pid."""
        began, begun = os.pipe()
        pid = os.fork()
        if pid:
            os.read(began, 1)
            return pid
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        identity = self.tape.identity
        helper = Rank(self.tape.path.parent, identity.rank, identity.world_size, 64, HELPERS_RUN)
        if sequence:
            helper.enter(sequence)
        os.write(begun, b"!")
        while True:
            time.sleep(60)

    def write_half(self) -> None:
        """Reserve a number and write a part of its record."""
        number = next(self.tape._numbers)
        first = layout.RING_OFFSET + number % self.tape.identity.capacity * layout.RECORD_SIZE + 8
        self.tape.view()[first : first + 50] = b"\xff" * 50

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


def set_wall_clock(ahead_s: float) -> None:
    """Set the wall clock of this process ahead of the machine's, from now on."""
    time.time_ns = lambda: machine_time_ns() + round(ahead_s * 1e9)


def end(helper: int) -> None:
    """Terminate a helper, as `multiprocessing` does with a daemon."""
    os.kill(helper, signal.SIGTERM)
    os.waitpid(helper, 0)


def main() -> None:
    """Obey commands."""
    rank, helper = Rank(Path(sys.argv[1]), *map(int, sys.argv[2:])), 0
    print("ok", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "enter":
            rank.enter(int(arguments[0]))
        elif command == "end":
            rank.end()
        elif command == "load":
            rank.load_batch()
        elif command == "step":
            rank.end_step(int(arguments[0]))
        elif command == "many":
            rank.many(int(arguments[0]))
        elif command == "half":
            rank.write_half()
        elif command == "clock":
            set_wall_clock(float(arguments[0]))
        elif command == "helper" and arguments == ["gone"]:
            end(helper)
        elif command == "helper":
            helper = rank.start_helper(int(arguments[0]))
        elif command == "exports":
            rank.tape.claim_export()
        elif command == "hold":
            print("ok", flush=True)
            ctypes.PyDLL(None).pause()
        elif command == "leave":
            os._exit(int(arguments[0]))
        elif command == "exit":
            rank.tape.finish(TapeState.FINISHED)
            if helper:
                end(helper)
            return
        print("ok", flush=True)


if __name__ == "__main__":
    main()
