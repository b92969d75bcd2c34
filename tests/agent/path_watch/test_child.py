"""The process that finds a path."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from otel_torchdist.agent.path_watch import child as module
from otel_torchdist.agent.path_watch.child import Child, ChildError, NodeCalls
from otel_torchdist.agent.path_watch.steps import StepRange, segments_of
from otel_torchdist.model.reports.finding import FindingKind
from tests.agent.path_watch.written import write
from tests.support.tapes.written_world import WrittenWorld
from tests.support.waiting import until

pytestmark = pytest.mark.process
STEPS = StepRange(8, 19)


@pytest.fixture(scope="module")
def tapes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Tapes of four ranks, two of each node, of which rank 3 is slow."""
    folder = tmp_path_factory.mktemp("child")
    return write(WrittenWorld(ranks=4, steps=20, slow=3, ranks_a_host=2), folder)


def processes_of(pid: int) -> set[int]:
    """The children of a process."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def test_a_path_across_two_nodes(tapes: list[Path]) -> None:
    """The rank that is slow is on the other node, whose calls have been sent; each node has a clock of its own."""
    others = [NodeCalls(segments_of(tapes[2:], STEPS), 2)]
    found = Child(tapes[:2], STEPS).path(others, frozenset(range(4)))
    assert found.calls == 4 * 12 * 3
    assert [(part.kind, part.ranks) for part in found.parts] == [(FindingKind.SLOW_RANK, (3,))]
    assert found.lengths is not None and found.lengths.ranks[3] > 0
    assert 0 < found.took_s < 10


def test_no_path_without_all_ranks(tapes: list[Path]) -> None:
    """If a node has not answered, what others wait for may be there: nothing is claimed."""
    found = Child(tapes[:2], STEPS).path([NodeCalls(b"", 2)], frozenset(range(4)))
    assert found.lengths is None
    assert found.parts == ()


def test_too_many_calls(tapes: list[Path]) -> None:
    """Beyond the bound nothing is looked for, and the number is reported."""
    segments = segments_of(tapes, STEPS)
    times = module.MAX_CALLS // (4 * 12 * 3) + 1
    found = Child([], STEPS).path([NodeCalls(segments, 4)] * times, frozenset(range(4)))
    assert found.calls > module.MAX_CALLS
    assert found.lengths is None


def test_only_the_calls(tapes: list[Path]) -> None:
    """What answers another agent is the same as what is read here."""
    assert Child(tapes, STEPS).segments(60) == segments_of(tapes, STEPS)


def test_it_is_killed_when_it_takes_too_long(tapes: list[Path]) -> None:
    """One error, and no process stays behind."""
    before = processes_of(os.getpid())
    with pytest.raises(ChildError, match="timed out"):
        Child(tapes, STEPS).segments(0.001)
    assert processes_of(os.getpid()) <= before


def test_a_broken_environment_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that is gone, or cannot import us, raises nothing else."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ChildError, match="No such file"):
        Child([], STEPS)
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    with pytest.raises(ChildError, match=r"(?s)exit code 1: .*No module named"):
        Child([], STEPS).segments(60)


def has_ended(pid: int) -> bool:
    """Whether a process has ended, even if its parent has not waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


PARENT = """
import sys, time
from pathlib import Path
from otel_torchdist.agent.path_watch.child import Child
from otel_torchdist.agent.path_watch.steps import StepRange
Child([Path(one) for one in sys.argv[1:]], StepRange(8, 19))
print(flush=True)
time.sleep(60)
"""


def test_it_ends_with_its_agent(tapes: list[Path]) -> None:
    """If the agent is killed while the process waits for the calls of other nodes, nothing stays behind."""
    with subprocess.Popen([sys.executable, "-c", PARENT, *map(str, tapes)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        [pid] = processes_of(parent.pid)
        until(lambda: Path(f"/proc/{pid}/syscall").read_text().split()[1:2] == ["0x0"])  # it reads its standard input
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        until(lambda: has_ended(pid))
