"""An agent that echoes what it is asked, and questions sent to it by hand."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterable
from typing import Any

from otel_torchdist.agent.exchange.client import Envelope, PeerClient, new_instance
from otel_torchdist.agent.exchange.peers import ExchangeApp
from otel_torchdist.agent.exchange.versions import refuse_protocol
from otel_torchdist.agent.exchange.wire import decode_question
from otel_torchdist.show.serving.http_server import App
from tests.agent.exchange.listening import HOST, peer_at

RUN = 0xFEED
TOKEN = b"t" * 32
OTHER_TOKEN = b"o" * 32
SECRET = b"which rank is where"
PATH = "/v1/echo"
PARSED = "/v1/parsed"


class Echo:
    """Answers with the question, and with something that only agents of the run may see."""

    token = TOKEN

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def respond(self, path: str, body: bytes) -> bytes | None:
        """Return the secret on one path; on another one require a question."""
        self.received.append(body)
        if path == PARSED:
            decode_question(body)
        return SECRET + body if path in (PATH, PARSED) else None

    def refuse(self) -> bytes:
        """Refuse a question in another protocol."""
        return refuse_protocol((4, 5))


class Agent:
    """An agent that listens."""

    def __init__(self, echo: Echo, instance: str, port: int) -> None:
        self.echo, self.instance, self.port = echo, instance, port

    def client(self, token: bytes = TOKEN, run: int = RUN) -> PeerClient:
        """Another agent's client to it."""
        return PeerClient(peer_at(self.port), run, token, new_instance())

    def post(self, headers: dict[str, str], body: bytes = b"", path: str = PATH) -> http.client.HTTPResponse:
        """Send it a question by hand."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.body = response.read()  # type: ignore[attr-defined]
        connection.close()
        return response

    def say(self, request: bytes) -> bytes:
        """Send bytes, and read until the connection is closed."""
        with socket.create_connection((HOST, self.port), timeout=10) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))


class Current:
    """Whichever agent is alive behind a port; starting and stopping a server takes a while."""

    app: App

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        """Answer as that agent does."""
        return self.app(environ, start_response)


def begin_instance(behind: Current, port: int) -> Agent:
    """Replace the agent by another one."""
    instance, echo = new_instance(), Echo()
    app = ExchangeApp(instance)
    app.add(RUN, echo)
    behind.app = app
    return Agent(echo, instance, port)


def headers_for(
    agent: Agent, body: bytes = b"", token: bytes = TOKEN, run: int = RUN, sender: str = "s" * 16, number: int = 1
) -> dict[str, str]:
    """Headers as sent by an agent of the run."""
    envelope = Envelope(run, sender, agent.instance, number)
    return envelope.headers(token, PATH, body)


def request_bytes(headers: dict[str, str], body: bytes) -> bytes:
    """A request in its wire format."""
    clients = [f"POST {PATH} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(body)}"]
    clients += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*clients, "", ""]).encode() + body
