"""`OTEL_PYTHON_TORCHDIST_ON_STALL=rescue:…,abort` under a real torchrun: training goes on from where it hung."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from tests.jobs.torchrun.recording import TWO_RANKS, WORKERS, switched_on
from tests.jobs.torchrun.test_abort import ON_STALL
from tests.jobs.torchrun.test_two_nodes import launched
from tests.support.launch.nodes import nodes, why_not
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver
from tests.support.tapes.directories import memory_directory

pytestmark = pytest.mark.thorough
SCRIPT = WORKERS / "rescued.py"
RESCUE = {"PYTHONHASHSEED": "0", "OTEL_PYTHON_TORCHDIST_ON_STALL": "rescue:__main__:save,abort"}
WHY_NOT = why_not()


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_nodes_wait_for_each_other(warm_python: WarmPython, tmp_path: Path) -> None:
    """Rank 0 takes 6 s to save: the other node's agent does not end its rank meanwhile, and knows of both ranks."""
    arguments = ("ddp", str(tmp_path / "rescue"), "asleep", "6")
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(memory_directory())
        two = stack.enter_context(nodes(2))
        receiver = stack.enter_context(OtlpReceiver(GRPC, host=two.outside))
        jobs = stack.enter_context(
            launched(warm_python, two, receiver, base, *arguments, worker=SCRIPT, settings=ON_STALL | RESCUE, ranks=1)
        )
        done = [job.end() for job in jobs]
        all_logs = [path.read_text() for path in base.glob("*/job-*/agent.log")]
    logs = [text for text in all_logs if "on stall" in text]
    assert [one.code for one in done] == [0, 0], "\n".join([*(one.err for one in done), *all_logs])
    assert sum(one.out.count("begins at step 7") for one in done) == 2
    assert len(logs) == 2
    assert any("on stall: rescue asked 1 ranks: rescued: ranks 0-1 at step 7\n" in log for log in logs), logs


def ends(out: str) -> list[str]:
    """What the weights of each rank are in the end."""
    return sorted(re.findall(r"ends with (-?[0-9a-f]+)", out))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_training_goes_on_from_the_rescue(warm_python: WarmPython, tmp_path: Path, kind: str) -> None:
    """Rank 1 hangs at step 7: both ranks are saved and ended, and the restart trains from there to the same weights."""
    environ = switched_on(tmp_path / "tapes") | ON_STALL | RESCUE
    command = [*TWO_RANKS, "--max-restarts=1", SCRIPT, kind, tmp_path / "rescue", "asleep"]
    stalled = Torchrun(warm_python, tmp_path / "two", command, environ)
    undisturbed = Torchrun(warm_python, tmp_path / "one", [*TWO_RANKS, SCRIPT, kind, tmp_path / "none"], environ).end()
    assert undisturbed.out.count("begins at step 0") == 2, undisturbed.err
    done = stalled.end()
    assert done.code == 0, done.err
    assert done.out.count("begins at step 0") == done.out.count("begins at step 7") == 2
    assert ends(done.out) == ends(undisturbed.out) and len(ends(done.out)) == 2
    [log] = (text for path in (tmp_path / "tapes").glob("job-*/agent.log") if "on stall" in (text := path.read_text()))
    assert "on stall: rescue asked 2 ranks: rescued: ranks 0-1 at step 7\n" in log
    assert sorted(path.name for path in (tmp_path / "rescue" / "step-7").iterdir()) == [
        "rank-0-of-2.pt", "rank-1-of-2.pt",
    ]  # fmt: skip
