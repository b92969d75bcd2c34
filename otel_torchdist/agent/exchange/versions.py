"""The refusal that an agent sends to an agent of another version, with which it cannot exchange anything else.

The number of the protocol is in the path of a question: `/v1/state`. An agent that is asked in another protocol answers
with status 426 and a `ProtocolRefusal`. The envelope, the signatures, this status and this body are the same in all
protocols, so that agents of any two versions can tell each other apart from strangers and from silence.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from otel_torchdist.formats import EXCHANGE
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.peers import MAX_AGENT_ID
from otel_torchdist.package import package_version

OTHER_PROTOCOL: Final = 426
"""HTTP status: the question is in another protocol. The body is a `ProtocolRefusal`."""
MAX_VERSION: Final = 64
_PATH: Final = re.compile(r"/v([0-9]{1,9})/")
_Rank = Annotated[int, Meta(ge=0, le=MAX_AGENT_ID)]


class ProtocolRefusal(msgspec.Struct, frozen=True):
    """The answer to a question in another protocol.

    Attributes:
        protocol: Protocol of the answering agent.
        version: Version of its package.
        ranks: The known ranks of its node.
    """

    protocol: Annotated[int, Meta(ge=1, le=1 << 30)]
    version: str = ""
    ranks: Annotated[tuple[_Rank, ...], Meta(max_length=1 << 16)] = ()


def protocol_of(path: str) -> int | None:
    """Return the protocol of a question, from its path; None if the path has none."""
    match = _PATH.match(path)
    return int(match[1]) if match else None


def refuse_protocol(ranks: tuple[int, ...]) -> bytes:
    """Encode this agent's refusal."""
    return msgspec.json.encode(ProtocolRefusal(EXCHANGE.number, package_version(), ranks))


def refusal_from(body: bytes) -> ProtocolRefusal | None:
    """Decode the refusal of another agent; None if it is damaged."""
    try:
        refusal = msgspec.json.decode(body, type=ProtocolRefusal)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return msgspec.structs.replace(refusal, version=readable(refusal.version, MAX_VERSION) or "unknown")
