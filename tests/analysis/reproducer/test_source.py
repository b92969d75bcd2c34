"""The source of a script: Python that follows the plan, and is safe from hostile names on another user's tapes."""

from __future__ import annotations

import ast
import re
import tokenize
from io import BytesIO
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.analysis.reproducer.calls import OPERATIONS
from otel_torchdist.analysis.reproducer.script import (
    DEFAULT_GROUP,
    Create,
    CreateExtra,
    End,
    Ending,
    Script,
    ScriptCall,
    ScriptGroup,
    ScriptWait,
    Step,
)
from otel_torchdist.analysis.reproducer.source import source_of

HOSTILE: Final = (
    "\n__import__('os').system('x')\n",
    "\r\nimport subprocess",
    "'); import subprocess; ('",
    '"""\nimport subprocess\n"""',
    "coding: utf-7",
    "-*- coding: rot13 -*-",
    "\u2028import subprocess",
    "\x0cimport subprocess",
    "\x00",
    "\\",
    "\ud800",
    "{rank} %s",
)
texts = st.one_of(
    st.text(max_size=300), st.sampled_from(HOSTILE), st.builds("".join, st.lists(st.sampled_from(HOSTILE)))
)
ALLOWED_NODES: Final = (
    ast.Module, ast.Import, ast.alias, ast.Assign, ast.Expr, ast.Call, ast.Attribute, ast.Name, ast.Constant, ast.If,
    ast.Compare, ast.Eq, ast.In, ast.For, ast.List, ast.Tuple, ast.ListComp, ast.comprehension, ast.IfExp, ast.keyword,
    ast.Subscript, ast.Load, ast.Store, ast.Raise, ast.Pass, ast.Try,
    ast.ExceptHandler, ast.UnaryOp, ast.USub,
)  # fmt: skip
ALLOWED_IMPORTS: Final = {"os", "signal", "time", "torch", "torch.distributed"}
EXCEPTIONS: Final = ("ValueError", "UnicodeDecodeError", "KeyboardInterrupt", "eval")
ALLOWED_NAMES: Final = re.compile(
    r"RuntimeError|ValueError|SystemExit|error|print|_|dist|int|os|range|rank|signal|time|torch|(group_|work_)\d*"
)

groups = st.builds(
    ScriptGroup, st.integers(0, 3), st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True).map(tuple), texts
)
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
calls = st.builds(
    ScriptCall,
    operation=st.sampled_from(sorted(OPERATIONS)),
    group=groups,
    shapes=st.lists(shapes, min_size=2, max_size=2).map(tuple),
    dtypes=st.just(("float32", "int64")),
    reduce_op=st.sampled_from(["", "sum", "max"]),
    peer=st.integers(-1, 3),
    tag=st.integers(0, 3),
    work=st.integers(0, 2),
    hangs=st.booleans(),
    site=texts,
)
exchanges = st.builds(
    ScriptCall,
    operation=st.just("all_to_all_single"),
    group=st.just(ScriptGroup(0, (0, 1))),
    shapes=st.lists(st.tuples(st.integers(0, 5), st.just(3)), min_size=4, max_size=4).map(tuple),
    dtypes=st.just(("float32",) * 4),
    is_uneven=st.just(True),
    site=texts,
)
steps = st.one_of(
    calls,
    exchanges,
    st.builds(Create, groups, st.booleans(), texts),
    st.builds(CreateExtra, st.integers(1, 3)),
    st.builds(ScriptWait, st.integers(1, 2), st.booleans()),
    st.builds(
        End,
        st.sampled_from(Ending),
        signal=st.integers(0, 200),
        exit_code=st.integers(0, 255),
        exception=st.one_of(texts, st.sampled_from(EXCEPTIONS)),
        remarks=st.lists(texts, max_size=3).map(tuple),
    ),
)
scripts = st.builds(
    Script,
    title=texts,
    facts=st.lists(texts, max_size=3).map(tuple),
    steps=st.lists(st.lists(steps, max_size=5).map(tuple), min_size=1, max_size=4).map(tuple),
    named=st.just((0,)),
    stand_for=st.just({}),
    outlives_errors=st.booleans(),
    sequence=st.just(1),
)


@given(scripts)
def test_names_of_a_tape_are_never_code(script: Script) -> None:
    """With any text in comments and strings, the source compiles and contains only allowed nodes and names."""
    source = source_of(script, "hang.py").encode("ascii")
    assert tokenize.detect_encoding(BytesIO(source).readline)[0] == "utf-8"
    tree = ast.parse(source)
    compile(source, "hang.py", "exec")
    for node in ast.walk(tree):
        assert isinstance(node, ALLOWED_NODES), ast.dump(node)
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= ALLOWED_IMPORTS
        if isinstance(node, ast.Name):
            assert ALLOWED_NAMES.fullmatch(node.id), node.id
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, int | str | None)
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Attribute) or ast.unparse(node.func) in (
                "int", "print", "range", "RuntimeError", "ValueError",
            )  # fmt: skip


@given(texts)
def test_description_arrives_unchanged(text: str) -> None:
    """A group's description is the same string in the script, up to its bound."""
    group = ScriptGroup(1, (0,), text)
    tree = ast.parse(source_of(_script((Create(group),)), "hang.py"))
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "group_desc"]
    assert [ast.literal_eval(value) for value in values] == ([text] if text else [])


def _script(*ranks: tuple[Step, ...]) -> Script:
    return Script("It hangs.", (), ranks, (len(ranks) - 1,), {}, False, 1)


WORLD: Final = ScriptGroup(DEFAULT_GROUP, (0, 1, 2))
REDUCE: Final = ScriptCall("all_reduce", WORLD, ((4,),), ("float32",), site="step at train.py:7")


def test_whole_script() -> None:
    """Common steps are written once, repeated calls become a loop, and the ranks at fault come first."""
    common = (Create(WORLD), REDUCE, REDUCE)
    hanging = ScriptCall("all_reduce", WORLD, ((4,),), ("float32",), reduce_op="max", hangs=True)
    late = End(Ending.STAYS_AWAY, remarks=("The job's rank 2 is in load at data.py:3.",))
    script = _script((*common, hanging), (*common, hanging), (*common, late))
    assert source_of(script, "hang.py").partition("It hangs.\n")[2] == (
        "\n"
        "import os\n"
        "import time\n"
        "\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "\n"
        'rank = int(os.environ["RANK"])\n'
        "\n"
        'dist.init_process_group("gloo")\n'
        "for _ in range(2):\n"
        "    dist.all_reduce(torch.ones(4))  # step at train.py:7\n"
        "\n"
        "if rank == 2:\n"
        "    # The job's rank 2 is in load at data.py:3.\n"
        "    time.sleep(1_000_000)\n"
        "else:  # rank in (0, 1)\n"
        "    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX)  # hangs\n"
    )
