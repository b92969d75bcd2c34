"""Assembles a page: one document that contains its style and scripts, and a policy that allows nothing else.

`body` is our own markup and must not contain anything from a job. Data from a job is inserted by scripts as text.
"""

from __future__ import annotations

import base64
import gzip
import html
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from typing import Final

STYLE: Final = "look.css"
SHARED_SCRIPTS: Final = (
    "dom.js",
    "units.js",
    "theme.js",
    "operations.js",
    "timeline.js",
    "timeline_paint.js",
    "heatmap.js",
    "tables.js",
    "data.js",
)
DATA_ID: Final = "data"


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        title: Title of the window. Any text: it is escaped.
        body: Markup of the body. Must not contain anything from a job.
        scripts: JavaScript sources that follow `SHARED_SCRIPTS`; all of them share one scope. None for a page
            without any script.
        data: JSON that the scripts read with `pageData()`; None if the page has none.
        style: CSS that follows the shared style.
        connects: Whether scripts may send requests to the page's own server.
    """

    title: str
    body: str
    scripts: Sequence[str] | None
    data: bytes | None = None
    style: str = ""
    connects: bool = False


def asset(package: str, name: str) -> str:
    """Return the text of a file in the folder `assets` of a package of `otel_torchdist.show`."""
    folder = resources.files(f"otel_torchdist.show.{package}")
    return folder.joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def shared(name: str) -> str:
    """Return the source of a shared asset."""
    return asset("pages", name)


def policy_of(page: Page) -> str:
    """Return the page's Content-Security-Policy: only its own style and script are allowed."""
    parts = [
        "default-src 'none'",
        *([] if page.scripts is None else [f"script-src {_hashed(_script(page.scripts))}"]),
        f"style-src {_hashed(_style(page))}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if page.connects:
        parts.append("connect-src 'self'")
    return "; ".join(parts)


def html_of(page: Page, marker: str = "") -> str:
    """Return the document.

    Args:
        page: The page.
        marker: A comment in the second line that identifies our files.
    """
    comment = f"<!-- {marker} -->\n" if marker else ""
    script = "" if page.scripts is None else f"<script>{_script(page.scripts)}</script>\n"
    return (
        f'<!DOCTYPE html>\n{comment}<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy_of(page)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(page.title)}</title>\n<style>{_style(page)}</style>\n</head>\n"
        f"<body>\n{page.body}\n{_data(page)}{script}</body>\n</html>\n"
    )


def _style(page: Page) -> str:
    return "\n".join((shared(STYLE), page.style))


def _script(scripts: Sequence[str]) -> str:
    """Return all scripts, wrapped in one scope."""
    sources = "\n".join((*(shared(name) for name in SHARED_SCRIPTS), *scripts))
    return f'"use strict";\n{{\n{sources}\n}}\n'


def _data(page: Page) -> str:
    """Return the data in an element that browsers do not run. Base64 cannot contain its end tag."""
    if page.data is None:
        return ""
    packed = base64.b64encode(gzip.compress(page.data, compresslevel=9, mtime=0)).decode("ascii")
    return f'<script type="text/plain" id="{DATA_ID}">{packed}</script>\n'


def _hashed(source: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(source.encode()).digest()).decode('ascii')}'"
