"""A job with a fault in it: real ranks on gloo, their agent, and a receiver for what the agent reports."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from otel_torchdist.node.job.peers import peers_files, read_peers
from otel_torchdist.telemetry import semconv
from tests.support.commands.running import is_agent, processes_of
from tests.support.launch.nodes import INTERFACE, NAMESPACE_VARIABLE, Nodes
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver, ReceivedSpan
from tests.support.tapes.directories import memory_directory
from tests.support.waiting import lag_s, until

WORKER = Path(__file__).parent / "workers" / "faulty.py"
THRESHOLD_S = 2.0
STARTUP_S = 60.0
TALKED_S = 2.0
"""How long agents that know each other need until they have asked and answered."""

_numbers = itertools.count(1)


class FaultyJob:
    """Ranks that run the worker script.

    Attributes:
        folder: For files that the ranks need.
        base: Base directory of their tapes.
        receiver: Where spans go.
        done: The ranks, once all have ended.
    """

    def __init__(
        self,
        python: WarmPython,
        folder: Path,
        base: Path,
        receiver: OtlpReceiver,
        arguments: Sequence[str],
        *,
        worker: Path = WORKER,
        ranks: int = 3,
        environ: Mapping[str, str] | None = None,
        of_rank: Mapping[int, Mapping[str, str]] | None = None,
        nodes: Nodes | None = None,
        timeout_s: float = 110,
    ) -> None:
        """Start the ranks.

        Args:
            python: From which they are forked.
            folder: For files that the ranks need.
            base: Base directory of their tapes.
            receiver: Where spans go.
            arguments: The fault, and perhaps `healthy`.
            worker: The script.
            ranks: Number of ranks.
            environ: Additions to the environment of all ranks.
            of_rank: Additions to the environment of single ranks.
            nodes: Where the ranks run, the same number on each node.
            timeout_s: After which they are killed.
        """
        self.folder, self.base, self.receiver = folder, base, receiver
        self.done: list[Done] = []
        self._number = next(_numbers)
        self._gate, self._pids, self._unwatched = folder / "gate", folder / "pids", folder / "unwatched"
        self._gate.touch()
        self._unwatched.touch()
        self._pids.mkdir()
        common = {
            **QUIET,
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(20_000 + self._number),  # names the job; the store is a file
            "STORE": f"file://{folder}/store",
            "UNWATCHED": str(self._unwatched),
            "WORLD_SIZE": str(ranks),
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": receiver.protocol,
            "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
            "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
            "OTEL_METRICS_EXPORTER": "prometheus",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
            "OTEL_PYTHON_TORCHDIST_READER": "agent",
            "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(int(THRESHOLD_S * 1000)),
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base),
        }
        own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        if nodes is not None:
            base.mkdir(mode=0o700, exist_ok=True)  # each node's own base directory is created in it
            own = [one | self._on_node(nodes, rank, ranks) for rank, one in enumerate(own)]
        added = [{**(environ or {}), **(of_rank or {}).get(rank, {})} for rank in range(ranks)]
        environs = [{**common, **one, **more} for one, more in zip(own, added, strict=True)]
        self._agents = 1 if nodes is None else len(nodes.names)
        argv = [arguments[0], str(self._gate), str(self._pids), *arguments[1:]]
        self._thread = threading.Thread(
            target=lambda: self.done.extend(python.run(worker, environs, folder, argv, timeout_s=timeout_s))
        )
        self._thread.start()
        self._noting = threading.Thread(target=self._note_agents, daemon=True)
        self._noting.start()

    def _note_agents(self) -> None:
        """Let the ranks go on to the fault once their agents read, and those of several nodes know each other.

        On a busy machine that is seconds later.
        """
        with contextlib.suppress(AssertionError):
            until(lambda: len(list(self.base.glob("**/agent.checkpoint"))) == self._agents, STARTUP_S)
            if self._agents > 1:
                until(self.agents_have_met, STARTUP_S)
                time.sleep(TALKED_S)
        self._unwatched.unlink(missing_ok=True)

    def agents_have_met(self) -> bool:
        """Whether the agent of each node knows the addresses of all others."""
        files = [path for folder in self.base.glob("node-*/job-*") for path, _ in peers_files(folder).values()]
        return [len(read_peers(path).others) for path in files] == [self._agents - 1] * self._agents

    def _on_node(self, nodes: Nodes, rank: int, ranks: int) -> dict[str, str]:
        here = ranks // len(nodes.names)
        node = rank // here
        return {
            NAMESPACE_VARIABLE: nodes.path(node),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "LOCAL_RANK": str(rank % here),
            "LOCAL_WORLD_SIZE": str(here),
            "MASTER_ADDR": nodes.addresses[0],
            "STORE": f"tcp://{nodes.addresses[0]}:{29_500 + self._number}",  # hosted by rank 0
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(self.base / f"node-{node}"),
        }

    def wait_until_watched(self) -> None:
        """Wait until the agents read the tapes."""
        self._noting.join()

    def first_verdict(self) -> tuple[ReceivedSpan, float]:
        """The first root of an incident, and how many seconds after the beginning of the stall it arrived."""
        found = until(self.roots, STARTUP_S, "no verdict")
        return found[0], time.time() - found[0].start_ns / 1e9

    def roots(self) -> list[ReceivedSpan]:
        """The roots of incidents that have arrived."""
        return [span for span in self.receiver.spans() if span.name.startswith("stall: ")]

    def marked(self) -> tuple[int, ...]:
        """The ranks for which an in-progress operation has been exported."""
        spans = [span for span in self.receiver.spans() if span.name.endswith("(in progress)")]
        return tuple(sorted({int(span.attributes[semconv.RANK]) for span in spans}))

    def findings(self) -> list[ReceivedSpan]:
        """The findings that are not stalls."""
        return [span for span in self.receiver.spans() if span.name.startswith("finding: ")]

    def bar(self, root: ReceivedSpan, rank: int) -> ReceivedSpan:
        """A rank's bar under a root."""

        def bars() -> list[ReceivedSpan]:
            spans = [span for span in self.receiver.spans() if span.parent_id == root.span_id]
            return [span for span in spans if span.attributes.get(semconv.RANK) == rank]

        until(bars)
        return bars()[0]

    def agents(self) -> list[int]:
        """Process ids of the job's agents."""
        return [pid for pid in processes_of(self.base) if is_agent(pid)]

    def lag_s(self) -> float:
        """How long its agents were kept from a core: some start only when a fault has happened."""
        return lag_s(self.agents())

    def open_gate(self) -> None:
        """Release the ranks that are late."""
        self._gate.unlink(missing_ok=True)

    def join(self) -> list[Done]:
        """Wait until all ranks have ended by themselves."""
        self._thread.join()
        return self.done

    def kill_ranks(self) -> None:
        """Kill the ranks; their agents live on."""
        files = [path for path in self._pids.iterdir() if path.is_file()]  # a pipe there would block who reads it
        for path in files:
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)

    def kill(self) -> None:
        """Kill ranks and agents."""
        self.kill_ranks()
        for pid in self.agents():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._thread.join()


@contextlib.contextmanager
def faulty_job(python: WarmPython, *arguments: str, nodes: Nodes | None = None, **others: Any) -> Iterator[FaultyJob]:
    """Run a job with a receiver and directories of its own; nothing of it is left after the block."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        base = stack.enter_context(memory_directory())
        receiver = stack.enter_context(OtlpReceiver(GRPC, host=nodes.outside if nodes is not None else "127.0.0.1"))
        job = FaultyJob(python, folder, base / "tapes", receiver, arguments, nodes=nodes, **others)
        stack.callback(job.kill)
        yield job
