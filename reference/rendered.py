"""Markdown rendered to HTML for the agent, which serves it at `/docs` and has no Markdown library itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from otel_torchdist.cli.mcp.pages import PAGES, address_of
from otel_torchdist.show.serving.docs import NAMES

_RENDERER: Final = MarkdownIt("commonmark", {"html": False}).enable("table")
_COMMENT: Final = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_LINK: Final = re.compile(r"\[([^\]\n]+)\]\(([^)\s]+)\)")


def rendered_pages(docs: Path, made: Mapping[str, str]) -> dict[str, str]:
    """Return the HTML of each served page by its name.

    Args:
        docs: The folder with the pages in Markdown.
        made: Markdown of pages that are made from code, by name. It is newer than their files.
    """
    sources = {name: made.get(name) or (docs / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}
    return {name: rendered(source, name) for name, source in sources.items()}


def assistant_pages(docs: Path, made: Mapping[str, str]) -> dict[str, str]:
    """Return the Markdown of each page that assistants can read, by its name.

    Args:
        docs: The folder with the pages.
        made: Pages that are made from code, by name. They are newer than their files.
    """
    sources = {name: made.get(name) or (docs / f"{name}.md").read_text(encoding="utf-8") for name in PAGES}
    return {name: _with_addresses(_COMMENT.sub("", source), name) for name, source in sources.items()}


def _with_addresses(text: str, name: str) -> str:
    """Point links at resources. A link to any other page becomes text that names the file in the repository."""

    def replaced(match: re.Match[str]) -> str:
        words, target = match.groups()
        path, hash_sign, heading = target.partition("#")
        page = _resolved(path, name).removesuffix(".md") if path else name
        if ":" in path:
            return match[0]
        return (
            f"[{words}]({address_of(page)}{hash_sign}{heading})"
            if page in PAGES
            else f"{words} ({_file(target, name)})"
        )

    return _LINK.sub(replaced, text)


def rendered(text: str, name: str) -> str:
    """Render one page.

    Args:
        text: The page in Markdown.
        name: One of `NAMES`, from which relative links start.
    """
    tokens = _RENDERER.parse(_COMMENT.sub("", text))
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            token.attrSet("id", heading_id(following.content))
        if token.type == "inline" and token.children:
            token.children = _with_served_links(token.children, name)
    html = _RENDERER.renderer.render(tokens, _RENDERER.options, {})
    return html.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")


def heading_id(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _with_served_links(children: Sequence[Token], name: str) -> list[Token]:
    """Point links at served pages. A link to any other page becomes text that names the file in the repository."""
    kept: list[Token] = []
    unserved = ""
    for token in children:
        if token.type == "link_open":
            target = str(token.attrGet("href"))
            served = _served(target, name)
            unserved = "" if served else _file(target, name)
            if served:
                token.attrSet("href", served)
                kept.append(token)
        elif token.type == "link_close" and unserved:
            kept.append(Token("text", "", 0, content=f" ({unserved})"))
            unserved = ""
        else:
            kept.append(token)
    return kept


def _served(target: str, name: str) -> str:
    """Return the relative address of a served page; '' if the target is not served."""
    path, hash_sign, heading = target.partition("#")
    if path and _resolved(path, name).removesuffix(".md") not in NAMES:
        return ""
    return f"{path.removesuffix('.md')}{hash_sign}{heading}"


def _file(target: str, name: str) -> str:
    """Return the file of a page that is not served, relative to the repository; an external address stays as it is."""
    path = target.partition("#")[0]
    return target if ":" in path else str(PurePosixPath("docs") / _resolved(path, name))


def _resolved(path: str, name: str) -> str:
    """Return a relative path as seen from the folder of all pages."""
    parts: list[str] = [*PurePosixPath(name).parent.parts]
    for part in PurePosixPath(path).parts:
        if part == "..":
            parts = parts[:-1] if parts else [".."]
        else:
            parts.append(part)
    return "/".join(parts)
