"""`analyze --only graph` on dumps of a real job with four kinds of parallelism, and on what shows little."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from otel_torchdist.analysis.parallelism.wording import TIMES
from tests.sources.flight.made_dumps import call, document, write_json
from tests.support.commands.asking import Answer, analyze
from tests.support.repository import REPOSITORY

DUMPS = REPOSITORY / "tests" / "sources" / "flight" / "data" / "gpu_error_1st"
PAGE = (REPOSITORY / "docs" / "graph.md").read_text()


def graph(base: Path, *arguments: str | Path) -> Answer:
    """Run the command."""
    return analyze(base, *arguments, only="graph")


def test_the_picture_of_the_page(base: Path) -> None:
    """The documentation shows what the command prints for Megatron's tensors, experts, replicas and stages."""
    answer = graph(base, DUMPS)
    assert (answer.code, answer.err) == (0, "")
    shown = PAGE.partition("```\n16 ranks")[2].partition("```")[0]
    assert answer.out == f"dumps of the flight recorder of 16 ranks\n\n16 ranks{shown}"


def test_json(base: Path) -> None:
    """The document has the same axes, with members and evidence, and traffic that adds up."""
    answer = graph(base, DUMPS, "--json").document
    document = answer["graph"]
    assert [(axis["size"], axis["stride"]) for axis in document["axes"]] == [(2, 1), (2, 2), (4, 4)]
    assert [[role["role"] for role in axis["roles"]] for axis in document["axes"]] == [
        ["TP with SP"], [], ["PP or ring CP"],
    ]  # fmt: skip
    [expert] = [group for group in document["groups"] if any(role["role"] == "EP" for role in group["roles"])]
    assert (expert["span"], expert["members"][1]) == ([0, 1], [4, 5, 6, 7])
    assert (document["copies"], document["steady"], answer["source"]["unknown_ranks"]) == (1, False, [])
    sent = sum(group["sent_bytes"] for group in (*document["axes"], *document["groups"]))
    assert sum(pair["bytes"] for pair in document["traffic"]) == pytest.approx(sent, rel=1e-6)


@pytest.mark.parametrize("without", [0, 5, 15])
def test_a_rank_without_records(base: Path, tmp_path: Path, without: int) -> None:
    """The axes are the same, and the rank is named."""
    shutil.copytree(DUMPS, tmp_path / "dumps")
    (tmp_path / "dumps" / f"_dump_{without}").unlink()
    answer = graph(base, tmp_path / "dumps")
    assert TIMES.join(("16 ranks = TP with SP 2", "unclear 2", "PP or ring CP 4")) in answer.out
    assert f"not known: the calls of rank {without}\n" in answer.out


def test_a_misleading_name(base: Path, tmp_path: Path) -> None:
    """A group whose calls are not what it is named after is pointed out."""
    calls = [call(1, description="mesh_pp", input_sizes=[[4096]], output_sizes=[[4096]])]
    dump = {**document(calls, {"0": range(2)}), "pg_config": {"0": {"name": "0", "desc": "mesh_pp", "ranks": "[0, 1]"}}}
    answer = graph(base, write_json(tmp_path, dict.fromkeys(range(2), dump)))
    assert "2 ranks = DP 2\n" in answer.out
    assert "named mesh_pp, but its calls look like DP\n" in answer.out


def test_groups_of_one(base: Path, tmp_path: Path) -> None:
    """A job of one rank has no axes, and that is no error."""
    answer = graph(base, write_json(tmp_path, {0: document([call(1)], {"0": range(1)})}))
    assert answer.code == 0
    assert "1 ranks" not in answer.out
    assert "1 rank, no groups\n" in answer.out
