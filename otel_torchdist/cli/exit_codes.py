"""The exit codes of all commands. Each code has one meaning, so that scripts can rely on it.

Codes from 64 on follow `sysexits.h`. Codes from 128 on are those that a shell reports for a signal.
"""

from __future__ import annotations

import enum
import signal

_SIGNAL_BASE = 128


class ExitCode(enum.IntEnum):
    """An exit code.

    Attributes:
        meaning: Description as Markdown.
    """

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Create a member from a row of the table."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    SUCCESS = 0, "success; `diagnose`: no problem"
    PROBLEM = 1, "`diagnose`: a verdict or a finding, or a rank that failed or died"
    NOTHING_FOUND = 2, "no job, run or tape that can be read, or more than one run matches"
    DEMO_FAILED = 3, "the demo's training failed, or the expected verdict did not come in time"
    NOT_REPRODUCIBLE = 4, "`reproduce`: no verdict, or a verdict that a script cannot reproduce"
    NOT_BUILT = 5, "`build-native`: the process is a rank, the compiler failed, or the built library does not work"
    USAGE_ERROR = 64, "the command line is wrong"
    UNAVAILABLE = 69, "a package or compiler that the command needs is not installed"
    INTERNAL_ERROR = 70, "an error in the command itself; the traceback is on stderr"
    NO_DIRECTORY = 73, "the directory for tapes, or a file, cannot be created or used"
    NOT_WRITTEN = 74, "a file cannot be written"
    NOT_SENT = 75, "the receiver of spans did not accept all of them"
    HUNG_UP = _SIGNAL_BASE + signal.SIGHUP, "ended by SIGHUP: the terminal is gone"
    INTERRUPTED = _SIGNAL_BASE + signal.SIGINT, "ended by SIGINT (Ctrl-C)"
    BROKEN_PIPE = _SIGNAL_BASE + signal.SIGPIPE, "nothing reads the output any more"
    TERMINATED = _SIGNAL_BASE + signal.SIGTERM, "ended by SIGTERM"

    @classmethod
    def of_signal(cls, number: signal.Signals) -> ExitCode:
        """Return the code of a command that SIGHUP, SIGINT or SIGTERM has ended."""
        return cls(_SIGNAL_BASE + number)


def exit_codes_help(*codes: ExitCode) -> str:
    """Return the last paragraph of a command's help: its own exit codes and the shared ones."""
    shared = (ExitCode.SUCCESS, ExitCode.USAGE_ERROR, ExitCode.INTERNAL_ERROR)
    rows = [f"- `{code.value}`: {code.meaning}" for code in sorted({*codes, *shared})]
    return "\n\n".join(["Exit codes:", *rows])
