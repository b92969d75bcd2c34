"""The data read from a tape: plain frozen dataclasses, all times in nanoseconds of the writer's monotonic clock."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Final

import msgspec

from otel_torchdist.tape.layout import Flag, How, Kernel, Phase, RecordKind, RunIdState, TapeState, pack_label
from otel_torchdist.tape.numerics import Numerics
from otel_torchdist.tape.rescue import NO_RESCUE, Rescue
from otel_torchdist.tape.splits import Splits
from otel_torchdist.tape.timeouts import AtTimeout

# Operators of IntFlag run in Python and are several times slower than those of int.
_END_UNSEEN: Final = int(Flag.END_BY_WAIT | Flag.COALESCED)
_ON_DEVICE: Final = int(Flag.ON_DEVICE)
_EXACT: Final = (How.CALL, How.WAIT, How.CALLBACK, How.EVENT)
_COARSE: Final = (How.POLL, How.WATCHDOG)

ROOT_UNIT: Final = "root"
"""What the unit of the outermost module, which has no name, is called."""
BESIDE: Final = -2
"""See `GroupName.epoch`."""


@dataclass(frozen=True, slots=True)
class TapeIdentity:
    """Identity of a tape's writer, stored once when the tape is created.

    Attributes:
        nonce: 64 random bits that no other tape has.
        pid: The writer's process id inside its own PID namespace.
        pid_start_ticks: The process's start time as in `/proc/<pid>/stat`, which a recycled pid does not share.
        pid_namespace: Inode of the writer's PID namespace.
        boot_id: 128 bits of the kernel's boot id: pids and monotonic times of another boot mean nothing.
        rank: Global rank.
        local_rank: Rank on this node (0 when the launcher does not state it).
        world_size: Ranks of the default group.
        capacity: Records in the ring.
        monotonic_ns: Monotonic clock at creation.
        realtime_ns: Wall clock at the same moment.
        host: Host name.
        parent: Nonce of the tape of the rank that started this process as its helper; 0 for none.
        kernel: What records its calls.
        torch: Version of its torch; '' if the tape does not say.
        synchronized: Whether it waits for devices before and after collectives.
        checks_values: Whether it checks that all inputs of operations are finite.
    """

    nonce: int
    pid: int
    pid_start_ticks: int
    pid_namespace: int
    boot_id: int
    rank: int
    local_rank: int
    world_size: int
    capacity: int
    monotonic_ns: int
    realtime_ns: int
    host: str
    parent: int = 0
    kernel: Kernel = Kernel.UNKNOWN
    torch: str = ""
    synchronized: bool = False
    checks_values: bool = False


@dataclass(frozen=True, slots=True)
class TapeStatus:
    """The live words of a tape, read at one moment.

    Attributes:
        run_id: 128 bits; 0 until known.
        run_id_state: How far ranks have agreed on it.
        step: Number of the current step.
        heartbeat_ns: When our thread in the writer last woke, to the microsecond; it cannot while native code holds
            the GIL.
        monotonic_ns: Monotonic half of the newest clock pair, which is taken at the heartbeat.
        realtime_ns: Wall-clock half of that pair.
        records_dropped: Records that the writer could not write.
        names_dropped: Names that became `other` because the dictionary is full.
        overhead_ns: Estimated time spent in our own code on the caller's threads.
        overhead_calls: Calls behind that estimate.
        state: The writer's own state.
        failure: Name id of the exception that ended the process (0 when there is none).
        request: Number of the last request for stacks.
        answer: Number of the last request that was answered.
        expects_until_ns: Until when the rank expects to wait, or others to wait for it; 0 for no such wait.
        exported_by_rank: Whether its own process exports the tape (`OTEL_PYTHON_TORCHDIST_READER=thread`).
        rescue: How far its rescue has come.
        asked_signal: The signal that has asked the process to end; 0 for none that was recorded.
        asked_ns: When it came.
        rpc_worker: Name id of the process's name as a worker of RPC; 0 if it is none.
        rpc_threads: How many of its threads serve the calls of other workers.
    """

    run_id: int
    run_id_state: RunIdState
    step: int
    heartbeat_ns: int
    monotonic_ns: int
    realtime_ns: int
    records_dropped: int
    names_dropped: int
    overhead_ns: int
    overhead_calls: int
    state: TapeState
    failure: int
    request: int
    answer: int
    expects_until_ns: int = 0
    exported_by_rank: bool = False
    rescue: Rescue = NO_RESCUE
    asked_signal: int = 0
    asked_ns: int = 0
    rpc_worker: int = 0
    rpc_threads: int = 0


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One collective, point-to-point operation or rendezvous of one rank.

    A reader makes two for each record; as a frozen dataclass of 24 fields each would take 4 µs, as this 0.1 µs.

    Attributes:
        number: The record's number on this tape.
        kind: `OPERATION` or `RENDEZVOUS`.
        entered_ns: When the call was entered.
        step: The rank's step at that time.
        sequence: Position among the collectives of its group; for point-to-point among those with the same
            source, destination and tag. Counted from 1.
        message_bytes: Bytes that this rank contributes.
        group: Name id of the process group.
        signature: Name id of operation, tensors and reduce op.
        call_site: Name id of the first frame outside torch (0 when there is none).
        label: Name id of the label (0 when there is none): a `LabelName`, or the text given with `record_comm`.
        peer: Global rank of the peer or root; -1 when there is none.
        tag: Tag of a point-to-point operation.
        thread: Native id of the calling thread.
        flags: See `Flag`.
        returned_ns: When the call returned, if it is asynchronous, point-to-point, coalesced or runs on a device;
            None while the thread is inside.
        wait_entered_ns: When the first wait began.
        wait_returned_ns: When a wait returned.
        started_ns: When the device started it, as precisely as `started_how` allows; None until then.
        started_how: How the start is known; UNTRACKED where the device is not queried.
        completed_ns: When the operation ended, as precisely as `how` allows; None while it is open.
        how: How the end is known.
        failure: Name id of the exception that it raised (0 when there is none).
        phase: Whether a backward pass made the call.
        splits: How an `all_to_all` is split; None if it is even, or if it is `UNEVEN` and this is not known.
        numerics: The values in its tensors, if they were looked at.
        piece: Which of its label's pieces (microbatches, buckets) it is for, from 1; 0 for none.
    """

    number: int
    kind: RecordKind
    entered_ns: int
    step: int
    sequence: int
    message_bytes: int
    group: int
    signature: int
    call_site: int
    label: int
    peer: int
    tag: int
    thread: int
    flags: Flag
    returned_ns: int | None = None
    wait_entered_ns: int | None = None
    wait_returned_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    how: How | None = None
    failure: int = 0
    started_how: How | None = None
    phase: Phase = Phase.UNKNOWN
    splits: Splits | None = None
    numerics: Numerics | None = None
    piece: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the operation has not ended yet."""
        return self.completed_ns is None

    @property
    def label_word(self) -> int:
        """Label and piece in one word, as on the tape."""
        return pack_label(self.label, self.piece)

    @property
    def is_queued(self) -> bool:
        """Whether the operation is enqueued on a device that has not reached it yet."""
        return self.completed_ns is None and self.started_ns is None and bool(int(self.flags) & _ON_DEVICE)

    @property
    def arrived_ns(self) -> int:
        """When this rank arrived at the operation: when it was entered, or when the device started it."""
        return self.entered_ns if self.started_ns is None else self.started_ns

    @property
    def is_timed(self) -> bool:
        """Whether it has ended, and begin and end are known well enough for a duration, from `arrived_ns` on."""
        return self.how in _EXACT and self.started_how not in _COARSE

    @property
    def in_flight_since_ns(self) -> int | None:
        """Since when an operation that has ended was in flight; None if that is not known."""
        flags = int(self.flags)
        if flags & _ON_DEVICE:
            return self.started_ns
        if flags & _END_UNSEEN and self.returned_ns is not None:
            return self.wait_entered_ns
        return self.entered_ns

    @property
    def waiting_since_ns(self) -> int | None:
        """Since when the operation's being open is evidence of waiting; None when it is not evidence.

        Some operations show their end only in a wait, so before a wait nothing is known; a receive posted long ago is
        not late because a wait for it begins now. Coalesced operations may be submitted much later. An operation
        queued on a device waits for that device's earlier work: however old, it shows nothing about other ranks.
        """
        if self.completed_ns is not None:
            return None
        flags = int(self.flags)
        if flags & _ON_DEVICE:
            return self.started_ns
        if self.returned_ns is None or not flags & _END_UNSEEN:
            return self.entered_ns
        return self.wait_entered_ns if self.is_blocking else None

    @property
    def is_blocking(self) -> bool:
        """Whether a thread is inside the call or inside a wait for it, as far as the record shows.

        A synchronous collective is one wait from call to end, with no times recorded in between.
        """
        if self.completed_ns is not None:
            return False
        if self.returned_ns is None:
            return True
        return self.wait_entered_ns is not None and self.wait_returned_ns is None


@dataclass(frozen=True, slots=True)
class StepMark:
    """The end of a step of one rank.

    Attributes:
        number: The record's number on this tape.
        ended_ns: When it ended.
        step: The step that ended.
        sequence: Collectives that the rank had issued in the default group by then, on all of its backends.
        skipped: Whether a gradient scaler has left out the optimizer's step, because of an overflow.
        scale: The scale of the gradient scaler that was used last, as float32; None if it is not known.
    """

    number: int
    ended_ns: int
    step: int
    sequence: int
    skipped: bool = False
    scale: float | None = None


@dataclass(frozen=True, slots=True)
class GroupName:
    """A process group as its members see it.

    Attributes:
        name: torch's name; a label that may repeat or differ between members.
        description: What the group is for (`mesh_dp`, `default_pg`), or ''.
        ranks: Global ranks of the members, ascending.
        nth: How many groups with these members this rank had created before, from 0.
        backend: Name of the backend.
        aligned: False when the group was already in use when first seen: its sequence numbers are not comparable
            across ranks.
        epoch: Number of this membership of a live group, as its members agreed when they formed it; -1 for a group
            whose members do not change, `BESIDE` for operations outside a group's collectives, counted separately.
        device: Device type, if the group has a backend of its own for each type; else ''.
        timeout_ms: The timeout of its operations in milliseconds; 0 if it is not known. After a change they refer
            to another entry.
        at_timeout: What its backend does then.
        dimensions: Names of the dimensions of device meshes that this group is for.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    nth: int
    backend: str
    aligned: bool
    epoch: int = -1
    device: str = ""
    timeout_ms: int = 0
    at_timeout: AtTimeout = AtTimeout.UNKNOWN
    dimensions: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Eight hex digits that are the same on all members: from ranks, `nth`, epoch and device, never the name."""
        text = f"{self.nth}:{','.join(map(str, self.ranks))}"
        if self.epoch != -1:
            text += f":{self.epoch}"
        if self.device:  # operations are counted per backend
            text += f":{self.device}"
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


class LabelKind(enum.Enum):
    """Which library for parallel training a call is from."""

    FSDP = "fsdp"
    DDP = "ddp"
    PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True)
class LabelName:
    """What a call of a library for parallel training is for, in the words in which users know their job.

    Attributes:
        kind: The library.
        unit: The name of an FSDP unit's module; '' for the root, and for other kinds.
        stage: The stage of a pipeline; -1 for other kinds.
        direction: `fwd` or `bwd` for a pipeline; '' for other kinds.
    """

    kind: LabelKind
    unit: str = ""
    stage: int = -1
    direction: str = ""

    def text(self, piece: int = 0) -> str:
        """The label in a sentence: `FSDP layers.3`, `DDP bucket 0`, `pipeline stage 1, fwd, microbatch 2`.

        Args:
            piece: Which bucket or microbatch, from 1; 0 for none. Those are shown from 0 on, as torch counts them.
        """
        match self.kind:
            case LabelKind.FSDP:
                return f"FSDP {self.unit or ROOT_UNIT}"
            case LabelKind.DDP:
                return f"DDP bucket {piece - 1}" if piece else "DDP"
            case LabelKind.PIPELINE:
                which = f", microbatch {piece - 1}" if piece else ""
                return f"pipeline stage {self.stage}, {self.direction}{which}"


@dataclass(frozen=True, slots=True)
class CallPathName:
    """What led to the calls of one call site.

    Attributes:
        call_site: Name id of the call site, the innermost frame.
        frames: Name ids of the frames behind it, innermost first: lines of the program, and texts that stand for the
            frames of libraries between them.
        varies: Whether calls from there have also taken other paths.
    """

    call_site: int
    frames: tuple[int, ...]
    varies: bool = False


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """The names of parameters that are compared between replicas.

    Attributes:
        names: By their place, for as many as there is room for.
    """

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SignatureName:
    """What is the same in every rank's call of one collective.

    Attributes:
        operation: `all_reduce`, `send`, …
        reduce_op: `sum`, `avg`, …; '' where there is none.
        shapes: One tuple per tensor, for at most eight tensors.
        dtypes: One per tensor, or a single one when all agree.
        device: Device type.
        tensors: Number of tensors, including those not described.
    """

    operation: str
    reduce_op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    device: str
    tensors: int


@dataclass(frozen=True, slots=True)
class CallSiteName:
    """The first frame outside torch that led to a call."""

    function: str
    file: str
    line: int
