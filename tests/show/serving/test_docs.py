"""The pages at `/docs`, beside the metrics and the live page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from posixpath import normpath
from urllib.parse import urldefrag, urljoin

import pytest

from otel_torchdist.config import PageAccess
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.show.serving.docs import NAMES
from tests.show.serving.test_metrics_page import BODY_VALUE, get
from tests.show.serving.test_site import ask
from tests.support.repository import REPOSITORY
from tests.support.worlds.live_pages import Served, served

ASSETS = REPOSITORY / "otel_torchdist" / "show" / "serving" / "assets"


class Elements(HTMLParser):
    """The elements of a page, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.tags.append((tag, dict(attrs)))

    def values(self, attribute: str) -> list[str]:
        """All values of an attribute."""
        return [value for _, attributes in self.tags if (value := attributes.get(attribute)) is not None]


@pytest.fixture(scope="module", params=PageAccess, ids=lambda access: access.value)
def site(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server with each setting of the live page."""
    with served(None, request.param) as site:
        yield site


@pytest.mark.parametrize("name", NAMES)
def test_page(site: Served, name: str) -> None:
    """Each page is served as a document without scripts, whose links lead to headings of pages that are served."""
    answer, body = ask(site, f"/docs/{name}")
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    page = Elements(body.decode())
    assert "script" not in [tag for tag, _ in page.tags]
    assert page.values("src") == []
    for link in page.values("href"):
        if link == "data:,":  # no icon
            continue
        target, heading = urldefrag(urljoin(f"/docs/{name}", link))
        answer, body = ask(site, target)
        assert answer.status == 200, link
        assert not heading or heading in Elements(body.decode()).values("id"), link


def test_a_page_for_each_verdict() -> None:
    """A page is rendered for each kind of verdict, and there is no other file but their style."""
    files = {str(path.relative_to(ASSETS)) for path in ASSETS.rglob("*") if path.is_file()}
    assert files == {"docs.css", *(f"{name}.html" for name in NAMES)}
    assert {f"verdicts/{kind.value}" for kind in VerdictKind} == {name for name in NAMES if "/" in name}


@pytest.mark.parametrize(
    "path",
    [
        "/docs/",
        "/docs/docs.css",
        "/docs/verdicts/",
        "/docs/verdicts/absent.html",
        "/docs/verdicts/absent/",
        "/docs//verdicts/absent",
        "/docs/verdicts/../verdicts/absent",
        "/docs/verdicts/%2e%2e/docs.css",
        "/docs/../../site.py",
        "/docs/..%2f..%2fsite.py",
        "/docs//etc/passwd",
        "/docs/%2fetc/passwd",
        "/docs/verdicts/absent%00",
        "/docs/ABSENT",
    ],
)
def test_nothing_else(site: Served, path: str) -> None:
    """No other file can be read below /docs."""
    answer, body = ask(site, path)
    assert answer.status == 404
    assert body == b"There are /docs/verdicts, /docs/findings and /docs/alerts.\n"


def test_the_bare_address(site: Served) -> None:
    """It leads to the page on verdicts."""
    answer, _ = ask(site, "/docs")
    assert answer.status == 303
    assert normpath(urljoin("/docs", answer.getheader("Location") or "")) == "/docs/verdicts"


def test_headers(site: Served) -> None:
    """The policy allows the page's own style and nothing else; every answer has one."""
    policy = ask(site, "/docs/verdicts/absent")[0].getheader("Content-Security-Policy") or ""
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-\S+'; img-src data:; base-uri 'none'; form-action 'none'; "
        r"frame-ancestors 'none'",
        policy,
    )
    for path in ("/docs/verdicts/absent", "/docs/nothing", "/docs"):
        answer, _ = ask(site, path)
        assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("X-Frame-Options") == "DENY"


def test_it_is_read_only(site: Served) -> None:
    """Other methods are refused, and HEAD has the headers without the body."""
    answer, _ = ask(site, "/docs/verdicts/absent", "POST")
    assert (answer.status, answer.getheader("Allow")) == (405, "GET, HEAD")
    answer, body = ask(site, "/docs/verdicts/absent", "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.getheader("Content-Length") or 0) > 0


def test_everyone_may_read_them(site: Served) -> None:
    """They hold nothing of a job, so whoever reaches the metrics gets them, under any name; the metrics stay."""
    assert ask(site, "/docs/verdicts/absent", Host="node-1.example:9464")[0].status == 200
    assert BODY_VALUE in get(site.port)
