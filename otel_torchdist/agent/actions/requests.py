"""The actions `rescue` and `abort`: ask the ranks of a stalled run on this node to save their state, or to end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from otel_torchdist.agent.actions.stalled_run import StalledRun
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.stall.events import OngoingStall
from otel_torchdist.judge.verdict.wording.ends import describe_rescue
from otel_torchdist.model.rank_state.rescue import NO_RESCUE, RescueState
from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.node.job.requests.commands import MAX_REASON_BYTES as MAX_BYTES
from otel_torchdist.node.job.requests.commands import RescueRequest, abort_path, request_rescue
from otel_torchdist.node.processes import pidfd
from otel_torchdist.node.processes.state import can_signal
from otel_torchdist.system.files.owned import create_anew
from otel_torchdist.tape.identity import process_start_ticks, shares_pids
from otel_torchdist.tape.mapped import MappedTape
from otel_torchdist.tape.reading.reader import TapeReader

# --- rescue -----------------------------------------------------------------------------------------------------------
# Has the ranks of a stalled run save their state, and reports which of the saved states fit together.
# Each agent asks the ranks of its own node, and waits for the ranks of all nodes: the next action is usually `abort`,
# after which launchers end the ranks of the other nodes too.


RESCUE_CHECK_S: Final = 0.2
BEGIN_S: Final = 15.0
"""Seconds within which a rescue must begin on every node.

A rank checks for requests once a second, and the grace period of another node's agent may end some seconds later.
"""
MARGIN_S: Final = 3.0
"""Seconds that reports of other nodes' rescues may be late."""


def rescue_ranks(stall: StalledRun, timeout_s: float, ongoing: Callable[[], OngoingStall | None]) -> str:
    """Have the ranks of this node save their state; return a summary of the rescues on all nodes.

    Args:
        stall: The stall.
        timeout_s: Longest time that a rank may take.
        ongoing: Returns the latest state of the stall; None once it is over.
    """
    sent, world_size = _ask(stall)
    began = time.monotonic()
    stall_now, ending = ongoing(), ""
    if stall_now is None:
        return "skipped: the stall is over"
    while not ending and _is_rescue_pending(stall_now, world_size, time.monotonic() - began, timeout_s):
        time.sleep(RESCUE_CHECK_S)
        latest = ongoing()
        stall_now, ending = (latest, "") if latest is not None else (stall_now, "; the stall is over")
    return f"asked {sent} ranks: {describe_rescue(stall_now.rescues, world_size)}{ending}"


def _ask(stall: StalledRun) -> tuple[int, int]:
    """Request a rescue from each rank of this node; return the number of requests and the run's world size."""
    request = RescueRequest(stall.run, stall.trace_id, stall.verdict, stall.ranks, stall.text)
    sent, world_size = 0, 0
    for path in tapes_in(stall.directory):
        with contextlib.suppress(TapeError), contextlib.closing(TapeReader(path, os.geteuid())) as tape:
            if tape.identity.nonce in stall.nonces and tape.is_alive():
                request_rescue(path, request)
                sent, world_size = sent + 1, tape.identity.world_size
    return sent, world_size


def _is_rescue_pending(stall_now: OngoingStall, world_size: int, passed_s: float, timeout_s: float) -> bool:
    """Return whether a rank may still begin or finish its rescue. Reports on other nodes' ranks arrive late."""
    states = {stall_now.rescues.get(rank, NO_RESCUE).state for rank in range(world_size)}
    if RescueState.NONE in states and passed_s < BEGIN_S:
        return True
    return RescueState.RUNNING in states and passed_s < BEGIN_S + timeout_s + MARGIN_S


# --- abort ------------------------------------------------------------------------------------------------------------
# Ends the ranks of a stalled run on this node, so that their launcher restarts them from the checkpoint.
# A rank is asked first, because it can report the reason to its launcher. A rank that cannot answer (its GIL is held,
# or it is stopped) is killed. No torch function is called: aborting a process group can block for its whole timeout.


ANSWER_S: Final = 5.0
"""Seconds for a rank to end. It checks for requests once a second, and then runs its own cleanup."""
ABORT_CHECK_S: Final = 0.1


def abort_ranks(stall: StalledRun, is_ongoing: Callable[[], bool], answer_s: float = ANSWER_S) -> str:
    """Ask the ranks to end if the stall is ongoing, and kill them after `answer_s`; return the outcome as text."""
    tapes = [tape for path in tapes_in(stall.directory) if (tape := _open(path)) is not None]
    try:
        targets = [tape for tape in tapes if tape.identity.nonce in stall.nonces and tape.is_alive()]
        if not is_ongoing():
            return "skipped: the stall is over"
        for tape in targets:
            _request_end(tape.path, stall.text)
        for _ in range(round(answer_s / ABORT_CHECK_S)):  # not a deadline: all processes may be suspended meanwhile
            if not any(tape.is_alive() for tape in targets):
                break
            time.sleep(ABORT_CHECK_S)
        killed = [tape for tape in targets if tape.is_alive() and _kill(tape)]
        survivors = [tape for tape in targets if tape not in killed and tape.is_alive()]
        return _summary(targets, killed, survivors) + _missing(stall, tapes)
    finally:
        for tape in tapes:
            tape.close()


def _summary(targets: list[TapeReader], killed: list[TapeReader], survivors: list[TapeReader]) -> str:
    text = f"ended {len(targets) - len(survivors)} ranks"
    if killed:
        text += f"; rank {_listed(killed)} had to be killed"
    if survivors:
        text += (
            f"; rank {_listed(survivors)} did not end and the agent cannot kill it: its process cannot be identified "
            "(another PID namespace), or belongs to another user"
        )
    return text


def _missing(stall: StalledRun, tapes: list[TapeReader]) -> str:
    missing = len(stall.nonces - {tape.identity.nonce for tape in tapes})
    return f"; {missing} cannot be asked to end, because their files in {stall.directory} are gone" if missing else ""


def _listed(tapes: list[TapeReader]) -> str:
    return ", ".join(str(tape.identity.rank) for tape in tapes)


def _open(path: Path) -> TapeReader | None:
    try:
        return TapeReader(path, os.geteuid())
    except TapeError:
        return None


def _request_end(tape: Path, text: str) -> None:
    with open(create_anew(abort_path(tape)), "wb") as stream:
        stream.write(text.encode()[:MAX_BYTES])


def _kill(tape: MappedTape) -> bool:
    """Kill the writer of a tape, if its pid is verified; return whether it was killed.

    The pid on the tape is only a claim, which the kernel's record of the tape's lock holder must confirm.
    """
    identity = tape.identity
    if not shares_pids(identity) or identity.pid == os.getpid():
        return False
    try:
        target, _ = pidfd.open_thread(identity.pid, identity.pid)
    except OSError:
        return False
    try:
        # Checked after the pidfd was opened: if the pid is still the rank's, the pidfd is too.
        if tape.holder() != identity.pid or process_start_ticks(identity.pid) != identity.pid_start_ticks:
            return False
        if not can_signal(tape.owner, identity.pid):
            return False
        pidfd.send(target, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(target)
    return True
