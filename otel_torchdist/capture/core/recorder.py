"""The recording state of one rank in one run: its tape, step, names and counters."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import MutableSequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from otel_torchdist.capture.core.call_paths import CallPaths
from otel_torchdist.capture.core.call_sites import Callers, CallSites
from otel_torchdist.capture.core.message_counters import ListMemory, MessageCounters
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_TAPE_RECORDS
from otel_torchdist.model.kinds import Kernel, TapeState
from otel_torchdist.model.names import MAX_NAMES, SPARE_OF_LABELS, LabelName, RaisedName
from otel_torchdist.node.job.ancestry import parent_tape
from otel_torchdist.node.job.directory import SPACE_DIVISOR
from otel_torchdist.node.job.room import TapeLimits, ranks_of_node, tape_limits
from otel_torchdist.node.job.worlds import WorldsFile
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter

if TYPE_CHECKING:
    from otel_torchdist.native.library import Library
    from otel_torchdist.native.recording import NativeRecording

_logger = logging.getLogger("otel_torchdist")
_LOCAL_RANK_VARIABLES: Final = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
MAX_COUNTED: Final = 4096
"""Maximum number of counted sets of members, if a program creates standalone process groups again and again."""
_warned_of: Final[set[Path]] = set()
"""Base directories that this process has reported as too small, including earlier runs."""


class Recorder:
    """Recording state with the lifetime of one default process group.

    Attributes:
        step: Number of the current step.
        native: The native library's recording of this run; None if the library is not in use.
        message_counters: Counters of point-to-point operations.
        worlds: The file that lists the worlds of standalone process groups.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        world_size: int,
        capacity: int,
        library: Library | None = None,
        synchronized: bool = False,
        checks_values: bool = False,
        world: str = "",
    ) -> None:
        """Create the tape.

        Args:
            directory: The run's directory.
            rank: This rank.
            world_size: Number of ranks.
            capacity: Number of records in the ring buffer.
            library: The native library, if it records calls.
            synchronized: Whether devices are synchronized around collectives.
            checks_values: Whether all inputs of operations are checked for finiteness.
            world: As in `TapeIdentity`.

        Raises:
            TapeError: There is not enough space, or the directory is not usable.
        """
        limits = tape_limits(directory, capacity, ranks_of_node(os.environ, world_size))
        kernel = Kernel.PYTHON if library is None else Kernel.NATIVE
        identity = identify(
            rank,
            local_rank(),
            world_size,
            limits.records,
            parent_tape(directory),
            kernel,
            str(torch.__version__),
            synchronized,
            checks_values,
            world,
        )
        self.native: NativeRecording | None = None
        if library is None:
            self.tape = TapeWriter(directory, identity, limits.names_bytes)
        else:
            from otel_torchdist.native.recording import NativeRecording, NativeTapeWriter

            self.tape = tape = NativeTapeWriter(library, directory, identity, limits.names_bytes)
            self.native = NativeRecording(tape)
        if limits.records < capacity:
            _warn_of_room(directory.parent, capacity, limits)
        self.call_sites = CallSites(self.tape.names, self.native)
        self.call_paths = CallPaths(self.tape.names, self.call_sites)
        self.callers = Callers(self.tape.names)
        self.step = 0
        self._has_warned_of_scarcity = self._has_warned_of_loss = False
        self._labels: dict[str | LabelName, int] = {}
        self.message_counters = MessageCounters(ListMemory() if self.native is None else self.native.counter_memory())
        self._group_counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self.worlds = WorldsFile(self.tape.path)

    def begin(self, window: int) -> None:
        """Start recording in the native library, if it is in use; see `NativeRecording.begin`."""
        if self.native is not None:
            self.native.begin(window)

    def stop(self) -> None:
        """Stop recording new calls in the native library. It still records ends of operations."""
        if self.native is not None:
            self.native.end()

    def beat(self) -> None:
        """Write the heartbeat. Called once a second."""
        self.tape.beat()
        self.tape.keep_files()
        self._warn_of_names()

    def new_counter(self) -> MutableSequence[int]:
        """Return a sequence of one number, which the native library can write, too."""
        return [0] if self.native is None else self.native.new_counter()

    def intern_label(self, name: str | LabelName) -> int:
        """Intern a label of a parallelism library or of `record_comm`. Return its name id."""
        name_id = self._labels.get(name)
        if name_id is not None:
            return name_id
        if len(self._labels) > 4096:
            self._labels.clear()
        self._labels[name] = name_id = self.tape.names.intern(name, SPARE_OF_LABELS)
        return name_id

    def count_group(self, ranks: tuple[int, ...], world: str = "") -> int:
        """Count a group with these members of a world. Return the number of earlier groups with these members."""
        if world and (world, ranks) not in self._group_counts and len(self._group_counts) >= MAX_COUNTED:
            oldest = next((key for key in self._group_counts if key[0]), None)
            self._group_counts.pop(oldest or (world, ranks), None)
        nth = self._group_counts[world, ranks]
        self._group_counts[world, ranks] += 1
        return nth

    def groups_before(self, ranks: tuple[int, ...], world: str = "") -> int:
        """Return the number of counted groups with these members of a world."""
        return self._group_counts[world, ranks]

    def forget_group(self, ranks: tuple[int, ...], nth: int) -> None:
        """Reset the count to `nth`, because a group of the default world was not created after all."""
        self._group_counts["", ranks] = nth

    def belongs_to(self, rank: int, world_size: int) -> bool:
        """Return whether the tape belongs to this rank of a default group of this size."""
        identity = self.tape.identity
        return (identity.rank, identity.world_size) == (rank, world_size)

    def end_step(self, now_ns: int, sequence: int, skipped: bool = False, scale: float | None = None) -> None:
        """End the current step.

        Args:
            now_ns: The current time.
            sequence: Number of collectives issued by the default group so far.
            skipped: Whether a gradient scaler has skipped the optimizer's step.
            scale: The loss scale of the last gradient scaler; None if unknown.
        """
        self.tape.step_ended(self.step, now_ns, sequence, skipped, scale)
        self.step += 1

    def _warn_of_names(self) -> None:
        """Warn once if the name dictionary is nearly full or lost, and state the consequences."""
        if self.tape.names.is_lost and not self._has_warned_of_loss:
            self._has_warned_of_loss = True
            _logger.warning(
                "the program has closed the file of names of rank %d, and %s cannot be reopened: new groups, call "
                "sites and shapes are shown as `other`",
                self.tape.identity.rank, self.tape.path.with_suffix(".names"),
            )  # fmt: skip
        if self.tape.names.is_scarce and not self._has_warned_of_scarcity:
            self._has_warned_of_scarcity = True
            _logger.warning(
                "rank %d has used nearly all of the %d names or %d KiB that a tape can hold (groups, call sites, "
                "operations with their shapes): from now on new shapes are not recorded, and names that do not fit are "
                "shown as `other`",
                self.tape.identity.rank, MAX_NAMES, self.tape.names.max_bytes >> 10,
            )  # fmt: skip

    def fail(self, failure: str) -> None:
        """Record that this process is about to end, and why."""
        self.tape.finish(TapeState.FAILED, self.tape.names.intern(failure))

    def close(self, state: TapeState, failure: RaisedName | None = None) -> None:
        """Record how the process or its group ended, and close the tape."""
        failure_name = self.tape.names.intern(failure) if failure else 0
        self.tape.finish(state, failure_name)
        self.tape.close()


def _warn_of_room(base: Path, wanted: int, limits: TapeLimits) -> None:
    """Warn once per node that tapes are smaller than configured."""
    if local_rank() or base in _warned_of:
        return
    _warned_of.add(base)
    _logger.warning(
        "%s=%d is too much for %s, a file system of %d MB: the tapes of all running ranks may take 1/%d of it, so "
        "that room remains for the program. Using %d records; a larger /dev/shm (docker run --shm-size) allows more",
        OTEL_PYTHON_TORCHDIST_TAPE_RECORDS, wanted, base, limits.filesystem_bytes >> 20, SPACE_DIVISOR, limits.records,
    )  # fmt: skip


def local_rank() -> int:
    """Return this process's rank on its node according to the launcher, else 0."""
    for name in _LOCAL_RANK_VARIABLES:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return 0
