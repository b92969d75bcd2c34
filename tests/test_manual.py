"""What users get without reading the source: `help(otel_torchdist)`, and types in their editor."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

import otel_torchdist

pytestmark = pytest.mark.process

PROGRAM = """
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
from typing_extensions import assert_type

from otel_torchdist import Config, StalledRun, TorchDistInstrumentor, expect_wait, mark_step


def page(stall: StalledRun) -> None:
    assert_type(stall.ranks, str)
    assert_type(stall.local_ranks, tuple[int, ...])


TorchDistInstrumentor().instrument(on_stall=page, config=Config(stall_timeout=30.0))
assert_type(Config.from_environment({}).stall_timeout, float)
assert_type(mark_step(), None)
with expect_wait(600):
    pass
expect_wait("soon")  # pyright: ignore[reportArgumentType]
Config(stall_timeout="10 s")  # pyright: ignore[reportArgumentType]
print(StalledRun.rank)  # pyright: ignore
"""


def test_manual_has_every_public_name_and_its_examples_are_python() -> None:
    """Each public name has an example in the package's docstring, and each example but the shell's one compiles."""
    manual = otel_torchdist.__doc__ or ""
    blocks = re.findall(r"::\n\n((?:    .*\n|\n)+)", manual + "\n")
    examples = [textwrap.dedent(block) for block in blocks if "torchrun" not in block]
    names = {node.id for one in examples for node in ast.walk(ast.parse(one)) if isinstance(node, ast.Name)}
    assert {*otel_torchdist.__all__} <= names


@pytest.mark.skipif(find_spec("pyright") is None, reason="needs pyright, which the extra `dev` brings")
def test_types_of_a_users_program(tmp_path: Path) -> None:
    """Pyright sees the types of all public names, and reports wrong uses, although they are imported lazily."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
