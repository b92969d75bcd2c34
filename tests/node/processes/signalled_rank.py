"""A rank without torch, in a process of its own: a real tape, and our real handler unless the signal is in use.

Arguments: the directory, the earlier owner of the signal (see `OWNERS`), and changes to the tape's identity as JSON.
Commands, one per line, each acknowledged with a line: see `COMMANDS`. To `hold` means to hold the GIL in native code
until a line comes.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from otel_torchdist.capture.core.requests.stacks import SIGNAL, offer_stacks, withdraw_offer
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.node.job.requests.stacks import decode_offer, offer_path
from otel_torchdist.node.processes.stack_signal import ask_by_signal
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.mapped import MappedTape
from otel_torchdist.tape.writer import TapeWriter

taken: list[int] = []


def acknowledge(*words: object) -> None:
    """Write a line."""
    print(*words, flush=True)


def hold(tape: TapeWriter) -> None:
    """Hold the GIL: one native call that acknowledges itself, and that a signal does not end."""
    ctypes.PyDLL(None).system(f"echo {threading.get_native_id()}; read line".encode())


def hold_elsewhere(tape: TapeWriter) -> None:
    """Let another thread hold the GIL."""
    thread = threading.Thread(target=hold, args=(tape,))
    thread.start()
    thread.join()


def enter_elsewhere(tape: TapeWriter) -> None:
    """Let another thread hold the GIL while it is in an operation."""

    def enter() -> None:
        thread = threading.get_native_id()
        now_ns = time.monotonic_ns()
        tape.begin(now_ns, 0, 1, 0, 0, 0, 0, 0, -1, 0, thread, RecordKind.OPERATION, 0)
        hold(tape)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()


def take_signal(tape: TapeWriter) -> None:
    """Take the signal over, as a user's `signal.signal` does."""
    signal.signal(SIGNAL, lambda number, frame: taken.append(number))
    acknowledge()


def give_signal_up(tape: TapeWriter) -> None:
    """Restore the kernel's default action for the signal, which kills."""
    signal.signal(SIGNAL, signal.SIG_DFL)
    acknowledge()


def block_signal(tape: TapeWriter) -> None:
    """Block the signal in the main thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [SIGNAL])
    acknowledge()


def use_descriptor(tape: TapeWriter) -> None:
    """Have another file open under our descriptor's number, as after `os.closerange`."""
    offer = decode_offer(offer_path(tape.path).read_bytes())
    assert offer is not None
    other = os.open(tape.path.with_name("of-the-user"), os.O_RDWR | os.O_CREAT, 0o600)
    os.dup2(other, offer.descriptor)
    acknowledge()


def take_long_turns(tape: TapeWriter) -> None:
    """Let threads keep the GIL for seconds while they run Python."""
    sys.setswitchinterval(5.0)
    acknowledge()


def close_tape(tape: TapeWriter) -> None:
    """Withdraw the offer and close the tape, as `uninstrument` does."""
    withdraw_offer(tape.path)
    tape.close()
    acknowledge()


def offer_again(tape: TapeWriter) -> None:
    """Offer stacks again, for another tape."""
    acknowledge(offer_stacks(tape.path))


def become_another_program(tape: TapeWriter) -> None:
    """Replace the process with another program, which acknowledges and then waits for its input to end."""
    os.execvp("sh", ["sh", "-c", "echo; read line"])


def signal_itself(tape: TapeWriter) -> None:
    """Request a stack of this very process."""
    acknowledge(ask_by_signal(MappedTape.of_writer(tape), 0))


def report_taken(tape: TapeWriter) -> None:
    """Report how many signals this program's own handler received."""
    acknowledge(len(taken))


COMMANDS = {
    function.__name__: function
    for function in (
        hold, hold_elsewhere, enter_elsewhere, take_signal, give_signal_up, block_signal, use_descriptor, close_tape,
        offer_again, take_long_turns, become_another_program, signal_itself, report_taken,
    )
}  # fmt: skip

LIBC = ctypes.CDLL(None)
OWNERS = {
    "none": lambda: None,
    "python": lambda: signal.signal(SIGNAL, lambda number, frame: taken.append(number)),
    "python ignores": lambda: signal.signal(SIGNAL, signal.SIG_IGN),
    # Python knows nothing about a handler in C, which may be any function of a number.
    "c": lambda: LIBC.signal(SIGNAL, LIBC.abs),
    "c ignores": lambda: LIBC.signal(SIGNAL, ctypes.c_void_p(int(signal.SIG_IGN))),
}


def main() -> None:
    """Obey commands."""
    directory, owner, changes = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    OWNERS[owner]()
    identity = identify(0, 0, 2, 64)
    changed = {name: getattr(identity, name) + change for name, change in changes.items()}
    tape = TapeWriter(directory, replace(identity, **changed))
    acknowledge(tape.path, offer_stacks(tape.path))
    for line in sys.stdin:
        COMMANDS[line.strip()](tape)


if __name__ == "__main__":
    main()
