"""The kinds of verdicts and their traits. A new kind needs a row here, a judge and a sentence."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.rank_state.symptoms import SymptomSource


class VerdictKind(enum.Enum):
    """The causes of a stalled operation, strongest evidence first. The value is the span attribute."""

    SHARED_GROUP = "shared_group"
    """Two threads of a rank call collectives of one group, in an order that differs between ranks by chance."""
    MISMATCHED = "mismatched"
    """The ranks made different calls at the same position of a group."""
    DEAD = "dead"
    """The named ranks' processes are gone."""
    FROZEN = "frozen"
    """The kernel does not let the named ranks run."""
    CIRCULAR = "circular"
    """The named ranks wait for each other."""
    UNMATCHED = "unmatched"
    """The other side of a send or receive does not arrive: it waits elsewhere, or has ended."""
    ABSENT = "absent"
    """The named ranks are alive and elsewhere."""
    RENDEZVOUS = "rendezvous"
    """The named ranks do not join the creation of a group."""
    DEVICE = "device"
    """The named ranks' devices have not reached the operation."""
    STUCK = "stuck"
    """The named ranks have not left the operation, and others have: a device or connection is stuck or broken."""
    TRANSPORT = "transport"
    """All ranks have entered the operation, and it does not end."""
    UNREACHABLE = "unreachable"
    """The agent of the named ranks' node does not answer. Nothing else is known about them."""
    UNKNOWN = "unknown"

    @property
    def traits(self) -> VerdictTraits:
        """The traits of the kind."""
        return _TRAITS[self]


