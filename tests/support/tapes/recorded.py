"""Tapes in a form that tests can compare: with every name in place of its id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.names import GroupName, SignatureName
from otel_torchdist.model.operations import EndAccuracy, Operation, StepMark, accuracy_of
from otel_torchdist.tape.identity import TapeIdentity
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus

NO_GROUP = GroupName("", "", (), 0, "", False)
NO_SIGNATURE = SignatureName("", "", (), (), "", 0)


@dataclass(frozen=True)
class Recorded:
    """An operation with its names."""

    raw: Operation
    group: GroupName
    signature: SignatureName
    function: str
    line: int
    label: str
    failure: str

    @property
    def name(self) -> str:
        """As users know it, such as `all_reduce`."""
        return self.signature.operation

    @property
    def is_async(self) -> bool:
        """Whether the call returned before the operation ended."""
        return Flag.ASYNC in self.raw.flags

    @property
    def has_ended(self) -> bool:
        """Whether its end is known and not a failure; on a busy machine a poll may come before the wait."""
        return self.raw.how is not None and accuracy_of(self.raw.how) not in (EndAccuracy.ASSUMED, EndAccuracy.RAISED)

    @property
    def how(self) -> str:
        """How its end is known; `open` if it is not."""
        return self.raw.how.name if self.raw.how else "open"


@dataclass(frozen=True)
class RecordedTape:
    """A whole tape.

    Attributes:
        operations: All operations except the creation of groups, in the order of their entry.
        rendezvous: The creation of groups.
        activities: All activities, with the texts that tell them apart.
    """

    path: Path
    identity: TapeIdentity
    status: TapeStatus
    operations: list[Recorded]
    rendezvous: list[Recorded]
    steps: list[StepMark]
    activities: list[tuple[Activity, str]]
    lost: int
    failure: str

    def named(self, name: str) -> list[Recorded]:
        """The operations of one name."""
        return [operation for operation in self.operations if operation.name == name]

    def only(self, name: str) -> Recorded:
        """The only operation of its name."""
        [operation] = self.named(name)
        return operation


def read_tape(tape: TapeReader) -> RecordedTape:
    """Read everything that is on a tape now."""
    batch = tape.poll()
    known = {operation.number: operation for operation in [*batch.entered, *tape.open_operations(), *batch.ended]}
    everything = [_named(tape, known[number]) for number in sorted(known)]
    activities = {one.number: one for one in [*tape.open_activities(), *batch.activities_ended]}
    status = tape.status()
    return RecordedTape(
        path=tape.path,
        identity=tape.identity,
        status=status,
        operations=[operation for operation in everything if operation.raw.kind is RecordKind.OPERATION],
        rendezvous=[operation for operation in everything if operation.raw.kind is RecordKind.RENDEZVOUS],
        steps=batch.steps,
        activities=[(one, tape.names.text(one.detail) or "") for _, one in sorted(activities.items())],
        lost=batch.lost,
        failure=tape.names.text(status.failure) or "",
    )


def read_tapes(directory: Path) -> list[RecordedTape]:
    """Every tape below a directory, by rank and then in the order in which they were begun."""
    tapes = []
    for path in directory.rglob("*.tape"):
        tape = TapeReader(path)
        tapes.append(read_tape(tape))
        tape.close()
    return sorted(tapes, key=lambda tape: (tape.identity.rank, tape.identity.monotonic_ns))


def _named(tape: TapeReader, operation: Operation) -> Recorded:
    names = tape.names
    site = names.call_site(operation.call_site)
    return Recorded(
        raw=operation,
        group=names.group(operation.group) or NO_GROUP,
        signature=names.signature(operation.signature) or NO_SIGNATURE,
        function=site.function if site else "",
        line=site.line if site else 0,
        label=names.label(operation.label, operation.piece) or "",
        failure=names.text(operation.failure) or "",
    )
