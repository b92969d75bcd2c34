"""Records whose every field follows from one number, so that a mix of two records is detected."""

from otel_torchdist.model.kinds import Flag, How, Phase, RecordKind
from otel_torchdist.tape.records.operations import Operation, StepMark
from tests.support.tapes.tapes import BEGIN_FIELDS

_LOW_32 = 2**32 - 1


def returned_after(seed: int) -> int:
    """How long after its entry the call returned."""
    return seed * 1_000 + 1


def ended_after(seed: int) -> int:
    """How long after its entry the operation ended."""
    return seed * 1_000 + 2


def fields_of(seed: int) -> tuple[int, ...]:
    """Arguments of `begin`; the sequence is the seed itself."""
    mixed = seed * 0x9E3779B97F4A7C15
    low = mixed & _LOW_32
    names = low, low ^ _LOW_32, low >> 1, seed & _LOW_32
    kind = RecordKind.OPERATION if seed % 3 else RecordKind.RENDEZVOUS
    peer, tag, thread = -(low >> 1), low >> 2, low ^ 0x5555_5555
    return mixed % 2**60, seed * 3, seed, mixed % 2**62, *names, peer, tag, thread, kind, seed % 32, seed % len(Phase)


def step_of(seed: int) -> tuple[int, int, int]:
    """Arguments of `step_ended`; the sequence is the seed."""
    return seed, seed * 3, seed * 0x9E3779B97F4A7C15 % 2**62


def is_whole(operation: Operation) -> bool:
    """Whether all fields of an operation belong together."""
    seed, entered = operation.sequence, operation.entered_ns
    return (
        tuple(getattr(operation, name) for name in BEGIN_FIELDS) == fields_of(seed)
        and isinstance(operation.flags, Flag)
        and operation.returned_ns in (None, entered + returned_after(seed))
        and operation.completed_ns in (None, entered + ended_after(seed))
        and operation.how in ((None,) if operation.completed_ns is None else (How.WAIT, How.POLL))
        and operation.wait_entered_ns is operation.wait_returned_ns is operation.started_ns is None
        and operation.failure == 0
    )


def is_whole_step(step: StepMark) -> bool:
    """Whether all fields of a step belong together."""
    return (step.step, step.ended_ns, step.sequence) == step_of(step.step)