class MachineBlame(enum.Enum):
    """What it takes to blame a machine for a verdict of a kind."""

    NEVER = "never"
    """The program, or a cause that the records do not show, is at fault."""
    SHOWN = "shown"
    """Evidence of the machine itself, such as an Xid."""
    COUNTED = "counted"
    """Such evidence. Without it, the verdict counts as an incident of the named rank's machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictTraits:
    """The traits that all verdicts of one kind share.

    Attributes:
        machine: What it takes to blame the machine, so that it may be drained. Required, so that a new kind decides it.
        next_step: The step to take, for people. `{ranks}` stands for the named ranks, `{rank}` and `{place}` for the
            first of them and its line. `wording/next_steps.py` has more specific steps for some evidence.
        is_final: Whether waiting longer cannot help. Thresholds and expected waits are then ignored.
        is_of_calls: Whether the calls themselves are at fault, so that the verdict explains failures in them.
        names_the_missing: Whether the named ranks are alive and outside of the stalled operation.
        names_others: Whether the waiting ranks differ from the named ranks, so that their line is worth naming.
        is_of_transfer: Whether all members have entered the operation and its transfer does not end.
        is_inside_backend: Whether NCCL's flight recorder may show more.
        may_only_be_late: Whether the operation may still complete, so that a longer timeout may help.
        needs_no_silence: Whether the verdict rests only on records that exist, not on missing records.
        stays_away: Whether the named ranks reach neither the operation nor a related one.
        not_by_a_script: Why no script can reproduce it; '' if a script can.
        symptoms: Sources of symptoms that can explain the verdict. Throttled clocks slow a rank but never stop it.
    """

    machine: MachineBlame
    next_step: str
    is_final: bool = False
    is_of_calls: bool = False
    names_the_missing: bool = False
    names_others: bool = False
    is_of_transfer: bool = False
    is_inside_backend: bool = False
    may_only_be_late: bool = False
    needs_no_silence: bool = False
    stays_away: bool = False
    not_by_a_script: str = ""
    symptoms: tuple[SymptomSource, ...] = ()


def _traits(kind: VerdictKind) -> VerdictTraits:
    match kind:
        case VerdictKind.SHARED_GROUP:
            return VerdictTraits(
                machine=MachineBlame.NEVER,
                next_step=(
                    "give one of the two threads a group of its own (new_group), or make all calls of the "
                    "group from one thread"
                ),
                is_final=True,
                is_of_calls=True,
                needs_no_silence=True,
                not_by_a_script="the order in which two threads arrive is a matter of chance",
            )
        case VerdictKind.MISMATCHED:
            return VerdictTraits(
                machine=MachineBlame.NEVER,
                next_step=(
                    "compare these calls, and the branches that lead to them: all ranks must make the same "
                    "calls of a group, in the same order"
                ),
                is_final=True,
                is_of_calls=True,
                needs_no_silence=True,
            )
        case VerdictKind.DEAD:
            return VerdictTraits(
                machine=MachineBlame.COUNTED,
                next_step=(
                    "find what ended {ranks}: see the log, `dmesg` on that node, and the scheduler's record of the job"
                ),
                is_final=True,
                names_others=True,
                stays_away=True,
                symptoms=(SymptomSource.GPU, SymptomSource.MEMORY),
            )
        case VerdictKind.FROZEN:
            return VerdictTraits(
                machine=MachineBlame.COUNTED,
                next_step=(
                    "find what keeps the kernel from running {ranks}: "
                    "`ps -o pid,stat,wchan -p PID` shows the state of a process"
                ),
                names_the_missing=True,
                names_others=True,
                stays_away=True,
                symptoms=(SymptomSource.GPU, SymptomSource.MEMORY, SymptomSource.STORAGE),
            )
        case VerdictKind.CIRCULAR:
            return VerdictTraits(
                machine=MachineBlame.NEVER,
                next_step="make these ranks call the operations at these lines in the same order",
            )
        case VerdictKind.UNMATCHED:
            return VerdictTraits(
                machine=MachineBlame.NEVER,
                next_step="make send and recv agree in peer, tag, group and order, beginning with {place}",
                names_the_missing=True,
                names_others=True,
            )
        case VerdictKind.ABSENT:
            return VerdictTraits(
                machine=MachineBlame.NEVER,
                next_step=(
                    "find out why {ranks} did not go on from {place}; while the job runs, "
                    "`otel-torchdist profile --rank {rank}` or py-spy shows what its threads do"
                ),
                names_the_missing=True,
                names_others=True,
                may_only_be_late=True,
                needs_no_silence=True,
                stays_away=True,
                symptoms=(SymptomSource.GPU, SymptomSource.MEMORY, SymptomSource.STORAGE),
            )
        case VerdictKind.RENDEZVOUS:
            return VerdictTraits(
                machine=MachineBlame.NEVER,
                next_step=(
                    "have {ranks} create that group too, after {place}: every rank must call new_group for every group"
                ),
                names_the_missing=True,
                may_only_be_late=True,
                stays_away=True,
                symptoms=(SymptomSource.GPU, SymptomSource.MEMORY, SymptomSource.STORAGE),
            )
        case VerdictKind.DEVICE:
            return VerdictTraits(
                machine=MachineBlame.COUNTED,
                next_step=(
                    "find the kernel that the GPU of {ranks} does not finish, among the work enqueued before "
                    "{place}: rerun with CUDA_LAUNCH_BLOCKING=1"
                ),
                names_the_missing=True,
                is_inside_backend=True,
                may_only_be_late=True,
                not_by_a_script="a device did not reach the operation, which gloo on a CPU cannot show",
                symptoms=(SymptomSource.GPU,),
            )
        case VerdictKind.STUCK:
            return VerdictTraits(
                machine=MachineBlame.COUNTED,
                next_step=(
                    "check the GPU and the network of {ranks} (`dmesg`, `nvidia-smi -q`, link counters), and "
                    "restart without that node"
                ),
                is_of_transfer=True,
                is_inside_backend=True,
                not_by_a_script="a device or a connection did not finish the operation, which no call can cause",
                symptoms=(SymptomSource.GPU, SymptomSource.LINK),
            )
        case VerdictKind.TRANSPORT:
            return VerdictTraits(
                machine=MachineBlame.SHOWN,
                next_step="check the network between the ranks; with NCCL, rerun with NCCL_DEBUG=INFO and read its log",
                is_of_transfer=True,
                is_inside_backend=True,
                not_by_a_script="all ranks have made the same calls, so the cause is below torch.distributed",
                symptoms=(SymptomSource.GPU, SymptomSource.LINK),
            )
        case VerdictKind.UNREACHABLE:
            return VerdictTraits(
                machine=MachineBlame.NEVER,
                next_step=(
                    "check that the node of {ranks} is up, that an agent runs there, and that its port can be reached"
                ),
                names_others=True,
                not_by_a_script="nothing is known about the ranks on a node that does not answer",
            )
        case VerdictKind.UNKNOWN:
            return VerdictTraits(
                machine=MachineBlame.NEVER,
                next_step="compare the stacks of all ranks in `otel-torchdist diagnose`",
                is_inside_backend=True,
                may_only_be_late=True,
                not_by_a_script="the records do not show which rank held the others up",
            )


_TRAITS: Final = {kind: _traits(kind) for kind in VerdictKind}
