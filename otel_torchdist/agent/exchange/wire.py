"""The messages between agents, in MessagePack: the state of ranks, and the rulings on them.

Agents of different versions understand each other as long as both have the same number `EXCHANGE` in `formats`. A new
field with a default needs no new number; every other change to these types and to the types within does.

Times are on the monotonic clock of the sender; the receiver converts them to its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from otel_torchdist.errors import TorchDistError
from otel_torchdist.judge.stall.events import Ruling
from otel_torchdist.model.calls import Channel, OperationId, OperationView
from otel_torchdist.model.names import GroupName
from otel_torchdist.model.rank_state.rescue import Rescue
from otel_torchdist.model.reports.incident import Incident
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.model.text import plain_rank


class WireError(TorchDistError):
    """A message from another agent cannot be decoded; the error message gives the reason."""


@dataclass(frozen=True, slots=True)
class WireRuling:
    """A `Ruling` without its run id, which the request's envelope contains."""

    name: str
    agent_id: int
    epoch: int
    operation_id: OperationId
    text: str
    attributes: dict[str, str | bool | int | float | list[str]]


@dataclass(frozen=True, slots=True)
class Question:
    """A question from the judging agent.

    Attributes:
        agent_id: Id of the asking agent.
        is_hurried: Whether it will ask again at once.
        ranks: The ranks of its node.
        ruling: Its ruling on the ongoing stall; None if there is none.
        stacks: Nonces of tapes whose ranks should write their stacks.
        signals: Nonces of tapes whose ranks have not written their stacks, and should be asked again with a signal.
        calls: Windows of calls to send in full, by channel and number.
        page: Address of its live page; '' for none.
        rescues: State of each rank's rescue; empty if none has begun.
        off_wall_ns: When recording was switched off on some node, in ns since the epoch; 0 if it was not.
    """

    agent_id: int
    is_hurried: bool = False
    ranks: tuple[int, ...] = ()
    ruling: WireRuling | None = None
    stacks: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    calls: tuple[tuple[Channel, int], ...] = ()
    page: str = ""
    rescues: dict[int, Rescue] = field(default_factory=dict[int, Rescue])
    off_wall_ns: int = 0


@dataclass(frozen=True, slots=True)
class WireOperation:
    """An operation in an answer.

    Attributes:
        view: The operation, without its group.
        group: Index into the groups of the answer; -1 if the group is unknown.
    """

    view: OperationView
    group: int


@dataclass(frozen=True, slots=True)
class WireRank:
    """A rank in an answer.

    Attributes:
        view: The rank, without its operations and the fields dropped by `codec.without_local_fields`.
        open: Its open operations.
        last: The operation that ended last.
    """

    view: RankView
    open: tuple[WireOperation, ...]
    last: WireOperation | None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: the snapshot of one agent.

    Attributes:
        agent_id: Id of the answering agent.
        now_ns: Its monotonic clock when it wrote the answer.
        suspects_stall: Whether a stall is near or ongoing.
        groups: The groups of the ranks' operations.
        ranks: The ranks of its node.
        age_ns: Age of the snapshot at `now_ns`. The agent answers on another thread than it reads tapes, so on a busy
            node the snapshot may be seconds old.
        version: Version of its package; '' if unknown.
        off_wall_ns: As in `Question`.
    """

    agent_id: int
    now_ns: int
    suspects_stall: bool
    groups: tuple[GroupName, ...] = ()
    ranks: tuple[WireRank, ...] = ()
    age_ns: int = 0
    version: str = ""
    off_wall_ns: int = 0


_T = TypeVar("_T")
_encoder: Final = msgspec.msgpack.Encoder(enc_hook=plain_rank)
_questions: Final = msgspec.msgpack.Decoder(Question)
_answers: Final = msgspec.msgpack.Decoder(Answer)


def wire_ruling(ruling: Ruling | None) -> WireRuling | None:
    """Convert a ruling to its wire form."""
    if ruling is None:
        return None
    incident = ruling.incident
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in ruling.attributes.items()}
    return WireRuling(incident.name, incident.agent_id, ruling.epoch, ruling.operation_id, ruling.text, plain)  # type: ignore


def ruling_from(wire: WireRuling | None, run: int) -> Ruling | None:
    """Convert a received ruling on a run."""
    if wire is None:
        return None
    return Ruling(
        Incident(run, wire.name, wire.agent_id), wire.epoch, wire.operation_id, wire.text, dict(wire.attributes)
    )


def encode(message: Question | Answer) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode_question(body: bytes) -> Question:
    """Decode a question.

    Raises:
        WireError: The body is not a question.
    """
    return _decode(_questions, body)


def decode_answer(body: bytes) -> Answer:
    """Decode an answer.

    Raises:
        WireError: The body is not an answer.
    """
    return _decode(_answers, body)


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(str(error)) from error
