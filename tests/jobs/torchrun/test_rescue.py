"""`OTEL_PYTHON_TORCHDIST_ON_STALL=rescue:…,abort` under a real torchrun: training goes on from where it hung."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.torchrun.test_abort import ON_STALL, TWO_RANKS
from tests.jobs.torchrun.test_torchrun import WORKERS, switched_on
from tests.support.launch import Torchrun
from tests.support.warm_python import WarmPython

SCRIPT = WORKERS / "rescued.py"


def ends(out: str) -> list[str]:
    """What the weights of each rank are in the end."""
    return sorted(re.findall(r"ends with (-?[0-9a-f]+)", out))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_training_goes_on_from_the_rescue(warm_python: WarmPython, tmp_path: Path, kind: str) -> None:
    """Rank 1 hangs at step 7: both ranks are saved and ended, and the restart trains from there to the same weights."""
    rescued = {**ON_STALL, "PYTHONHASHSEED": "0", "OTEL_PYTHON_TORCHDIST_ON_STALL": "rescue:__main__:save,abort"}
    environ = switched_on(tmp_path / "tapes") | rescued
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
