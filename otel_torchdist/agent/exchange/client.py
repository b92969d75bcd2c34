"""Queries one other agent, within a deadline, and accepts only signed answers."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from otel_torchdist.agent.exchange.versions import OTHER_PROTOCOL, ProtocolRefusal, refusal_from
from otel_torchdist.errors import TorchDistError
from otel_torchdist.node.job.peers import Peer

MAX_ANSWER: Final = 8 << 20
OK: Final = 200
WRONG_INSTANCE: Final = 409
"""HTTP status: the request was addressed to an agent that is gone. The body names its successor."""
_PIECE: Final = 1 << 16


class NoAnswerError(TorchDistError):
    """An agent gave no valid answer; the message gives the reason."""


class OtherProtocolError(NoAnswerError):
    """An agent answers, but only in another version's protocol.

    Attributes:
        refusal: Its version, and its ranks.
    """

    def __init__(self, refusal: ProtocolRefusal) -> None:
        """Create the error for an agent's refusal."""
        super().__init__(f"it is of otel-torchdist {refusal.version} (exchange protocol {refusal.protocol})")
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class SignedAnswer:
    """A signed answer.

    Attributes:
        body: The answer, as bytes.
        sent_ns: Monotonic time at which the request left.
        received_ns: Monotonic time at which the answer was complete.
    """

    body: bytes
    sent_ns: int
    received_ns: int


