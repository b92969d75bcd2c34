"""Metadata of a release's files, and the check of the description that an index shows."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

from release.outcomes import Outcome, Result, outcome

_ELSEWHERE: Final = re.compile(r"[a-z]+:|#")
_NOT_YET: Final = "There is no release on a package index yet"
"""README's sentence until the first release."""


def metadata_of(file: Path) -> Message:
    """Return the metadata of a wheel or of sources."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            return Parser().parsestr(wheel.read(name).decode())
    with tarfile.open(file) as archive:
        [member] = [member for member in archive if member.name.count("/") == 1 and member.name.endswith("/PKG-INFO")]
        content = archive.extractfile(member)
        return Parser().parsestr(content.read().decode() if content else "")


def check_descriptions(files: Sequence[Path], repository: str, tag: str) -> list[Outcome]:
    """Check that the descriptions, as an index shows them, have no links to files that only a checkout has.

    twine does not render Markdown.

    Args:
        files: Wheels and sources.
        repository: Address of the repository; '' if unknown, and links cannot work then.
        tag: The tag of this release; '' without one.
    """
    return [_check_description(file, repository, tag) for file in files]


def _check_description(file: Path, repository: str, tag: str) -> Outcome:
    check = "links of the description"
    described = metadata_of(file)
    relative = [link for link in _links_of(str(described.get_payload())) if not _ELSEWHERE.match(link)]
    if tag and _NOT_YET in str(described.get_payload()):
        return outcome(check, file.name, f"README says: {_NOT_YET}")
    if relative and not (repository or tag):
        detail = f"{len(relative)} are relative: without --repository they lead nowhere on an index"
        return Outcome(check, file.name, Result.NOT_RUN, detail)
    trouble = f"{len(relative)} are relative, such as {relative[0]}" if relative else ""
    return outcome(check, file.name, trouble)


def _links_of(page: str) -> Iterator[str]:
    """Yield where the links and images of a page in Markdown lead."""
    for block in MarkdownIt("commonmark").enable("table").parse(page):
        for token in block.children or ():
            link = token.attrGet("href") or token.attrGet("src")
            if link:
                yield str(link)
