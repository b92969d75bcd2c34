"""A model of a fault in one rank, and of what the launcher, the kernel and the backend then do to the others.

Times are seconds after the fault. Behavior marked as read was not tested on a real system; the rest is tested in
`tests/jobs/faults/ends`.
"""

from __future__ import annotations

import enum
import itertools
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

KILL, TERM, SEGV, ABORT = map(int, (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT))
EXIT_1, EXIT_3 = 1 << 8, 3 << 8

CLOSED_S = 0.001
"""The kernel closes a process's connections after it has freed its memory, and before it shows its end."""
INTERRUPTED_S = 0.002
"""gloo: an operation with a peer whose connection is closed fails at once (run)."""
LEAVES_S = 0.15
"""An interpreter that has imported torch takes that long to end after an exception (run)."""
TIMEOUT_S = 60.0


class Fault(enum.Enum):
    """The fault of the guilty rank."""

    KILLED = "one rank gets SIGKILL, from the kernel for lack of memory or from a person"
    SEGMENTATION = "one rank gets SIGSEGV from its own code"
    ABORT = "one rank aborts"
    RAISED = "one rank raises an exception of its own"
    EXITED = "one rank exits with code 3"
    TERMINATED = "one rank gets SIGTERM"
    CANCELLED = "the launcher, or the scheduler, sends SIGTERM to all"
    ALL_KILLED = "the kernel, for lack of memory in the cgroup, or the scheduler sends SIGKILL to all"
    HUNG = "one rank hangs, until the backend of the others gives up"
    LEFT = "one rank exits with code 0 while others need it"


class Launcher(enum.Enum):
    """The launcher, by the way in which it ends the other ranks."""

    TORCHRUN = "torchrun"
    """Looks every 0.1 s for a rank that has failed, then sends SIGTERM to all, and SIGKILL after 30 s (run)."""
    SPAWN = "torch.multiprocessing.spawn"
    """Waits for the first rank that fails, then sends SIGTERM to all, and SIGKILL after 30 s (read)."""
    SLURM = "srun --kill-on-bad-exit"
    """Sends SIGCONT and SIGTERM to all, and SIGKILL after KillWait, which is 30 s (read)."""
    MPIRUN = "mpirun"
    """Sends SIGCONT and SIGTERM to all, and SIGKILL after 1 s (read)."""
    RAY = "ray"
    """Learns from a closed connection that an actor is gone, and ends the others with exit code 1 (`ray.kill`, run) or
    by SIGKILL (read). Its workers have a handler of SIGTERM (run)."""
    NONE = "none"
    """Nothing: ranks started by hand, or `srun` without that option (read)."""


class Backend(enum.Enum):
    """The backend, by what happens to the operations of the other ranks."""

    GLOO = "gloo"
    """They fail at once (run)."""
    NCCL = "nccl"
    """They hang (run)."""
    NCCL_ABORTS = "nccl whose watchdog sees the closed connection"
    """It aborts the process, a second later (read)."""


class Handler(enum.Enum):
    """The reaction of the program to SIGTERM."""

    DEFAULT = "dies of it"
    EXITS = "exits with code 1, when it runs Python"
    EXITS_WITH_0 = "exits with code 0, when it runs Python"


class Doing(enum.Enum):
    """The activity of a rank at the time of the fault."""

    WAITS = "waits in the operation"
    COMPUTES = "runs Python"


@dataclass(frozen=True)
class Launch:
    """A world of the model: its ranks, the fault, and the environment.

    Attributes:
        doing: By rank.
        guilty: The rank with the fault.
        slow_s: Seconds from the loss of that rank's connections until the kernel reports its end, while a device
            driver cleans up. If a signal to all ends the ranks, this applies to all but the first.
        spread_s: Seconds that a signal to all ranks takes, since a launcher may lose its core in between.
        nodes: Number of nodes. Each has a block of ranks.
    """

    doing: tuple[Doing, ...]
    guilty: int
    fault: Fault
    launcher: Launcher
    backend: Backend
    handler: Handler
    slow_s: float = 0.0
    spread_s: float = 0.0005
    nodes: int = 1

    @property
    def first(self) -> frozenset[int]:
        """The ranks that may be named as the first death."""
        nobody = self.fault in (Fault.CANCELLED, Fault.ALL_KILLED, Fault.HUNG, Fault.LEFT)
        return frozenset() if nobody else frozenset({self.guilty})

    def node(self, rank: int) -> int:
        """The node of a rank."""
        return rank * self.nodes // len(self.doing)


