"""A log with an error in it is never taken for that of a healthy job, nor the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_torchdist.cli.app import app
from otel_torchdist.sources.evidence.findings import findings_of
from otel_torchdist.sources.evidence.statements import StatementKind, has_failure
from tests.sources.evidence.reading import read

TRACEBACK = 'Traceback (most recent call last):\n  File "/w/train.py", line 12, in main\n    step()\n'
ELASTIC = "torch.distributed.elastic.multiprocessing.api.SignalException"
FAILED = {
    "exception": f"{TRACEBACK}ValueError: loss is nan\n",
    "signal": f"{TRACEBACK}{ELASTIC}: Process 123 got signal: 15\n",
    "exception without a traceback": "2024-05-05 10:00:00 torch.OutOfMemoryError: CUDA out of memory. Tried\n",
    "terminate": "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: launch failure\n",
    "logger": "[E ProcessGroupGloo.cpp:144] Rank 2 timed out in monitoredBarrier after 30000 ms.\n",
    "nccl": "node3:12:13 [3] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion with status=12\n",
    "deepspeed": "[2024-05-05] [ERROR] [launch.py:325:handler] ['python', 'a.py'] exits with return code = -9\n",
    "slurm": "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been killed.\n",
    "shell": "bash: line 1: 12345 Segmentation fault      (core dumped) python train.py\n",
    "kernel": "Out of memory: Killed process 4001 (python) total-vm:123kB\n",
}
HEALTHY = {
    "metrics": "epoch 1 loss 0.4 MeanSquaredError: 0.25\nval Error: 0.1 AbsoluteError: 1e-3\n",
    "exit": "[2024-05-05] [INFO] [launch.py:348:main] Process 4001 exits with return code = 0\n",
    "info": "[I1129 10:10:10.000000 ProcessGroupNCCL.cpp:900] [PG 0 Rank 3] ProcessGroupNCCL initialization options\n",
}


@pytest.mark.parametrize("text", FAILED.values(), ids=FAILED)
def test_exit_code_of_a_log_with_an_error(tmp_path: Path, text: str) -> None:
    """`diagnose` says what it has found, and exits with 1."""
    (tmp_path / "train.log").write_text(f"starting\n{text}done\n")
    done = CliRunner().invoke(app, ["diagnose", str(tmp_path)])
    assert done.exit_code == 1, done.output
    assert "train.log:" in done.output.replace("\n", "")


@pytest.mark.parametrize("text", HEALTHY.values(), ids=HEALTHY)
def test_healthy_log(tmp_path: Path, text: str) -> None:
    """What only looks like an error is none."""
    assert not has_failure(read(tmp_path, text).statements)


def test_what_a_terminate_said(tmp_path: Path) -> None:
    """The text of the C++ exception stands for the line before it, and names the rank of the default group."""
    text = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception:"
        " CUDA error: an illegal memory access was encountered\n"
    )
    [one] = findings_of(read(tmp_path, text).statements)
    assert (one.kind, one.ranks) == (StatementKind.CRASHED, (3,))
    assert one.text.startswith("terminated by a C++ exception: [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group")


def test_last_error_of_nccl(tmp_path: Path) -> None:
    """It stands on the next line of the same rank, behind those of others."""
    text = (
        "[rank2]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled system error\n"
        "[rank2]: Last error:\n"
        "[rank0]: something else\n"
        "[rank2]: socketStartConnect: Connect to 10.0.0.1<43219> failed : Software caused connection abort\n"
    )
    [one] = [one for one in findings_of(read(tmp_path, text).statements) if one.kind is StatementKind.ERROR]
    assert (one.ranks, one.text) == (
        (2,),
        "NCCL's last error: socketStartConnect: Connect to 10.0.0.1<43219> failed : Software caused connection abort",
    )


def test_launcher_that_was_ended(tmp_path: Path) -> None:
    """It is no rank, and so are none that it names."""
    [one] = findings_of(read(tmp_path, FAILED["signal"]).statements)
    assert (one.ranks, one.unidentified, one.text) == ((), ("process 123",), "is a launcher, and was ended by SIGTERM")


def test_errors_of_no_known_kind_are_left_out_beside_others(tmp_path: Path) -> None:
    """Where a reader has understood what failed, lines of loggers add nothing."""
    text = FAILED["exception"] + FAILED["nccl"]
    assert [one.kind for one in findings_of(read(tmp_path, text).statements)] == [StatementKind.RAISED]
