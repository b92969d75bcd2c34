"""The kinds of verdicts, and what is decided by a kind alone. A new one is a row here, a judge and a sentence."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.symptoms import SymptomSource


class VerdictKind(enum.Enum):
    """What holds an operation up, strongest evidence first; the value is that of the span attribute."""

    SHARED_GROUP = "shared_group"
    """Two threads of a rank call collectives of one group, in an order that differs between ranks by chance."""
    MISMATCHED = "mismatched"
    """The ranks have made different calls at the same position of a group."""
    DEAD = "dead"
    """Their processes are gone."""
    FROZEN = "frozen"
    """The kernel does not let them run."""
    CIRCULAR = "circular"
    """They wait for each other."""
    UNMATCHED = "unmatched"
    """The other side of a send or receive does not arrive: it waits elsewhere, or has ended."""
    ABSENT = "absent"
    """They are alive and elsewhere."""
    RENDEZVOUS = "rendezvous"
    """They do not join the creation of a group."""
    DEVICE = "device"
    """Their devices have not reached it."""
    STUCK = "stuck"
    """They have not come out of it, and others have: their devices, or the connections to them, are stuck or broken."""
    TRANSPORT = "transport"
    """All ranks have entered, and it does not end."""
    UNREACHABLE = "unreachable"
    """The agent of their node does not answer, which is all that is known about them."""
    UNKNOWN = "unknown"

    @property
    def traits(self) -> VerdictTraits:
        """What is decided by the kind alone."""
        return _TRAITS[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictTraits:
    """What is decided by the kind of a verdict alone.

    Attributes:
        is_final: Whether waiting longer cannot help, so that neither a threshold nor an excuse counts.
        is_of_calls: Whether the calls that were made are at fault, so that it explains how ranks ended in them.
        names_the_missing: Whether the ranks that it names live, and are elsewhere than the operation that waits.
        names_others: Whether the ranks that wait are others than those that it names, at a line worth naming.
        is_of_transfer: Whether all members have entered the operation, and its transfer does not come to an end.
        is_inside_backend: Whether NCCL's own record may say more about it.
        may_only_be_late: Whether the operation may still complete, so that a longer timeout can be the cure.
        needs_no_silence: Whether it rests on what ranks have written, and not also on ranks that wrote nothing.
        stays_away: Whether the ranks that it names do not come to the operation, nor to another one that belongs to
            the picture.
        not_by_a_script: Why no script can show it; '' if one can.
        symptoms: The sources of symptoms that can explain it. Throttled clocks slow a rank down but never stop it.
    """

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
                is_final=True,
                is_of_calls=True,
                needs_no_silence=True,
                not_by_a_script="in which order two threads come is a matter of chance",
            )
        case VerdictKind.MISMATCHED:
            return VerdictTraits(is_final=True, is_of_calls=True, needs_no_silence=True)
        case VerdictKind.DEAD:
            return VerdictTraits(
                is_final=True, names_others=True, stays_away=True, symptoms=(SymptomSource.GPU, SymptomSource.MEMORY)
            )
        case VerdictKind.FROZEN:
            return VerdictTraits(
                names_the_missing=True,
                names_others=True,
                stays_away=True,
                symptoms=(SymptomSource.GPU, SymptomSource.MEMORY, SymptomSource.STORAGE),
            )
        case VerdictKind.CIRCULAR:
            return VerdictTraits()
        case VerdictKind.UNMATCHED:
            return VerdictTraits(names_the_missing=True, names_others=True)
        case VerdictKind.ABSENT:
            return VerdictTraits(
                names_the_missing=True,
                names_others=True,
                may_only_be_late=True,
                needs_no_silence=True,
                stays_away=True,
                symptoms=(SymptomSource.GPU, SymptomSource.MEMORY, SymptomSource.STORAGE),
            )
        case VerdictKind.RENDEZVOUS:
            return VerdictTraits(
                names_the_missing=True,
                may_only_be_late=True,
                stays_away=True,
                symptoms=(SymptomSource.GPU, SymptomSource.MEMORY, SymptomSource.STORAGE),
            )
        case VerdictKind.DEVICE:
            return VerdictTraits(
                names_the_missing=True,
                is_inside_backend=True,
                may_only_be_late=True,
                not_by_a_script="a device did not reach the operation, which gloo on a CPU cannot show",
                symptoms=(SymptomSource.GPU,),
            )
        case VerdictKind.STUCK:
            return VerdictTraits(
                is_of_transfer=True,
                is_inside_backend=True,
                not_by_a_script="a device or a connection did not finish the operation, which no call can cause",
                symptoms=(SymptomSource.GPU, SymptomSource.LINK),
            )
        case VerdictKind.TRANSPORT:
            return VerdictTraits(
                is_of_transfer=True,
                is_inside_backend=True,
                not_by_a_script="all ranks have made the same calls, so the cause is below torch.distributed",
                symptoms=(SymptomSource.GPU, SymptomSource.LINK),
            )
        case VerdictKind.UNREACHABLE:
            return VerdictTraits(
                names_others=True,
                not_by_a_script="what the ranks on a node that does not answer were doing is not known",
            )
        case VerdictKind.UNKNOWN:
            return VerdictTraits(
                is_inside_backend=True,
                may_only_be_late=True,
                not_by_a_script="the records do not show which rank held the others up",
            )


_TRAITS: Final = {kind: _traits(kind) for kind in VerdictKind}
