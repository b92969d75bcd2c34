"""A real torchrun on each of two nodes: what is reported about a job after its ranks have been restarted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from otel_torchdist.telemetry import semconv
from tests.support.commands.running import is_agent, kill_processes_of, processes_of
from tests.support.launch.nodes import INTERFACE, NAMESPACE_VARIABLE, Nodes, nodes, why_not
from tests.support.launch.quiet import QUIET
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver, ReceivedSpan
from tests.support.tapes.directories import memory_directory
from tests.support.waiting import lag_s, until

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
WORKER = Path(__file__).parent / "workers" / "stalls_when_restarted.py"
THRESHOLD_S = 5.0
STARTUP_S = 60.0


@contextlib.contextmanager
def launched(
    python: WarmPython,
    two: Nodes,
    receiver: OtlpReceiver,
    base: Path,
    *arguments: str,
    worker: Path = WORKER,
    settings: Mapping[str, str] = MappingProxyType({}),
    ranks: int = 2,
) -> Iterator[list[Torchrun]]:
    """A torchrun on each node; nothing of it is left after the block."""
    options = ("--nnodes=2", f"--nproc-per-node={ranks}", "--max-restarts=1", "--rdzv-backend=c10d")
    environ = {
        **QUIET,
        "GLOO_SOCKET_IFNAME": INTERFACE,
        # Else the second attempt finds addresses of the first in torchrun's store, and gloo hangs, with or without us.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": receiver.protocol,
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
        "OTEL_PYTHON_TORCHDIST_READER": "agent",
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(int(THRESHOLD_S * 1000)),
        **settings,
    }
    launchers: list[Torchrun] = []
    for node, (name, address) in enumerate(zip(two.names, two.addresses, strict=True)):
        rendezvous = f"--rdzv-endpoint={two.addresses[0]}:29400", f"--rdzv-conf=is_host={int(node == 0)}"
        command = [*options, *rendezvous, f"--local-addr={address}", worker, *arguments]
        place = {NAMESPACE_VARIABLE: two.path(node), "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base / name)}
        launchers.append(Torchrun(python, base / f"{name}.output", command, environ | place))
    try:
        yield launchers
    finally:
        kill_processes_of(base)
        for launcher in launchers:
            launcher.end()


def stalls(receiver: OtlpReceiver) -> list[ReceivedSpan]:
    """The roots of incidents that have arrived, except for the death that ends the first attempt."""
    roots = [span for span in receiver.spans() if span.name.startswith("stall: ")]
    return [root for root in roots if root.attributes[semconv.VERDICT] != "dead"]


@pytest.mark.thorough
def test_stall_after_a_restart(warm_python: WarmPython, tmp_path: Path) -> None:
    """The restarted ranks are one run, and are judged as one, also in their first collective.

    torchrun counts the restart on the node that has failed only.
    """
    gate = tmp_path / "gate"
    gate.touch()
    failed = str(tmp_path / "has failed")
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(memory_directory())
        two = stack.enter_context(nodes(2))
        receiver = stack.enter_context(OtlpReceiver(GRPC, host=two.outside))
        launchers = stack.enter_context(launched(warm_python, two, receiver, base, failed, str(gate)))

        until(lambda: len(stalls(receiver)) > 0, STARTUP_S)
        time.sleep(2)  # an agent that judges alone would have reported by now
        due_s = THRESHOLD_S + 2 + lag_s(pid for pid in processes_of(base) if is_agent(pid))
        gate.unlink()
        ends = [launcher.end(STARTUP_S) for launcher in launchers]
        assert [end.code for end in ends] == [0, 0], ends
        found = stalls(receiver)
    first = found[0].attributes
    assert (first[semconv.VERDICT], first[semconv.VERDICT_RANKS]) == ("absent", "3"), found[0].error
    assert first[semconv.VERDICT_COVERAGE] == "4/4"
    assert first[semconv.STALL_AGE] <= due_s
    assert len({root.trace_id for root in found}) == 1
