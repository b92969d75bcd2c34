"""The page about assistants: its configurations start servers, and its figures are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from otel_torchdist.cli.mcp.bounds import MAX_CHARACTERS
from otel_torchdist.cli.mcp.guidance import HANG_TITLE
from otel_torchdist.cli.mcp.pages import SCHEME
from otel_torchdist.cli.mcp.questions import MAX_ASKED
from tests.support.commands.asking import ask
from tests.support.commands.assistant import assistant
from tests.support.documented import commands_of, page
from tests.support.repository import REPOSITORY

PAGE: Final = page("assistants.md")


def _documents() -> list[Any]:
    return [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]


def test_configurations(base: Path, tmp_path: Path) -> None:
    """The page's arguments start a server that answers the page's call; directories are those of this machine."""
    usual, chosen, call, answer, rank = _documents()
    [server] = usual["mcpServers"].values()
    assert server["command"].endswith("/otel-torchdist")
    assert server["args"] == ["mcp"]
    directories = [argument for argument in chosen["args"] if argument.startswith("/")]
    for directory in directories:
        (tmp_path / directory[1:]).mkdir(parents=True)
    arguments = [f"{tmp_path}{argument}" if argument in directories else argument for argument in chosen["args"]]
    with assistant(base, *arguments[1:]) as client:
        listed = client.call("list_runs")
        assert listed["directories"] == [f"{tmp_path}{directory}" for directory in directories]
        tools = client.tools()
        assert call["params"]["name"] in tools
        properties = tools["diagnose"].output_schema["properties"]
        assert answer.keys() <= properties.keys()
        assert rank.keys() <= tools["stacks"].output_schema["$defs"]["RankStacks"]["properties"].keys()
        assert {*answer["runbook"]} <= client.resources().keys()


def test_what_it_names(base: Path) -> None:
    """The table lists exactly the tools, and figures and names are those of the code."""
    with assistant(base) as client:
        assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == [*client.tools()]
    assert f"at most {MAX_CHARACTERS:,} characters" in PAGE
    assert f"up to {MAX_ASKED} ranks" in PAGE
    assert f"*{HANG_TITLE}*" in PAGE
    assert f"`{SCHEME}verdicts/absent`" in PAGE


def test_commands(base: Path) -> None:
    """The first command installs an extra that exists, and the second shows the options that the page names."""
    install, show = commands_of(PAGE)
    assert install.endswith("pip install -q '.[mcp]'")
    extras = (REPOSITORY / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    assert re.search(r"^mcp = \[", extras, re.MULTILINE)
    program, *arguments = show.split()
    assert program.endswith("/bin/otel-torchdist")
    answer = ask(base, *arguments[1:], command=arguments[0])
    assert answer.code == 0
    assert {"--directory", "--allow-stacks"} <= {*re.findall(r"--[a-z-]+", PAGE)}
    assert all(option in answer.out for option in ("--directory", "--allow-stacks"))
