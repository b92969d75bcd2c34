"""Pages on evidence hold their commands where tests find them."""

from __future__ import annotations

import pytest

from tests.support.pages import commands_elsewhere, commands_of, page


@pytest.mark.parametrize(
    "name",
    ["flight-recorder.md", "leftovers.md", "logs-and-stacks.md", "reproduce.md", "statistics.md", "timeline.md"],
)
def test_commands_are_in_blocks_for_a_shell(name: str) -> None:
    """No command stands in another block, where it would not be run."""
    text = page(name)
    assert commands_of(text)
    assert commands_elsewhere(text) == []
