"""Sender, receiver and proof of a message: HMAC-SHA256 with the run's token over the whole message.

A request names the instance of the agent that it is meant for and a number that only grows, so that it cannot be
replayed, neither to the same agent nor, after a restart, to its successor. Clocks are not compared.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

RUN_HEADER: Final = "X-Torchdist-Run"
FROM_HEADER: Final = "X-Torchdist-From"
TO_HEADER: Final = "X-Torchdist-To"
NUMBER_HEADER: Final = "X-Torchdist-Number"
SIGNATURE_HEADER: Final = "X-Torchdist-Signature"

MAX_SENDERS: Final = 4_096
"""Many more than there are agents in a run; only clients that know the token are counted."""
_MAX_NUMBER: Final = 1 << 63


def new_instance() -> str:
    """A new name for an agent process, valid from its start to its end."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The signed metadata of a request.

    Attributes:
        run: 128-bit id.
        sender: Life of the agent that asks.
        receiver: Life of the agent that is asked; '' while it is not known.
        number: Greater than that of every earlier request between these two.
    """

    run: int
    sender: str
    receiver: str
    number: int

    def headers(self, token: bytes, path: str, body: bytes) -> dict[str, str]:
        """The headers of the request."""
        return {
            RUN_HEADER: f"{self.run:032x}",
            FROM_HEADER: self.sender,
            TO_HEADER: self.receiver,
            NUMBER_HEADER: str(self.number),
            SIGNATURE_HEADER: self.sign_request(token, path, body),
        }

    def sign_request(self, token: bytes, path: str, body: bytes) -> str:
        """The signature of the request with this body."""
        return _sign(token, "request", path, *self._texts(), body=body)

    def sign_answer(self, token: bytes, status: int, body: bytes) -> str:
        """The signature of the answer with this body."""
        return _sign(token, "answer", str(status), *self._texts(), body=body)

    def _texts(self) -> tuple[str, ...]:
        return f"{self.run:032x}", self.sender, self.receiver, str(self.number)


def envelope_from(headers: Mapping[str, str]) -> Envelope | None:
    """Parse the headers of a request; None if any is missing or invalid."""
    try:
        run = int(headers[RUN_HEADER], 16)
        number = int(headers[NUMBER_HEADER])
        sender, receiver = headers[FROM_HEADER], headers[TO_HEADER]
    except (KeyError, ValueError):
        return None
    if not (0 <= run < 1 << 128 and 0 < number < _MAX_NUMBER and len(sender) == 16 and len(receiver) in (0, 16)):
        return None
    return Envelope(run, sender, receiver, number)


def is_signed(signature: str, expected: str) -> bool:
    """Whether two signatures are equal, compared in constant time."""
    return hmac.compare_digest(signature.encode(), expected.encode())


class Numbers:
    """The last number of every sender: a request whose number is not greater is a replay."""

    def __init__(self, most: int = MAX_SENDERS) -> None:
        """Remember the `most` senders that asked last."""
        self._most = most
        self._last: OrderedDict[tuple[int, str], int] = OrderedDict()

    def is_new(self, envelope: Envelope) -> bool:
        """Whether this request has not been seen before; remembers it."""
        key = envelope.run, envelope.sender
        if envelope.number <= self._last.get(key, 0):
            return False
        self._last[key] = envelope.number
        self._last.move_to_end(key)
        while len(self._last) > self._most:
            self._last.popitem(last=False)
        return True


def _sign(token: bytes, *texts: str, body: bytes) -> str:
    message = "\n".join(texts).encode() + b"\n" + hashlib.sha256(body).digest()
    return hmac.new(token, message, hashlib.sha256).hexdigest()
