"""Pages of the documentation, from which tests take the commands that they run."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from tests.support.repository import REPOSITORY

PROGRAMS: Final = ("curl", "ncclras", "otel-torchdist", "py-spy", "torchfrtrace", "torchrun", "while")
_BLOCK: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SHELLS: Final = ("sh", "bash")
_INLINE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
PAGES: Final = (
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "deploy/README.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
)
"""All pages with commands for users and contributors."""


def page(name: str) -> str:
    """The text of a page in `docs`."""
    return (REPOSITORY / "docs" / name).read_text()


def block_after(text: str, begin: str) -> str:
    """The content of the first block of code behind some text of a page."""
    before, found, behind = text.partition(begin)
    assert found, before[:80]
    blocks = _BLOCK.search(behind)
    assert blocks is not None
    return textwrap.dedent(blocks[3])


def commands_of(text: str) -> list[str]:
    """The commands of a page's blocks for a shell, each with the indented lines and the `done` that follow it."""
    commands: list[str] = []
    for _, language, block in _BLOCK.findall(text):
        if language not in _SHELLS:
            continue
        for line in textwrap.dedent(block).splitlines():
            if line.startswith((" ", "done")):
                commands[-1] += f"\n{line}"
            elif line:
                commands.append(line)
    return commands


def code_of(text: str) -> list[str]:
    """The code in a page's sentences and the lines of its blocks, except blocks of another language than a shell's."""
    blocks = [block for _, language, block in _BLOCK.findall(text) if language in ("", *_SHELLS)]
    sentences = _INLINE.findall(_BLOCK.sub("", text))
    return [*(" ".join(code.split()) for code in sentences), *(line for block in blocks for line in block.splitlines())]


def commands_elsewhere(text: str) -> list[str]:
    """Lines that look like commands in blocks that are not for a shell: no test would run them."""
    return [
        line
        for _, language, block in _BLOCK.findall(text)
        if language not in (*_SHELLS, "python")
        for line in block.splitlines()
        if line.strip().startswith(tuple(f"{program} " for program in PROGRAMS))
    ]
