"""Finds the agents of a job's other nodes through files that a rank of this node writes, and answers them on a port."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from otel_torchdist import guard
from otel_torchdist.agent.exchange.client import (
    FROM_HEADER,
    NUMBER_HEADER,
    OK,
    RUN_HEADER,
    SIGNATURE_HEADER,
    TO_HEADER,
    WRONG_INSTANCE,
    Envelope,
    ReplayGuard,
    envelope_from,
    is_signed,
    new_instance,
)
from otel_torchdist.agent.exchange.pace import PACE, ExchangePace
from otel_torchdist.agent.exchange.run_exchange import RunExchange
from otel_torchdist.agent.exchange.steps import AnswerSteps, no_steps
from otel_torchdist.agent.exchange.versions import OTHER_PROTOCOL, protocol_of
from otel_torchdist.agent.exchange.wire import WireError
from otel_torchdist.formats import EXCHANGE
from otel_torchdist.judge.stall.events import Leads, Role, Ruling, StacksOverdue, StacksWanted
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.node.job.peers import PORT_FILE, ListeningAgent, Peers, peers_files, read_listening, read_peers
from otel_torchdist.show.serving.http_server import HttpServer
from otel_torchdist.system.files.owned import remove, replace_at_once

SEARCH_S: Final = 0.5
UNSEEN_S: Final = 120.0
"""Seconds without a live rank after which a run is over."""

_logger = logging.getLogger("otel_torchdist")


class PeerExchanges:
    """The exchange with the agents of other nodes, for all runs of this agent; implements `PeerAgents`."""

    def __init__(
        self,
        steps: AnswerSteps = no_steps,
        pace: ExchangePace = PACE,
        search_s: float = SEARCH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without runs.

        Args:
            steps: See `RunExchange`.
            pace: See `RunExchange`.
            search_s: Minimum seconds between searches.
            clock: Returns the monotonic time in seconds.
        """
        self._pace = pace
        self._search_s = search_s
        self._now = clock
        self._steps = steps
        self._page = ""
        instance = new_instance()
        self._instance = instance
        self._app = ExchangeApp(instance)
        self._servers: dict[str, HttpServer] = {}
        self._mtimes_ns: dict[Path, int] = {}
        self._runs: dict[int, RunExchange] = {}
        self._runs_of: dict[Path, set[int]] = {}
        self._seen_at: dict[int, float] = {}
        self._searched_at = float("-inf")

    def search(self, directories: list[Path]) -> None:
        """Read the peer lists that ranks have written into their job directories, at most every `search_s` seconds."""
        now = self._now()
        if now - self._searched_at < self._search_s:
            return
        self._searched_at = now
        for directory in directories:
            for path, changed_ns in peers_files(directory).values():
                if self._mtimes_ns.get(path) != changed_ns:
                    self._mtimes_ns[path] = changed_ns
                    self._read_peers(path)
        for run in [run for run, seen_at in self._seen_at.items() if now - seen_at > UNSEEN_S]:
            self._leave(run)

    def _read_peers(self, path: Path) -> None:
        try:
            peers = read_peers(path)
            self._listen(path.parent, peers)
        except (OSError, ValueError, OverflowError) as error:
            _logger.warning("%s: no data is exchanged with agents of other nodes: %s", path, error)
            return
        exchange = self._runs.get(peers.run)
        if exchange is not None:
            exchange.renew(peers)
            return
        self._start(peers)

    def _start(self, peers: Peers) -> None:
        run = self._runs[peers.run] = RunExchange(peers, self._instance, self._page, self._steps, self._pace)
        self._app.add(peers.run, run)
        self._seen_at[peers.run] = self._now()

    def announce_page(self, address: str) -> None:
        """Publish the address of this agent's live page to the other agents; '' for none."""
        self._page = address
        for run in self._runs.values():
            run.page = address

    def _listen(self, directory: Path, peers: Peers) -> None:
        """Listen on the run's address, if possible on the previous agent's port, and publish the port."""
        host, previous = peers.own_host, read_listening(directory)
        if host not in self._servers:
            previous_ports = [previous.port] if previous is not None and previous.host == host else []
            self._servers[host] = HttpServer(host, [*previous_ports, 0], "exchange")
            self._servers[host].serve(self._app)
        runs = self._runs_of.setdefault(directory, set())
        runs.add(peers.run)
        listening = ListeningAgent(host, self._servers[host].port, frozenset(runs))
        if listening != previous:
            replace_at_once(directory / PORT_FILE, directory / f".{PORT_FILE}.new", listening.to_json().encode())

    def _leave(self, run: int) -> RunExchange:
        self._app.drop(run)
        del self._seen_at[run]
        exchange = self._runs.pop(run)
        exchange.stop()
        return exchange

    def stop(self) -> None:
        """Stop the exchange with all agents."""
        for directory in self._runs_of:  # another process may get the port after us
            with contextlib.suppress(OSError):
                remove(directory / PORT_FILE)
        for server in self._servers.values():
            server.stop()
        for exchange in [self._leave(run) for run in list(self._runs)]:
            exchange.join()

    def ask_for_steps(self, run: int, question: bytes, timeout_s: float) -> list[tuple[bytes, int]]:
        """See `RunExchange`; callable from any thread."""
        exchange = self._runs.get(run)
        return exchange.ask_for_steps(question, timeout_s) if exchange is not None else []

    # --- PeerAgents --------------------------------------------------------------------------------------------------

    def meet(self, world: WorldSnapshot, suspects_stall: bool) -> Role:
        """See `PeerAgents`. This agent judges every run that has no peers."""
        run = self._runs.get(world.run)
        if run is None:
            return Leads(world, min(world.ranks))  # a different id on each node
        self._seen_at[world.run] = self._now()
        return run.meet(world, suspects_stall)

    def publish(self, run: int, ruling: Ruling | None) -> None:
        """See `PeerAgents`."""
        if run in self._runs:
            self._runs[run].publish(ruling)

    def want_calls(self, run: int, windows: frozenset[tuple[Channel, int]]) -> None:
        """See `PeerAgents`."""
        if run in self._runs:
            self._runs[run].want_calls(windows)

    def request_stacks(self, wanted: StacksWanted | StacksOverdue) -> None:
        """See `PeerAgents`."""
        for run in self._runs.values():
            run.request_stacks(wanted)

    def requested_stacks(self) -> list[StacksWanted | StacksOverdue]:
        """See `PeerAgents`."""
        return [wanted for run in self._runs.values() for wanted in run.requested_stacks()]


