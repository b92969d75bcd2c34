"""Phrases that a reader has to solve are rare in the package and in the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.support.repository import REPOSITORY

MOST: Final = 80
"""Phrases in the whole project. A few are plain where they stand, such as "as far as the kernel knows"."""
PHRASE: Final = re.compile(r"\b(ones? that|those of|so many|of which|as far as)\b", re.IGNORECASE)
RIDDLE: Final = re.compile(r'"""(What|How far|How many|That which|Which)\b')
"""A docstring that does not begin with the subject."""
NEW_LINE: Final = re.compile(r"\s*\n\s*(#\s*)?")


def _phrases() -> Iterator[str]:
    """Yield each phrase as `file: phrase`."""
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    for path in [*pages, *(REPOSITORY / "otel_torchdist").rglob("*.py")]:
        text = path.read_text()
        for phrase in _phrases_in(text):
            yield f"{path.relative_to(REPOSITORY)}: {phrase}"


def _phrases_in(text: str) -> list[str]:
    """Return the phrases of a text, also those that a line break divides."""
    return [
        *(match[0] for match in PHRASE.finditer(NEW_LINE.sub(" ", text))),
        *(match[0] for match in RIDDLE.finditer(text)),
    ]


def test_phrases_are_found() -> None:
    """A phrase is found in a docstring, in a comment over two lines, and at the begin of a docstring."""
    assert _phrases_in('"""What it does, one that') == ["one that", '"""What']
    assert _phrases_in("# as far\n    # as it is known") == ["as far as"]
    assert _phrases_in('"""Return the rank."""') == []


def test_few_phrases_are_riddles() -> None:
    """The package and the docs have few of them."""
    phrases = list(_phrases())
    assert len(phrases) <= MOST, "\n".join(phrases)