class End(NamedTuple):
    """The end of one rank.

    Attributes:
        ran_s: Time until which its threads ran.
        shown_s: Time at which the kernel reports its end.
        status: Its wait status.
        failed_s: Time at which its last operation failed; None if it did not fail.
        raised: Whether it recorded an exception of the program or of its operation.
        in_operation: Whether it ended while it was in the operation.
        handles: Whether it can outlive SIGTERM.
    """

    ran_s: float
    shown_s: float
    status: int
    failed_s: float | None = None
    raised: bool = False
    in_operation: bool = False
    handles: bool = False


STATUS = {
    Fault.KILLED: KILL,
    Fault.ALL_KILLED: KILL,
    Fault.SEGMENTATION: SEGV,
    Fault.ABORT: ABORT,
    Fault.RAISED: EXIT_1,
    Fault.EXITED: EXIT_3,
    Fault.TERMINATED: TERM,
    Fault.LEFT: 0,
}
PATIENCE_S = {Launcher.TORCHRUN: 30.0, Launcher.SPAWN: 30.0, Launcher.SLURM: 30.0, Launcher.MPIRUN: 1.0}
REACTS_S = {Launcher.TORCHRUN: 0.1, Launcher.SPAWN: 0.001, Launcher.SLURM: 0.05, Launcher.MPIRUN: 0.01}
OTHER_NODE_S = 2.0
"""A launcher on another node learns from the store that one has failed (torchrun: run)."""


def ends_of(launch: Launch) -> list[End | None]:
    """Return the end of each rank; None for a rank that lives on."""
    return _Ends(launch).all()


class _Ends:
    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.handles = launch.handler is not Handler.DEFAULT or launch.launcher is Launcher.RAY
        self.ranks = range(len(launch.doing))
        self.ends: list[End | None] = [None for _ in self.ranks]

    def all(self) -> list[End | None]:
        launch = self.launch
        if launch.fault is Fault.ALL_KILLED:
            for rank in self.ranks:
                self.ends[rank] = self._struck(rank, KILL, self._turn_s(rank))
            return self.ends
        if launch.fault is Fault.CANCELLED:
            self._ask_all(0.0, self.ranks)
            self._interrupt(launch.spread_s)
            return self.ends
        if launch.fault is Fault.HUNG:
            self._give_up()
        else:
            self._begin()
            self._interrupt(INTERRUPTED_S)
        self._react()
        return self.ends

    def _turn_s(self, rank: int) -> float:
        return self.launch.spread_s * rank / len(self.launch.doing)

    def _struck(self, rank: int, status: int, at_s: float, slow_s: float = 0.0) -> End:
        if self.launch.fault in (Fault.CANCELLED, Fault.ALL_KILLED):
            slow_s = self.launch.slow_s * rank
        waits = self.launch.doing[rank] is Doing.WAITS
        return End(at_s, at_s + CLOSED_S + slow_s, status, in_operation=waits, handles=self.handles)

    def _begin(self) -> None:
        """End the rank with the fault."""
        launch = self.launch
        rank, fault = launch.guilty, launch.fault
        if fault is Fault.TERMINATED:
            if (
                not self.handles or launch.doing[rank] is Doing.COMPUTES
            ):  # a Python handler runs only after the call returns
                self._ask(rank, 0.0, launch.slow_s)
            return
        end = self._struck(rank, STATUS[fault], 0.0, launch.slow_s)
        if fault in (Fault.RAISED, Fault.LEFT):
            end = end._replace(raised=fault is Fault.RAISED, in_operation=False)
        self.ends[rank] = end

    def _gone_s(self) -> float | None:
        """Return the time at which the first connection is closed."""
        return min((end.ran_s + CLOSED_S for end in self.ends if end is not None), default=None)

    def _interrupt(self, after_s: float) -> None:
        """Let operations fail on ranks that wait for a dead rank."""
        launch, gone_s = self.launch, self._gone_s()
        if gone_s is None or launch.backend is Backend.NCCL:
            return
        for rank in self.ranks:
            end = self.ends[rank]
            if launch.doing[rank] is Doing.COMPUTES or (end is not None and end.ran_s <= gone_s):
                continue
            if launch.backend is Backend.NCCL_ABORTS:
                self.ends[rank] = end or self._struck(rank, ABORT, gone_s + 1.0)
            elif end is None:
                self.ends[rank] = self._left(rank, gone_s + after_s)
            elif self.handles:  # it has left the operation, so its handler runs
                code = 0 if launch.handler is Handler.EXITS_WITH_0 else EXIT_1
                self.ends[rank] = self._struck(rank, code, gone_s + 0.02)._replace(failed_s=gone_s, in_operation=False)
            else:  # a launcher that had lost its core sends its signal late
                self.ends[rank] = end._replace(failed_s=gone_s, in_operation=False)

    def _left(self, rank: int, failed_s: float) -> End:
        left_s = failed_s + LEAVES_S
        return End(left_s, left_s, EXIT_1, failed_s, raised=True, handles=self.handles)

    def _give_up(self) -> None:
        for rank in self.ranks:
            if rank == self.launch.guilty or self.launch.doing[rank] is Doing.COMPUTES:
                continue
            if self.launch.backend is Backend.GLOO:
                self.ends[rank] = self._left(rank, TIMEOUT_S + rank / 1000)
            else:
                self.ends[rank] = self._struck(rank, ABORT, TIMEOUT_S + rank / 1000)

    def _react(self) -> None:
        """Let each node's launcher end its remaining ranks. Launchers of other nodes learn of the fault later."""
        launch = self.launch
        if launch.launcher is Launcher.NONE:
            return
        if launch.launcher is Launcher.RAY:
            gone_s = self._gone_s()
            if gone_s is not None:
                self._strike_rest(gone_s + 0.05)
            return
        seen: dict[int, float] = {}
        for rank in self.ranks:
            end = self.ends[rank]
            if end is not None and end.status:
                node = launch.node(rank)
                seen[node] = min(seen.get(node, end.shown_s), end.shown_s)
        if not seen:
            return
        everywhere_s = min(seen.values()) + OTHER_NODE_S
        for node in range(launch.nodes):
            here = [rank for rank in self.ranks if launch.node(rank) == node]
            began_s = min(seen.get(node, everywhere_s), everywhere_s) + REACTS_S[launch.launcher]
            self._ask_all(began_s, here)

    def _strike_rest(self, at_s: float) -> None:
        for rank in self.ranks:
            status = EXIT_1 if rank % 2 else KILL
            end = self.ends[rank]
            if end is None or end.ran_s > at_s:
                self.ends[rank] = self._cut(rank, end, status, at_s + self._turn_s(rank))

    def _ask_all(self, at_s: float, ranks: Sequence[int]) -> None:
        for rank in ranks:
            end, here_s = self.ends[rank], at_s + self._turn_s(rank)
            if end is None or end.ran_s > here_s:
                self._ask(rank, here_s)

    def _ask(self, rank: int, at_s: float, slow_s: float = 0.0) -> None:
        launch, end = self.launch, self.ends[rank]
        if not self.handles:
            self.ends[rank] = self._cut(rank, end, TERM, at_s, slow_s)
            return
        is_in_python = launch.doing[rank] is Doing.COMPUTES or (end is not None and end.failed_s is not None)
        if is_in_python:
            code = 0 if launch.handler is Handler.EXITS_WITH_0 else EXIT_1
            exited = self._cut(rank, end, code, at_s + 0.02, slow_s)
            self.ends[rank] = exited._replace(in_operation=False)
        elif launch.launcher in PATIENCE_S:
            self.ends[rank] = self._cut(rank, end, KILL, at_s + PATIENCE_S[launch.launcher])

    def _cut(self, rank: int, end: End | None, status: int, at_s: float, slow_s: float = 0.0) -> End:
        """Let a signal end a rank, which may have left its operation before."""
        cut = self._struck(rank, status, at_s, slow_s)
        if end is not None and end.failed_s is not None and end.failed_s < at_s:
            cut = cut._replace(failed_s=end.failed_s, in_operation=False)
        return cut