# --- answers ----------------------------------------------------------------------------------------------------------
# Answers the requests of other agents. A client without the run's token learns nothing about the run.


MAX_QUESTION: Final = 1 << 20
_HEADERS: Final = (RUN_HEADER, FROM_HEADER, TO_HEADER, NUMBER_HEADER, SIGNATURE_HEADER)
_REASONS: Final = {
    OK: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    WRONG_INSTANCE: "Conflict",
    OTHER_PROTOCOL: "Upgrade Required",
    411: "Length Required",
    413: "Content Too Large",
    500: "Internal Server Error",
}


class Respondent(Protocol):
    """The part of an exchange that answers questions about one run."""

    @property
    def token(self) -> bytes:
        """Secret of the run, with which requests and answers are signed."""
        ...

    def respond(self, path: str, body: bytes) -> bytes | None:
        """Return the answer; None if there is no such path.

        Raises:
            WireError: The body is not a valid question.
        """
        ...

    def refuse(self) -> bytes:
        """Return the answer to a question in another protocol."""
        ...


class ExchangeApp:
    """A WSGI application for `POST /v1/…`."""

    def __init__(self, instance: str) -> None:
        """Start without runs; answer only requests addressed to this agent's `instance`."""
        self._instance = instance
        self._runs: dict[int, Respondent] = {}
        self._replays = ReplayGuard()
        self._lock = threading.Lock()

    def add(self, run: int, respondent: Respondent) -> None:
        """Answer for another run."""
        self._runs[run] = respondent

    def drop(self, run: int) -> None:
        """Stop answering for a run."""
        self._runs.pop(run, None)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        """Answer one request."""
        status, body, signature = 500, b"", ""
        with guard.guarded("an answer to another agent"):
            status, body, signature = self._answer(environ)
        headers = [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))]
        if signature:
            headers.append((SIGNATURE_HEADER, signature))
        start_response(f"{status} {_REASONS[status]}", headers)
        return [body]

    def _answer(self, environ: dict[str, Any]) -> tuple[int, bytes, str]:
        if environ["REQUEST_METHOD"] != "POST":
            return 404, b"", ""
        length = environ.get("CONTENT_LENGTH") or ""
        if not length.isdecimal():
            return 411, b"", ""
        if len(length) > len(str(MAX_QUESTION)) or int(length) > MAX_QUESTION:
            return 413, b"", ""
        headers = {name: environ.get("HTTP_" + name.upper().replace("-", "_"), "") for name in _HEADERS}
        envelope = envelope_from(headers)
        respondent = self._runs.get(envelope.run) if envelope is not None else None
        if envelope is None or respondent is None:
            return 403, b"", ""
        path, body = environ["PATH_INFO"], environ["wsgi.input"].read(int(length))
        if not is_signed(headers[SIGNATURE_HEADER], envelope.sign_request(respondent.token, path, body)):
            return 403, b"", ""
        status, answer = self._answer_signed(respondent, envelope, path, body)
        return status, answer, envelope.sign_answer(respondent.token, status, answer)

    def _answer_signed(self, respondent: Respondent, envelope: Envelope, path: str, body: bytes) -> tuple[int, bytes]:
        if envelope.receiver != self._instance:
            return WRONG_INSTANCE, self._instance.encode()
        with self._lock:
            is_new = self._replays.is_new(envelope)
        if not is_new:
            return 403, b""
        if protocol_of(path) != EXCHANGE.number:
            return OTHER_PROTOCOL, respondent.refuse()
        try:
            answer = respondent.respond(path, body)
        except WireError as error:
            _logger.debug("another agent has sent an invalid request: %s", error)
            return 400, b""
        return (404, b"") if answer is None else (OK, answer)
