"""Two nodes, each with an agent of its own: one node is switched off, and the ranks of the other one go on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CONFIG, OTEL_PYTHON_TORCHDIST_ENABLED
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.node.job.peers import peers_files, read_peers
from otel_torchdist.node.job.share import position
from tests.jobs.torchrun.test_two_nodes import launched, stalls
from tests.support.commands.asking import ask
from tests.support.commands.running import is_agent, processes_of
from tests.support.launch.nodes import Nodes, nodes, why_not
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver
from tests.support.tapes.directories import memory_directory
from tests.support.tapes.recorded import read_tapes
from tests.support.waiting import until

WHY_NOT = why_not()
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.thorough]
WORKER = Path(__file__).parent / "workers" / "goes_on.py"
SWITCHED_OFF = "recording was switched off at"


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    """Two nodes."""
    with nodes(2) as made:
        yield made


def have_met(base: Path) -> bool:
    """Whether the agent of each node knows the address of the other one."""
    files = [path for folder in base.glob("*/job-*") for path, _ in peers_files(folder).values()]
    return [len(read_peers(path).others) for path in files] == [1, 1]


def log_of_agent(base: Path) -> str:
    """The log of a node's agents."""
    return "".join(path.read_text() for path in base.rglob("agent.log"))


@pytest.mark.parametrize(("kernel", "off"), [("python", 0), ("native", 0), ("python", 1)])
def test_one_node_switched_off(kernel: str, off: int, warm_python: WarmPython, two: Nodes, tmp_path: Path) -> None:
    """No stall and no absent rank is reported on either node, also once the agent of the switched-off node has left.

    Rank 0, on the first node, then comes late, longer than the threshold. The other node's ranks are still recorded.
    """
    settings = {
        **environ_of(kernel),
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1500",
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
    }
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(memory_directory())
        receiver = stack.enter_context(OtlpReceiver(GRPC, host=two.outside))
        job = launched(warm_python, two, receiver, base, str(tmp_path), worker=WORKER, settings=settings)
        launchers = stack.enter_context(job)
        here, there = (base / two.names[node] for node in (off, 1 - off))

        def seen() -> str:
            return "\n".join([*(launcher.log for launcher in launchers), log_of_agent(base)])

        until(lambda: have_met(base), 90, seen)
        time.sleep(3)  # agents without a stall exchange what they know every 2 s
        (here / "off").touch()
        until(lambda: SWITCHED_OFF in log_of_agent(there), 20, seen)
        until(lambda: not any(map(is_agent, processes_of(here))), 60, seen)
        before = [len(tape.operations) for tape in read_tapes(there)]
        (tmp_path / "hang-late").touch()
        until((tmp_path / "hung-late").exists, 60, seen)
        until(lambda: min(len(tape.operations) for tape in read_tapes(there)) > max(before) + 50, 60, seen)

        assert [tape.status.state for tape in read_tapes(there)] == [TapeState.RUNNING] * 2
        assert [bool(tape.status.switched_off_ns) for tape in read_tapes(here)] == [True] * 2
        assert "recording was switched off" in ask(here).out
        (tmp_path / "finish").touch()
        assert [launcher.end().code for launcher in launchers] == [0, 0]
        assert stalls(receiver) == []
        log = seen()
    assert log.count(" is switched off on this node") == 1
    assert "has not entered" not in log and "has not completed" not in log, log


@pytest.mark.parametrize(
    ("settings", "is_recorded"),
    [
        pytest.param({"SLURM_JOB_ID": "1"}, True, id="in the share"),
        pytest.param({"SLURM_JOB_ID": "3"}, False, id="not in the share"),
        pytest.param({}, None, id="without an id"),
    ],
)
def test_share(
    settings: dict[str, str], is_recorded: bool | None, warm_python: WarmPython, two: Nodes, tmp_path: Path
) -> None:
    """Both nodes decide alike, by the scheduler's id or by the address of rank 0, which torchrun gives to both."""
    assert position("SLURM_JOB_ID=1") < 0.5 < position("SLURM_JOB_ID=3")
    file = tmp_path / "config.yaml"
    file.write_text(
        "file_format: '1.0'\ninstrumentation/development: {python: {torch_distributed: {share: 0.5, reader: none}}}\n"
    )
    file.chmod(0o644)
    (tmp_path / "finish").touch()
    environ = {
        OTEL_PYTHON_TORCHDIST_ENABLED: "",
        OTEL_PYTHON_TORCHDIST_CONFIG: str(file),
        "OTEL_PYTHON_TORCHDIST_READER": "",
        **settings,
    }
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(memory_directory())
        receiver = stack.enter_context(OtlpReceiver(GRPC, host=two.outside))
        job = launched(warm_python, two, receiver, base, str(tmp_path), worker=WORKER, settings=environ)
        launchers = stack.enter_context(job)
        ends = [launcher.end() for launcher in launchers]
        assert [end.code for end in ends] == [0, 0], ends
        recorded = [len(read_tapes(base / name)) for name in two.names]
    assert recorded in ([[2, 2], [0, 0]] if is_recorded is None else [[2 * is_recorded] * 2])
