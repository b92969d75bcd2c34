"""Answers fit into an assistant's context, stay valid, and say what is missing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import strategies as st
from msgspec import Struct

from otel_torchdist.cli.mcp.answers import DiagnoseAnswer
from otel_torchdist.cli.mcp.bounds import MAX_CHARACTERS, bounded
from otel_torchdist.cli.mcp.roots import ReadableRoots
from otel_torchdist.cli.mcp.schemas import schema_of
from otel_torchdist.cli.mcp.targets import RunTargets
from otel_torchdist.cli.mcp.tools import tools_for
from otel_torchdist.config import Config
from otel_torchdist.errors import RunError
from otel_torchdist.model.names import CallSiteName, GroupName
from tests.support.examples import few_and_many
from tests.support.tapes.fake_tape import SECOND, FakeTape

RANKS = 300
LATE = 217


class Document(Struct):
    """An answer with anything in it."""

    value: Any
    left_out: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def large_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base directory with a job of many ranks, all of which but one wait."""
    base = tmp_path_factory.mktemp("large")
    directory = base / "job-00000000000000aa"
    directory.mkdir(mode=0o700)
    group = GroupName("0", "default_pg", tuple(range(RANKS)), 0, "gloo", True)
    line = CallSiteName("train", "/home/u/train.py", 42)
    at = time.monotonic_ns() - 20 * SECOND
    for rank in range(RANKS):
        tape = FakeTape(directory, rank, RANKS, 0xAB << 120, capacity=64)
        tape.run("all_reduce", group, at=at, lasts=1000, sequence=1, call_site=line)
        if rank != LATE:
            tape.begin("all_reduce", group, at=at, sequence=2, call_site=line)
        tape.die()
    return base


def _call(base: Path, **arguments: Any) -> dict[str, Any]:
    config = Config.from_environment()
    return tools_for(RunTargets(ReadableRoots([base], config), config), may_ask=False)["diagnose"].call(arguments)


def _length(answer: object) -> int:
    return len(json.dumps(answer, ensure_ascii=False, separators=(",", ":")))


def test_many_ranks(large_job: Path) -> None:
    """Of many ranks the named one comes first; the rest that does not fit is counted, and can be asked for."""
    answer = _call(large_job)
    assert _length(answer) <= MAX_CHARACTERS
    shown = answer["diagnosis"]["ranks"]
    assert shown[0]["rank"] == LATE
    assert 4 <= len(shown) < RANKS
    assert f"diagnosis.ranks: the first {len(shown)} of {RANKS} are shown" in answer["left_out"]
    assert answer["left_out"][-1] == "name the ranks to show with `ranks`, at most 8 at a time"
    jsonschema.validate(answer, schema_of(DiagnoseAnswer))
    few = _call(large_job, ranks=[290, 3])
    assert [rank["rank"] for rank in few["diagnosis"]["ranks"]] == [3, 290]


def test_short_answer() -> None:
    """An answer that fits is not touched."""
    value = {"ranks": [*range(1000)], "text": "x" * 9000}
    assert bounded(Document(value), "ask for less") == {"value": value, "left_out": []}


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.integers() | st.booleans() | st.none() | st.text(max_size=3000),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.sampled_from("abcdef"), inner),
    max_leaves=20,
)


@few_and_many(25, 300, _VALUES, st.integers(1, 3000))
def test_any_answer(value: Any, times: int) -> None:
    """Whatever an answer holds, it is within the bound and says what was left out, or it is an error."""
    document = Document([value] * times)
    try:
        answer = bounded(document, "ask for less")
    except RunError as error:
        assert str(error).endswith("characters; ask for less")
        return
    assert _length(answer) <= MAX_CHARACTERS
    assert (answer["left_out"] == []) == (answer["value"] == document.value)


def test_maps_by_rank() -> None:
    """A map with an entry for each rank is shortened like a list; the keys of a struct are all kept."""
    row = {"calls_by_rank": {rank: 1 for rank in range(9000)}, "name": "all_reduce"}
    answer = bounded(Document([row]), "ask for less")
    assert answer["value"][0].keys() == row.keys()
    assert 16 <= len(answer["value"][0]["calls_by_rank"]) <= 512
    assert answer["left_out"][0].startswith("value[].calls_by_rank: the first ")


def test_hopeless_answer() -> None:
    """An answer that cannot be shortened enough is an error, not a wrong answer."""
    with pytest.raises(RunError, match="longer than 30,000 characters; ask for less"):
        bounded(Document({f"key{number}": "x" * 100 for number in range(900)}), "ask for less")