# --- all of them ---------------------------------------------------------------------------------------------------


NEVER_SLOW = (Fault.HUNG, Fault.LEFT, Fault.TERMINATED)
"""If a driver delays the end of the only rank that gets SIGTERM, it looks like one that its launcher has ended later.
That is the one world that the table does not tell from others."""


def launches(size: int) -> Iterator[Launch]:
    """Yield all worlds with this number of ranks."""
    for doing in itertools.product(Doing, repeat=size):
        for guilty, fault, launcher, backend, handler in itertools.product(
            range(size), Fault, Launcher, Backend, Handler
        ):
            launch = Launch(doing, guilty, fault, launcher, backend, handler)
            if not _is_distinct(launch):
                continue
            for slow_s in (0.0,) if fault in NEVER_SLOW else (0.0, 3.0):
                for nodes in (1, 2):
                    yield replace(launch, slow_s=slow_s, nodes=nodes)
            if fault in (Fault.CANCELLED, Fault.ALL_KILLED):
                yield replace(launch, spread_s=0.05)


def _is_distinct(launch: Launch) -> bool:
    """Return whether a world is not equivalent to an earlier one."""
    if launch.fault in (Fault.CANCELLED, Fault.ALL_KILLED) and launch.guilty:
        return False
    if launch.handler is not Handler.DEFAULT and launch.launcher is Launcher.RAY:
        return False
    if launch.fault is Fault.CANCELLED and launch.launcher in (Launcher.RAY, Launcher.NONE):
        return False
    return launch.backend is not Backend.NCCL_ABORTS or launch.fault not in (Fault.CANCELLED, Fault.ALL_KILLED)
