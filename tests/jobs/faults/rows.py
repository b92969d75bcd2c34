"""The matrix: each fault with the expected verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeVar

from tests.jobs.faults.faulty_job import THRESHOLD_S, WORKER
from tests.support.ranks.rank import SHOWS_REDUCE_OP

DUE_S: Final = THRESHOLD_S + 2.0
THREADS: Final = WORKER.with_name("threads.py")
MESSAGES: Final = WORKER.with_name("messages.py")
QUIET: Final = WORKER.with_name("quiet_faults.py")


def line_in(piece: str, worker: Path = WORKER) -> int:
    """Return the number of the worker's first line with a piece of text."""
    return next(number for number, line in enumerate(worker.read_text().splitlines(), 1) if piece in line)


@dataclass(frozen=True)
class Row:
    """A fault.

    Attributes:
        name: Name of the fault in the worker.
        title: Its usual name.
        verdict: The expected verdict.
        ranks: Ranks that must be named, in the form of the attribute; '' for none.
        said: Text that the sentence must contain.
        line: Part of the worker's line at which the first named rank must be found; '' where there is none.
        size: Ranks of the job.
        environ: Additions to the environment of all ranks.
        of_rank: Additions to the environment of single ranks.
        marked: Ranks whose operations must be shown as waiting along with the verdict, long before the threshold.
        due_s: The verdict must be given so long after the wait began.
        worker: The worker.
        kernel: What records: `python` or `native`.
    """

    name: str
    title: str
    verdict: str
    ranks: str
    said: str
    line: str = ""
    size: int = 3
    environ: dict[str, str] = field(default_factory=dict[str, str])
    of_rank: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])
    marked: tuple[int, ...] = ()
    due_s: float = DUE_S
    worker: Path = WORKER
    kernel: str = "python"

    @property
    def line_number(self) -> int:
        """Number of `line` in the worker."""
        return line_in(self.line, self.worker)


