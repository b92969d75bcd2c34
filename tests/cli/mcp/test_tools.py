"""The tools that read, called by the SDK's client on a hung job, compared with the commands that people use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.cli.mcp.bounds import MAX_CHARACTERS
from tests.cli.gloo_jobs import LOADING_LINE, GlooJobs
from tests.cli.test_bundles import bundle_of, comparable
from tests.sources.flight.made_dumps import late_rank, write
from tests.support.commands.asking import analyze, ask
from tests.support.commands.assistant import Assistant, assistant
from tests.support.tapes.directories import memory_directory


@pytest.fixture(scope="module")
def client(hung: GlooJobs) -> Iterator[Assistant]:
    """A client of a server that may read the tapes of the job, and may not ask ranks."""
    with assistant(hung.base) as connected:
        yield connected


def test_list(hung: GlooJobs, client: Assistant) -> None:
    """Runs are those of `diagnose --list --json`, and the directories say where it has looked."""
    answer = client.call("list_runs")
    assert answer["runs"] == ask(hung.base, "--list", "--json").document["runs"]
    [run] = answer["runs"]
    assert (run["state"], run["ranks"]) == ("running", [0, 1, 2, 3])
    assert answer["directories"] == [str(hung.base)]
    assert client.call("list_runs", path=run["directory"])["runs"] == [run]


def test_diagnosis(hung: GlooJobs, client: Assistant) -> None:
    """The diagnosis is that of `diagnose --json`, with the named rank first, its sentence as summary, and its page."""
    [run] = client.call("list_runs")["runs"]
    expected = ask(hung.base, "--json").document
    for arguments in ({}, {"run": run["id"][:6]}, {"path": run["directory"]}, {"path": str(hung.base)}):
        answer = client.call("diagnose", **arguments)
        assert comparable(answer["diagnosis"]["verdict"]) == comparable(expected["verdict"])
        ranks = answer["diagnosis"]["ranks"]
        assert [rank["rank"] for rank in ranks] == [2, 0, 1, 3]
        assert comparable(sorted(ranks, key=lambda rank: rank["rank"])) == comparable(expected["ranks"])
        assert answer["summary"].startswith("rank 2 has not entered all_reduce")
        assert "next: " in answer["summary"]
        assert answer["runbook"] == ["otel-torchdist://docs/verdicts/absent"]
        assert answer["left_out"] == []


def test_some_ranks(client: Assistant) -> None:
    """Ranks can be named; one without a tape is an error that says so."""
    answer = client.call("diagnose", ranks=[3, 1])
    assert [rank["rank"] for rank in answer["diagnosis"]["ranks"]] == [1, 3]
    assert "rank 9 has no tape or dump here" in client.error_of("diagnose", ranks=[9])


def test_threshold(client: Assistant) -> None:
    """With a threshold of an hour nothing is stalled."""
    answer = client.call("diagnose", threshold_s=3600)
    assert answer["diagnosis"]["verdict"] is None
    assert answer["summary"] == "no verdict and no finding: no rank holds the others up"
    assert answer["runbook"] == []


def test_analysis(hung: GlooJobs, client: Assistant) -> None:
    """Each section is that of `analyze --json --only`, and only that section is there."""
    sections = ("advice", "path", "calls", "graph")
    for section in sections:
        answer = client.call("analyze", section=section)["analysis"]
        assert [key for key in sections if answer[key] is not None] == [section]
        expected = analyze(hung.base, "--json", only=section).document
        if section == "graph":
            assert answer["graph"] == expected["graph"]
        elif section == "calls":
            assert _counts(answer["calls"]) == _counts(expected["calls"])
    assert _counts(client.call("analyze", section="calls", by="operation", ranks=[2])["analysis"]["calls"]) == [
        ("init_process_group", 1),
        ("all_reduce", 5),
    ]
    assert client.error_of("analyze", section="calls", by="colour").startswith(
        "analyze: wrong arguments: 'colour': a list of"
    )


def _counts(statistics: dict[str, Any]) -> list[tuple[str, int]]:
    return [(row["operation"], row["calls"]) for row in statistics["rows"]]


def test_stacks_are_not_asked_for(hung: GlooJobs, client: Assistant) -> None:
    """Without --allow-stacks no rank is asked: the error names the option, and the tapes have no new file."""
    before = sorted(path.name for path in hung.base.rglob("*"))
    assert "start it with --allow-stacks" in client.error_of("stacks", ranks=[2], ask=True)
    [rank] = client.call("stacks", ranks=[2])["ranks"]
    assert (rank["threads"], rank["written"], rank["running"]) == ([], None, True)
    assert rank["problem"].startswith("no stacks have been written")
    assert sorted(path.name for path in hung.base.rglob("*")) == before
    assert client.tools()["stacks"].annotations.read_only_hint


@pytest.fixture
def asked(gloo: Callable[..., GlooJobs]) -> GlooJobs:
    """Another hung job, whose ranks may be asked."""
    jobs = gloo("is late")
    jobs.await_verdict()
    return jobs


@pytest.mark.thorough
def test_stacks(asked: GlooJobs) -> None:
    """With --allow-stacks a running rank writes its stacks, which show the line at which it is; then they are kept."""
    with assistant(asked.base, "--allow-stacks") as client:
        assert not client.tools()["stacks"].annotations.read_only_hint
        answer = client.call("stacks", ranks=[2, 0], ask=True)
        assert [rank["rank"] for rank in answer["ranks"]] == [0, 2]
        assert [(rank["source"], rank["problem"]) for rank in answer["ranks"]] == [("asked", None)] * 2
        frames = [thread["frames"][0] for thread in answer["ranks"][1]["threads"] if thread["frames"]]
        assert any(f"training.py:{LOADING_LINE}" in frame and "load_batch" in frame for frame in frames)
        kept = client.call("stacks", ranks=[2])["ranks"][0]
        assert (kept["source"], kept["written"]) == ("earlier", answer["ranks"][1]["written"])
        assert "rank 7: no tape on this node, which has ranks 0-3" in client.error_of("stacks", ranks=[7])


def test_bundle(hung: GlooJobs, tmp_path: Path) -> None:
    """A bundle is listed, diagnosed like the job at that moment, cannot be asked, and leaves nothing unpacked."""
    path = bundle_of(hung, tmp_path / "bundles", "verdict")
    (tmp_path / "temporary").mkdir()
    with assistant(
        hung.base, "--directory", path.parent, "--allow-stacks", TMPDIR=str(tmp_path / "temporary")
    ) as client:
        answer = client.call("list_runs")
        assert (answer["runs"], answer["bundles"]) == ([], [str(path)])
        for place in (path, path.parent):
            diagnosis = client.call("diagnose", path=str(place))
            assert diagnosis["diagnosis"]["run"]["directory"] == str(path)
            assert diagnosis["summary"].startswith("rank 2 has not entered all_reduce")
        [rank] = client.call("stacks", ranks=[2], path=str(path), ask=True)["ranks"]
        assert rank["problem"] == "it is a copy, and cannot be asked"
        assert [*(tmp_path / "temporary").rglob("*.tape")] == []
    assert os.listdir(tmp_path / "temporary") == []


def test_dumps(tmp_path: Path) -> None:
    """Dumps of the flight recorder are judged as by `diagnose`."""
    dumps = write(tmp_path / "dumps", late_rank(3, 2))
    with memory_directory() as base, assistant(base, "--directory", tmp_path) as client:
        answer = client.call("diagnose", path=str(dumps))
        expected = ask(base, dumps, "--json").document
        assert expected["verdict"] is not None
        assert comparable(answer["diagnosis"]["verdict"]) == comparable(expected["verdict"])
        assert "leave `run` out" in client.error_of("diagnose", path=str(dumps), run="12")
        assert "only job directories and bundles have stacks" in client.error_of("stacks", path=str(dumps), ranks=[0])


def test_report(hung: GlooJobs, tmp_path: Path) -> None:
    """The conclusions of a report come from its file alone; another page is refused."""
    page, other = tmp_path / "report.html", tmp_path / "other.html"
    assert analyze(hung.base, "--html", page).code == 0
    other.write_text("<html></html>")
    with assistant(hung.base, "--directory", tmp_path) as client:
        assert client.call("list_runs")["reports"] == [str(page)]
        report = client.call("read_report", path=str(page))["report"]
        assert report["heading"]["world_size"] == 4
        assert report["conclusions"][0]["sentence"].startswith("rank 2 has not entered all_reduce")
        assert client.error_of("read_report", path=str(other)).endswith(
            "not a report of `otel-torchdist analyze --html`"
        )
        content = page.read_text()
        page.write_text(content[: content.index('id="data"') + 50])
        assert "incomplete" in client.error_of("read_report", path=str(page))
        page.write_text(content.replace('id="data">', 'id="data">AAAA'))
        assert "a damaged report" in client.error_of("read_report", path=str(page))


def test_nothing_recorded() -> None:
    """Without a run the error says what to check, and the list is empty."""
    with memory_directory() as base, assistant(base) as client:
        assert client.call("list_runs")["runs"] == []
        assert "no run has left a tape here" in client.error_of("diagnose")
        assert "no run has left a tape here" in client.error_of("analyze", run="ab")


def test_wrong_arguments(client: Assistant) -> None:
    """Wrong arguments are errors of the tool in one line, which the assistant can correct."""
    assert client.error_of("diagnose", ranks=["a"]).startswith("diagnose: wrong arguments: Expected `int`, got `str`")
    assert "unknown field `rank`" in client.error_of("diagnose", rank=3)
    assert "no run begins with 0123456789" in client.error_of("diagnose", run="0123456789")
    assert "hexadecimal" in client.error_of("diagnose", run="../etc")
    assert "length <= 8" in client.error_of("stacks", ranks=list(range(9)))


def test_descriptions(client: Assistant) -> None:
    """Each tool says when to call it and how long its answer may be; each argument and result has a description."""
    for tool in client.tools().values():
        assert f"{MAX_CHARACTERS:,} characters" in tool.description
        for schema in (tool.input_schema, tool.output_schema):
            assert schema["type"] == "object"
            missing = [name for name, each in schema["properties"].items() if "description" not in each]
            assert missing == []
        assert not tool.annotations.destructive_hint


def test_nothing_is_written(hung: GlooJobs, client: Assistant) -> None:
    """Reading leaves every file of the job's directory as it is, apart from what the ranks themselves write."""

    def names() -> list[str]:
        return sorted(str(path) for path in hung.base.rglob("*"))

    before = names()
    for tool in ("list_runs", "diagnose", "analyze"):
        client.call(tool)
    assert names() == before