class PeerClient:
    """A client of one other agent. It sends one request at a time, so that request numbers arrive in order."""

    def __init__(self, peer: Peer, run: int, token: bytes, own_instance: str) -> None:
        self.peer = peer
        self._run, self._token, self._own_instance = run, token, own_instance
        self._their_instance = ""
        self._number = 0
        self._lock = threading.Lock()

    def ask(self, path: str, body: bytes, timeout_s: float, most: int = MAX_ANSWER) -> SignedAnswer:
        """Send a request and return the answer; repeat it once if the agent has been restarted.

        Args:
            path: The path.
            body: The body.
            timeout_s: Deadline for both attempts together.
            most: Maximum bytes of the answer.

        Raises:
            OtherProtocolError: The agent is of another version.
            NoAnswerError: No signed answer came in time.
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise NoAnswerError("an earlier request has not been answered yet")
        try:
            status, answer = self._ask_once(path, body, deadline, most)
            if status == WRONG_INSTANCE:
                self._their_instance = answer.body.decode("ascii", "replace")
                status, answer = self._ask_once(path, body, deadline, most)
            refusal = refusal_from(answer.body) if status == OTHER_PROTOCOL else None
            if refusal is not None:
                raise OtherProtocolError(refusal)
            if status != OK:
                raise NoAnswerError(f"HTTP status {status}")
            return answer
        finally:
            self._lock.release()

    def _ask_once(self, path: str, body: bytes, deadline: float, most: int) -> tuple[int, SignedAnswer]:
        self._number += 1
        envelope = Envelope(self._run, self._own_instance, self._their_instance, self._number)
        sent_ns = time.monotonic_ns()
        try:
            with contextlib.closing(_Connection(self.peer, deadline)) as connection:
                connection.request("POST", path, body, envelope.headers(self._token, path, body))
                with connection.getresponse() as response:
                    answer = _read(response, most)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: not a valid host name
            raise NoAnswerError(str(error) or type(error).__name__) from error
        expected = envelope.sign_answer(self._token, response.status, answer)
        if not is_signed(response.headers.get(SIGNATURE_HEADER, ""), expected):
            raise NoAnswerError(
                f"the process that answers there (status {response.status}) does not have the run's token"
            )
        return response.status, SignedAnswer(answer, sent_ns, time.monotonic_ns())


class _Connection(http.client.HTTPConnection):
    """An HTTP connection with one deadline for connecting, sending and receiving."""

    def __init__(self, peer: Peer, deadline: float) -> None:
        super().__init__(peer.host, peer.port, timeout=_remaining_s(deadline))
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(_remaining_s(self._deadline))
        self.sock = _Socket(self.sock, self._deadline)


class _Socket(socket.socket):
    """A socket with a deadline: the timeout of a plain socket starts again at every read."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        timeout_s = connected.gettimeout()
        super().__init__(connected.family, connected.type, connected.proto, connected.detach())
        self.settimeout(timeout_s)
        self._deadline = deadline

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(_remaining_s(self._deadline))
        return super().recv_into(buffer, nbytes, flags)


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    """Read the body of an answer of at most `most` bytes."""
    pieces: list[bytes] = []
    size = 0
    while piece := response.read1(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise NoAnswerError(f"its answer is longer than {most} bytes")
    return b"".join(pieces)


def _remaining_s(deadline: float) -> float:
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise NoAnswerError("timed out")
    return remaining_s


# --- envelopes --------------------------------------------------------------------------------------------------------
# Sender, receiver and signature of a message: HMAC-SHA256 with the run's token, over the whole message.
# A request names the instance of the receiving agent and a number that only grows, so that it cannot be replayed:
# neither to the same agent nor, after a restart, to its successor. Clocks are not compared.


RUN_HEADER: Final = "X-Torchdist-Run"
FROM_HEADER: Final = "X-Torchdist-From"
TO_HEADER: Final = "X-Torchdist-To"
NUMBER_HEADER: Final = "X-Torchdist-Number"
SIGNATURE_HEADER: Final = "X-Torchdist-Signature"

MAX_SENDERS: Final = 4_096
"""Senders to remember: many more than a run has agents. Only clients with the token are counted."""
_MAX_NUMBER: Final = 1 << 63


def new_instance() -> str:
    """Return a random name for an agent process, valid until the process ends."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The signed metadata of a request.

    Attributes:
        run: 128-bit id.
        sender: Instance name of the agent that asks.
        receiver: Instance name of the agent that is asked; '' if unknown.
        number: Greater than in every earlier request between these two instances.
    """

    run: int
    sender: str
    receiver: str
    number: int

    def headers(self, token: bytes, path: str, body: bytes) -> dict[str, str]:
        """Return the headers of the request."""
        return {
            RUN_HEADER: f"{self.run:032x}",
            FROM_HEADER: self.sender,
            TO_HEADER: self.receiver,
            NUMBER_HEADER: str(self.number),
            SIGNATURE_HEADER: self.sign_request(token, path, body),
        }

    def sign_request(self, token: bytes, path: str, body: bytes) -> str:
        """Return the signature of the request, over its path, this envelope and `body`."""
        return _sign(token, "request", path, *self._signed_fields(), body=body)

    def sign_answer(self, token: bytes, status: int, body: bytes) -> str:
        """Return the signature of the answer, over its status, this envelope and `body`."""
        return _sign(token, "answer", str(status), *self._signed_fields(), body=body)

    def _signed_fields(self) -> tuple[str, ...]:
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
    """Compare two signatures in constant time."""
    return hmac.compare_digest(signature.encode(), expected.encode())


class ReplayGuard:
    """The last request number of every sender. A request without a greater number is a replay."""

    def __init__(self, most: int = MAX_SENDERS) -> None:
        """Remember the last `most` senders."""
        self._most = most
        self._last: OrderedDict[tuple[int, str], int] = OrderedDict()

    def is_new(self, envelope: Envelope) -> bool:
        """Return whether a request is not a replay, and remember its number."""
        key = envelope.run, envelope.sender
        if envelope.number <= self._last.get(key, 0):
            return False
        self._last[key] = envelope.number
        self._last.move_to_end(key)
        while len(self._last) > self._most:
            self._last.popitem(last=False)
        return True


def _sign(token: bytes, *fields: str, body: bytes) -> str:
    message = "\n".join(fields).encode() + b"\n" + hashlib.sha256(body).digest()
    return hmac.new(token, message, hashlib.sha256).hexdigest()
