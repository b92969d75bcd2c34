"""The runbook pages that an assistant can read: Markdown that `make docs` copies into `runbooks` beside this file."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from otel_torchdist.errors import RunError
from otel_torchdist.model.text import readable
from otel_torchdist.show.serving.docs import NAMES

SCHEME: Final = "otel-torchdist://docs/"
MARKDOWN: Final = "text/markdown"
PAGES: Final = (*NAMES, "advice", "critical-path", "deaths", "glossary", "timeouts")
"""Page names, which follow `SCHEME` in the address. No other file can be read."""


def is_page(name: str) -> bool:
    """Return whether there is a page of this name."""
    return name in PAGES


def address_of(name: str) -> str:
    """Return the address of a page."""
    return f"{SCHEME}{name}"


def text_of(address: str) -> str:
    """Return the Markdown of a page.

    Args:
        address: Such as `otel-torchdist://docs/verdicts/absent`, also with `.md` or a heading after `#`.

    Raises:
        RunError: There is no such page.
    """
    name = address.partition("#")[0].removeprefix(SCHEME).removesuffix(".md")
    if not is_page(name) or not address.startswith(SCHEME):
        raise RunError(f"{readable(address)}: no such page; resources/list has all of them")
    return _source(name)


def title_of(name: str) -> str:
    """Return the title of a page, its first heading."""
    return _source(name).partition("\n")[0].lstrip("# ")


def _source(name: str) -> str:
    path = files("otel_torchdist.cli.mcp").joinpath("runbooks", *f"{name}.md".split("/"))
    return path.read_text(encoding="utf-8")
