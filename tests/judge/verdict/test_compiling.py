"""Ranks that compile get more time; hangs inside a compiled model do not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from otel_torchdist.judge.verdict.compiling import is_compiling
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from tests.support.worlds.detectors import EVERYBODY, THRESHOLD_S, Watching
from tests.support.worlds.fake_world import FakeWorld

SCRIPT = Path(__file__).with_name("compiled_stacks.py")
PACKAGES = "/venv/lib/python3.11/site-packages"
TRAIN = CallSiteName("train", "/home/user/train.py", 57)


def stack(*frames: tuple[str, str], user: CallSiteName = TRAIN) -> ThreadStack:
    """Build the stack of a main thread in these functions of packages, innermost first, called from user code."""
    inner = [CallSiteName(function, f"{PACKAGES}/{file}" if file[0] != "/" else file, 9) for function, file in frames]
    return ThreadStack(100, "MainThread", (*inner, user))


COMPILING = stack(("codegen", "torch/_inductor/graph.py"))


def waiting_world(late: int = 2) -> FakeWorld:
    """Build a world in which all ranks but one are in an all_reduce since second 1."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.1)
    wait(world, 1.0, late)
    return world


def wait(world: FakeWorld, at_s: float, late: int = 2, line: int = 42) -> dict[int, int]:
    """Let all ranks but one wait in the next all_reduce."""
    return {rank.rank: rank.enter(EVERYBODY, at_s, line=line) for rank in world.ranks if rank.rank != late}


def let_go(world: FakeWorld, at_s: float, late: int = 2) -> None:
    """Let the late rank enter."""
    world.ranks[late].enter(EVERYBODY, at_s)
    for rank in world.ranks:
        for number in list(rank.open):
            rank.end(number, at_s)


def test_rank_that_compiles_gets_time_but_not_for_ever() -> None:
    """While its stack shows the compiler, no verdict is given for ten minutes."""
    watching = Watching(waiting_world(), stack=COMPILING).until(600.0)
    assert watching.verdicts == []
    watching.until(601.0 + THRESHOLD_S + 2)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]


def test_compiles_again_at_the_same_line() -> None:
    """After a compilation of a minute, the next at that line may take two, even after a short one in between."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.1)
    watching = Watching(world, stack=COMPILING)
    for began_s, ended_s in ((1.0, 61.0), (70.0, 90.0)):
        wait(world, began_s)
        watching.until(ended_s)
        let_go(world, ended_s)
        watching.until(ended_s + 9.0)
    wait(world, 100.0)
    watching.until(100.0 + 118.0)
    assert watching.verdicts == []
    watching.until(100.0 + 150.0)
    assert [event.verdict.ranks for _, event in watching.verdicts][:1] == [(2,)]


@pytest.mark.parametrize(
    "frames",
    [
        (("_compile", "torch/_dynamo/convert_frame.py"), ("__call__", "torch/_dynamo/convert_frame.py")),
        (("_compile.<locals>.compile_inner", "torch/_dynamo/convert_frame.py"),),
        (("wait", "/usr/lib/python3.11/threading.py"), ("AsyncCompile.wait", "torch/_inductor/async_compile.py")),
        (("_compile_fx_main.<locals>.bw_compiler", "torch/_inductor/compile_fx.py"),),
        (("create_aot_dispatcher_function", "torch/_functorch/aot_autograd.py"),),
        (("CachingAutotuner.benchmark_all_configs", "torch/_inductor/runtime/triton_heuristics.py"),),
        (("compile", "triton/compiler/compiler.py"), ("JITFunction.run", "triton/runtime/jit.py")),
        (("__init__", "<string>"), ("codegen", "torch/_inductor/graph.py")),
    ],
)
def test_compiler_is_recognized(frames: tuple[tuple[str, str], ...]) -> None:
    """Functions that only run during compilation are recognized, whatever they call."""
    assert is_compiling(stack(*frames))


@pytest.mark.parametrize(
    "frames",
    [
        (("_fn", "torch/_dynamo/eval_frame.py"), ("compile_wrapper", "torch/_dynamo/eval_frame.py")),
        (("read", "/home/user/data.py"), ("_compile", "torch/_dynamo/convert_frame.py")),
        (("forward", "torch/_functorch/aot_autograd.py"), ("__call__", "torch/_inductor/output_code.py")),
        (("run", "torch/_inductor/runtime/triton_heuristics.py"), ("run", "triton/runtime/jit.py")),
        (("cudagraphify.<locals>.run", "torch/_inductor/compile_fx.py"),),
        (("Interpreter.run_node", "torch/fx/interpreter.py"), ("GraphModule.__call__", "torch/fx/graph_module.py")),
        (("forward", "<eval_with_key>.7"),),
        (("guard", "torch/fx/experimental/symbolic_shapes.py"),),
    ],
)
def test_compiled_model_in_its_steady_state_is_not_compiling(frames: tuple[tuple[str, str], ...]) -> None:
    """Functions on every call of a compiled model, or of a pipeline stage, are no compilation."""
    assert not is_compiling(stack(*frames))


@pytest.mark.process
@pytest.mark.thorough
def test_real_stacks() -> None:
    """torch.compile and torch.distributed.pipelining are recognized during compilation, not when user code hangs."""
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True, timeout=300)
    found: Counter[tuple[str, bool]] = Counter()
    hanging: list[ThreadStack] = []
    for line in done.stdout.splitlines():
        doing, frames = json.loads(line)
        taken = ThreadStack(100, "MainThread", tuple(CallSiteName(*frame) for frame in frames))
        found[doing, is_compiling(taken)] += 1
        if doing == "steady":
            hanging.append(taken)
    assert found["compiling", True] > 9 * found["compiling", False] > -1
    assert (found["steady", True], found["pipeline", True]) == (0, 0)
    assert found["steady", False] > 0
    assert found["pipeline", False] > 0
    watching = Watching(waiting_world(), stack=hanging[0]).until(1.0 + THRESHOLD_S + 2)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]
