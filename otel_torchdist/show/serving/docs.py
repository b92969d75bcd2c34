"""Serves the pages on verdicts, findings and alerts at `/docs`, to everyone who reaches the port of `/metrics`.

The pages hold nothing of a job, so they need no access rule. They are written in Markdown in `docs` and rendered by
`make docs`, because an agent has no Markdown library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

from otel_torchdist import guard
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.show.pages.page import Page, asset, html_of, policy_of
from otel_torchdist.show.serving.http_server import App
from otel_torchdist.show.serving.site import HTML, READ_ONLY, HttpAnswer, PackedBodies, respond

DOCS: Final = "/docs"
NAMES: Final = ("verdicts", "findings", "alerts", *(f"verdicts/{kind.value}" for kind in VerdictKind))
"""Page names, which follow `/docs/` in the address. No other file can be read."""
_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"
_SECTIONS: Final = (("verdicts", "Verdicts"), ("findings", "Findings"), ("alerts", "Alerts"))


def with_docs(app: App) -> App:
    """Return an application that serves `/docs` itself and leaves every other path to `app`."""
    packed = PackedBodies()

    def served(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO") or "/"
        if path != DOCS and not path.startswith(f"{DOCS}/"):
            return app(environ, start_response)
        answer, policy = (
            HttpAnswer("500 Internal Server Error", b"The page failed; the agent's log says why.\n"),
            _POLICY,
        )
        with guard.guarded("the pages at /docs"):
            answer, policy = _answer(path.removeprefix(f"{DOCS}/"), environ["REQUEST_METHOD"])
        return respond(answer, policy, packed, environ, start_response)

    return served


def _answer(name: str, method: str) -> tuple[HttpAnswer, str]:
    if name == DOCS:
        return HttpAnswer("303 See Other", b"", headers=(("Location", "docs/verdicts"),)), _POLICY
    if name not in NAMES:
        return HttpAnswer("404 Not Found", b"There are /docs/verdicts, /docs/findings and /docs/alerts.\n"), _POLICY
    if method not in ("GET", "HEAD"):
        return READ_ONLY, _POLICY
    page = page_of(name)
    return HttpAnswer("200 OK", html_of(page).encode(), HTML), f"{policy_of(page)}; frame-ancestors 'none'"


@functools.cache
def page_of(name: str) -> Page:
    """Return a page; `name` is one of `NAMES`."""
    up = "../" * name.count("/")
    links = "".join(_link(f"{up}{target}", title, name.startswith(target)) for target, title in _SECTIONS)
    bar = f'<header class="bar-top"><span class="brand">otel_torchdist</span><nav>{links}</nav></header>'
    body = f'{bar}\n<main><article class="card">\n{asset("serving", f"{name}.html")}</article></main>'
    return Page(f"{name.rpartition('/')[2]} · otel_torchdist", body, scripts=None, style=asset("serving", "docs.css"))


def _link(address: str, title: str, is_here: bool) -> str:
    current = ' aria-current="true"' if is_here else ""
    return f'<a href="{address}"{current}>{title}</a>'
