"""The runbook pages and the prompt that an assistant gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_torchdist.cli.mcp.guidance import HANG_PROMPT, INSTRUCTIONS, hang_steps
from otel_torchdist.cli.mcp.pages import PAGES, SCHEME, address_of, text_of, title_of
from otel_torchdist.cli.mcp.roots import ReadableRoots
from otel_torchdist.cli.mcp.targets import RunTargets
from otel_torchdist.cli.mcp.tools import tools_for
from otel_torchdist.config import Config
from otel_torchdist.errors import RunError
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.commands.assistant import assistant


def test_over_the_protocol(base: Path) -> None:
    """All pages are listed with their titles and can be read; a page that does not exist is an error."""
    with assistant(base) as client:
        pages = client.resources()
        assert pages[address_of("verdicts/absent")] == "Why do the others wait for a rank that is alive? (`absent`)"
        assert client.read(address_of("verdicts/absent")) == text_of(address_of("verdicts/absent"))
        assert len(pages) == len(PAGES)
        with pytest.raises(Exception, match="no such page"):
            client.read(f"{SCHEME}../../../pyproject.toml")
        prompt = client.prompt(HANG_PROMPT, job="the one on node 3")
        assert prompt.startswith("Why does this training job hang: the one on node 3?")


def test_every_verdict_has_a_page() -> None:
    """Each kind of verdict has a page with the next step, and each page has a title."""
    for kind in VerdictKind:
        assert "## What to do now" in text_of(address_of(f"verdicts/{kind.value}"))
    assert all(title_of(name) and not title_of(name).startswith("#") for name in PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_links(name: str) -> None:
    """Links lead to other resources or to the network, and not to files that an assistant cannot read."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(address_of(name))):
        if target.startswith(SCHEME):
            assert text_of(target)
        else:
            assert target.startswith("https://")


@pytest.mark.parametrize(
    "address",
    ["", "verdicts/absent", f"{SCHEME}../pages.py", f"{SCHEME}verdicts/", "file:///etc/passwd", f"{SCHEME}/etc"],
)
def test_other_addresses(address: str) -> None:
    """No other file can be read, whatever the address."""
    with pytest.raises(RunError, match="no such page"):
        text_of(address)


def test_guidance_names_tools_that_exist() -> None:
    """What the instructions and the prompt tell an assistant to call and to look at exists."""
    config = Config.from_environment()
    tools = tools_for(RunTargets(ReadableRoots([], config), config), may_ask=False)
    for text in (INSTRUCTIONS, hang_steps("")):
        named = set(re.findall(r"[Cc]all (\w+)", text)) - {"it"}
        assert named <= tools.keys()
        assert {"list_runs", "diagnose"} <= named | set(re.findall(r"\w+", text))