VERDICTS: Final = (
    Row("late", "late rank", "absent", "2", "rank 2 has not entered all_reduce", "# late"),
    Row("kill", "SIGKILL", "dead", "2", "rank 2 was killed by SIGKILL"),
    Row("stop", "SIGSTOP", "frozen", "2", "rank 2 is frozen (stopped by a signal) and has not entered all_reduce"),
    Row(
        "exception",
        "Python exception on one rank",
        "dead",
        "2",
        f'it raised ValueError in exception at faulty.py:{line_in("a broken batch")}: "a broken batch"',
    ),
    Row(
        # Blocked, so that the rank does not take one of the cores from the agent. A heartbeat is late after 3 s; with a
        # shorter threshold, half a second would be left to fetch the stack.
        "gil_blocked",
        "GIL held in native code, threshold of 4 s",
        "absent",
        "2",
        "stack taken by a signal",
        "# blocked in C",
        environ={"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "4000"},
        due_s=6.0,
    ),
    Row("shape", "different shape", "mismatched", "2", "rank 2 has shape 1,000 elements where ranks 0-1 have 4 elem"),
    Row("circular", "groups in circular order", "circular", "0-2", "ranks 0-2 have waited for each other for "),
    Row("shared", "two threads in one group", "shared_group", "", "two threads of ranks 0-2 share", worker=THREADS),
    Row("recv", "recv without send", "unmatched", "1", "rank 1 has no matching send for recv", "# instead of a send"),
    Row(
        "rendezvous",
        # The agent starts only now, and on a busy machine that takes seconds.
        "rank never at rendezvous, threshold of 5 s",
        "rendezvous",
        "2",
        "rank 2 has not come to ",
        environ={"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "5000"},
        due_s=7.0,
    ),
    Row("loader", "stuck DataLoader worker", "absent", "2", "which has been in read() of ", "in DataLoader("),
    Row(
        "late",
        "one rank not instrumented",
        "unknown",
        "",
        "all ranks that report have entered it",
        of_rank={2: {"OTEL_PYTHON_TORCHDIST_ENABLED": "false"}},
    ),
)
"""One of each verdict, and of each way to it."""
VARIANTS: Final = (
    Row(
        "kill_with_child",
        "SIGKILL, and a child has the sockets: markers before the threshold of 20 s",
        "dead",
        "2",
        "rank 2 was killed by SIGKILL",
        environ={"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "20000"},
        marked=(0, 1),
    ),
    Row("operation", "different operation", "mismatched", "2", "rank 2 is in barrier at operation, faulty.py:"),
    Row("dtype", "different dtype", "mismatched", "2", "rank 2 has dtype float64 where ranks 0-1 have float32"),
    Row("root", "different root", "mismatched", "2", "rank 2 has root rank 2 where ranks 0-1 have rank 0 in broadcast"),
    Row(
        "splits",
        "split sizes that do not fit",
        "mismatched",
        "0,2",
        "rank 2 sends 5 rows to rank 0, which expects 3, in",
    ),
    Row(
        "gathered",
        "all_gather of a larger tensor",
        "mismatched",
        "2",
        "rank 2 has shape 10 elements where ranks 0-1 have 8 elements in all_gather",
    ),
    Row("skipped", "one operation left out", "mismatched", "2", "which rank 2 has left out"),
    Row(
        "helper",
        "one call of a helper left out",
        "mismatched",
        "2",
        f"rank 2 is in all_reduce at helper, faulty.py:{line_in('# the second caller')}, where ranks 0-1 are in "
        f"all_reduce at helper, faulty.py:{line_in('# the first caller')}, which rank 2 has left out",
    ),
    Row(
        "bucket",
        "DDP and another group in circular order",
        "circular",
        "0-2",
        "anks 0-1 wait for rank 2 in all_reduce (DDP bucket 0, ",
        worker=THREADS,
    ),
    Row(
        "saver",
        "a saver's thread that hangs",
        "absent",
        "2",
        "rank 2 has not entered all_reduce (sequence 1, savers)",
        "# a file system",
        worker=THREADS,
    ),
    Row(
        "peer",
        "a message awaited from another rank than before",
        "unmatched",
        "2",
        "rank 2 has no matching recv for send (from rank 0 to rank 2",
        "# receives",
        worker=MESSAGES,
    ),
    Row(
        "message",
        "a message larger than expected",
        "mismatched",
        "1-2",
        "rank 1 sends 8 elements to rank 2, which expects 4, in send (from rank 1 to rank 2",
        worker=MESSAGES,
    ),
    Row(
        "coroutine",
        "a coroutine that awaits what does not come",
        "absent",
        "2",
        "it is in step at messages.py:",
        "# awaits",
        worker=MESSAGES,
    ),
    Row(
        "elsewhere",
        "a rank with a wrong address, threshold of 3 s",
        "rendezvous",
        "2",
        "rank 2 looks for the store at 127.0.0.1:1, but ranks 0-1 wait at ",
        environ={"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "3000"},
        due_s=9.0,
    ),
    Row("new_group", "rank never at `new_group`", "rendezvous", "2", "rank 2 has not joined new_group (everybody)"),
    Row(
        "left_out",
        "one `new_group` left out",
        "mismatched",
        "2",
        f"the group is created in left_out at faulty.py:{line_in('# left out by one')}",
        "# instead of creating a group",
    ),
    Row(
        "locked",
        "DataLoader workers forked while a lock is held",
        "absent",
        "2",
        "which was held when they were forked, as it seems, by its thread in hold at faulty.py:",
        "in DataLoader(Locked",
    ),
    Row(
        "engine",
        "engine in a standalone process group never takes the weights",
        "absent",
        "3",
        "rank 1 of transfer has not entered broadcast (sequence 1, transfer)",
        "# generates",
    ),
    Row(
        "two",
        "two independent stalls at once",
        "absent",
        "1",
        "rank 1 has not entered all_reduce (sequence 1, first)",
        size=4,
        environ={"LATE_S": str(2 * THRESHOLD_S + 1)},
    ),
)
"""Further cases of the same verdicts."""
ROWS: Final = (*VERDICTS, *VARIANTS)

SPINNING: Final = Row(
    "gil",
    "GIL held by a loop in native code, threshold of 4 s",
    "absent",
    "2",
    "stack taken by a signal",
    "# in C from",
    environ={"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "4000"},
    due_s=6.0,
)
"""It takes one of the cores, too, so it is tested when no other test runs."""
_FIRST: Final = {"FAULTY_RANK": "0"}
NODE_ROWS: Final = (
    Row("late", "late rank", "absent", "3", "rank 3 has not entered all_reduce", "# late"),
    Row("kill", "SIGKILL", "dead", "3", "rank 3 was killed by SIGKILL"),
    Row("stop", "SIGSTOP", "frozen", "3", "rank 3 is frozen (stopped by a signal) and has not entered all_reduce"),
    Row("exception", "Python exception on one rank", "dead", "3", "rank 3 ended with ValueError"),
    Row(
        # Blocked, so that the rank does not take one of the cores from the agents; with time to pass on the request.
        "gil_blocked",
        "GIL held in native code, threshold of 6 s",
        "absent",
        "3",
        "stack taken by a signal",
        "# blocked in C",
        environ={"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "6000"},
        due_s=8.0,
    ),
    Row("shape", "different shape", "mismatched", "3", "rank 3 has shape 1,000 elements where ranks 0-2 have 4 elem"),
    Row("circular", "groups in circular order", "circular", "0-3", "ranks 0-3 have waited for each other for "),
    Row("kill", "host of the store killed", "dead", "0", "rank 0 was killed by SIGKILL", environ=_FIRST),
    Row("stop", "host of the store frozen", "frozen", "0", "rank 0 is frozen (stopped by a signal)", environ=_FIRST),
)
"""Faults between two nodes with two ranks each."""


def why_not_here(name: str) -> str:
    """Why a fault cannot be found with this torch; '' if it can."""
    is_old = tuple(map(int, version("torch").split(".")[:2])) < (2, 9)
    return "torch before 2.9 does not tell the reduce op" if is_old and name == "silent_reduce_op" else ""


@dataclass(frozen=True)
class Finding:
    """Something wrong that holds up no rank; attributes as in `Row`."""

    name: str
    verdict: str
    ranks: str
    said: str


@dataclass(frozen=True)
class FindingRow:
    """A job with faults that hold up no rank; other attributes as in `Row`.

    Attributes:
        findings: What is reported, each once.
    """

    title: str
    findings: tuple[Finding, ...]
    environ: dict[str, str] = field(default_factory=dict[str, str])
    size: int = 3
    kernel: str = "python"

    @property
    def here(self) -> tuple[Finding, ...]:
        """The findings that this torch allows."""
        return tuple(finding for finding in self.findings if not why_not_here(finding.name))

    @property
    def name(self) -> str:
        """Names of the faults in the worker."""
        return ",".join(finding.name for finding in self.here)


RowT = TypeVar("RowT", Row, FindingRow)
NO_STALL: Final = {"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "10000"}
"""For jobs in which nothing stalls: on a loaded machine a rank may get no core for longer than the usual threshold."""
ALL_VALUES: Final = {"OTEL_PYTHON_TORCHDIST_NUMERICS": "all", "OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY": "1"}
_FIRST_NAN: Final = "rank 2 is the first with values that are not numbers (NaN) in the in"
_LOCKED: Final = f"ranks 0-2 are in lock_file at faulty.py:{line_in('# a lock file')}: no rank is in an operation"
FINDINGS: Final = (
    FindingRow(
        "calls that differ on one rank",
        (
            Finding("silent_dtype", "mismatched", "2", "rank 2 has dtype int32 where ranks 0-1 have float32 in all_r"),
            Finding("silent_reduce_op", "mismatched", "2", "rank 2 has reduce op max where ranks 0-1 have sum in all_"),
            Finding("silent_splits", "mismatched", "0,2", "rank 2 sends 2 rows to rank 0, which expects 3, in all_to_"),
            Finding("transposed", "mismatched", "2", "rank 2 has dimensions 8x4 where ranks 0-1 have 4x8 in all_reduc"),
        ),
    ),
    FindingRow(
        "a value that is not a number, and a result overwritten before the wait",
        (
            *((Finding("nan", "non_finite", "2", _FIRST_NAN),) if SHOWS_REDUCE_OP else ()),
            Finding("overwritten", "diverged", "2", "rank 2 has another result of all_reduce"),
        ),
        ALL_VALUES,
    ),
    FindingRow(
        "straggler of 30 %", (Finding("straggler", "straggler", "2", "rank 2 is a straggler: it came last in "),)
    ),
    FindingRow(
        "all ranks wait for a lock file",
        (Finding("lock_file", "idle", "0-2", _LOCKED),),
        {"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "4000", "OTEL_PYTHON_TORCHDIST_IDLE_AFTER": "1"},
    ),
)
"""One of each."""
_ORDER: Final = "rank 3 has created group 2 with ranks 2-3, where ranks 0-2 have created it with ranks 1,3"
_SLOW: Final = "rank 2 is a straggler because it waits for data"
FINDING_VARIANTS: Final = (
    FindingRow("groups created in another order", (Finding("silent_order", "mismatched", "3", _ORDER),), size=4),
    FindingRow("slow data on one rank", (Finding("slow_data", "straggler", "2", _SLOW),)),
)
"""Further cases of the same findings."""
FINDING_ROWS: Final = (*FINDINGS, *FINDING_VARIANTS)
_MAXIMUM: Final = "rank 3 has reduce op max where ranks 0-2 have sum in"
_NAN: Final = "rank 3 is the first with values that are not numbers (NaN) in the inputs of all_reduce"
_NAN_ELSEWHERE: Final = FindingRow(
    "a value that is not a number",
    (Finding("nan", "non_finite", "3", _NAN),),
    NO_STALL | {"OTEL_PYTHON_TORCHDIST_NUMERICS": "all"},
)
NODE_FINDINGS: Final = (
    FindingRow(
        "different reduce op",
        (Finding("silent_reduce_op", "mismatched", "3", _MAXIMUM),),
        NO_STALL | {"SILENT_PAUSE_S": "0.02"},
    ),
    *([_NAN_ELSEWHERE] if SHOWS_REDUCE_OP else []),
)
"""Findings between two nodes with two ranks each."""


def natively(rows: Sequence[RowT]) -> list[RowT]:
    """Return the same rows, recorded natively: what is said is the same."""
    return [replace(row, title=f"{row.title}, recorded natively", kernel="native") for row in rows]
