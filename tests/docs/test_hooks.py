"""The examples of docs/hooks.md, run as they stand there, with numbers that a short training reaches."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Final

import pytest
import torch

from deploy.native.ports import free_port
from tests.jobs.torchrun.recording import switched_on
from tests.support.documented import block_after, page
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.waiting import until

PAGE: Final = page("hooks.md")
WORKER: Final = Path(__file__).parent / "workers" / "hooked.py"
HEALTHY: Final = "1"
pytestmark = pytest.mark.process


def start(python: WarmPython, folder: Path, example: str, bad: str, *, in_code: bool = False) -> Torchrun:
    """Start two ranks with an example as their hooks, by the environment or in code."""
    (folder / ("in_code.py" if in_code else "my_hooks.py")).write_text(example)
    environ = switched_on(folder / "tapes")
    script = shutil.copy(WORKER, folder)  # a module beside the script is found
    if in_code:
        environ["OTEL_PYTHON_TORCHDIST_ENABLED"] = "false"
    else:
        environ["OTEL_PYTHON_TORCHDIST_HOOKS"] = "my_hooks:hooks"
    words = ["--standalone", "--nproc-per-node=2", script, str(folder), bad]
    return Torchrun(python, folder / "log", words, environ)


def run(python: WarmPython, folder: Path, example: str, bad: str, *, in_code: bool = False) -> Done:
    """Run them to their end."""
    job = start(python, folder, example, bad, in_code=in_code)
    try:
        return job.end()
    finally:
        job.close()


def changed(example: str, old: str, new: str) -> str:
    """An example with another number or name."""
    assert old in example
    return example.replace(old, new)


def test_in_code(warm_python: WarmPython, tmp_path: Path) -> None:
    """The first example ends the training where a value is not finite, and says in which operation."""
    done = run(warm_python, tmp_path, block_after(PAGE, "In code:"), "nan", in_code=True)
    assert done.code == 1
    assert "AssertionError: rank 1: all_reduce 3 is not finite" in done.out + done.err


@pytest.mark.thorough
def test_in_code_healthy(warm_python: WarmPython, tmp_path: Path) -> None:
    """Finite values pass."""
    done = run(warm_python, tmp_path, block_after(PAGE, "In code:"), HEALTHY, in_code=True)
    assert (done.code, (done.out + done.err).count("trained")) == (0, 2)


def test_save(warm_python: WarmPython, tmp_path: Path) -> None:
    """Each rank has saved what the operation of that step has made."""
    example = changed(block_after(PAGE, "Save what one operation"), "call.step == 100", "call.step == 1")
    assert run(warm_python, tmp_path, example, HEALTHY).code == 0
    for rank in range(2):
        [saved] = torch.load(tmp_path / f"step-100-2-rank-{rank}.pt")
        assert torch.equal(saved, torch.full((4,), 2.0))


@pytest.mark.thorough
def test_check(warm_python: WarmPython, tmp_path: Path) -> None:
    """The rank with a value out of range ends the training, and names the line."""
    done = run(warm_python, tmp_path, block_after(PAGE, "Check a range"), "20000")
    assert done.code == 1
    printed = done.out + done.err
    assert "ValueError: rank 1, all_reduce 3, " in printed
    assert "hooked.py" in printed


@pytest.mark.thorough
def test_debugger(warm_python: WarmPython, tmp_path: Path) -> None:
    """A debugger answers in the hook of the named rank, shows its operation, and lets it go on."""
    port = free_port()
    example = block_after(PAGE, "Stop rank 3 in its 812th all_reduce")
    for old, new in (("calls == 812", "calls == 2"), ("ranks=(3,)", "ranks=(1,)"), ("4444", str(port))):
        example = changed(example, old, new)
    job = start(warm_python, tmp_path, example, HEALTHY)
    try:
        assert until(lambda: "RemotePdb session open" in job.log, 60.0), job.log
        with socket.create_connection(("127.0.0.1", port), 10.0) as connection:
            connection.sendall(b"p call.sequence, call.rank\nc\n")
            connection.settimeout(30.0)
            answer = b""
            while b"(2, 1)" not in answer:
                received = connection.recv(4096)
                assert received, answer
                answer += received
            assert job.end().code == 0
    finally:
        job.close()
    assert job.log.count("trained") == 2
