"""Opens pages in a real browser: Debian's Chromium, driven headless, with nothing downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser as PlaywrightBrowser
    from playwright.sync_api import ConsoleMessage, Page

_NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first is Chromium without windows, which take most of its processor time."""
_MISSING: Final = "needs a browser: `make browser` installs Debian's Chromium"
_OTHER_TESTS: Final = "net::ERR_NETWORK_CHANGED"
"""What the browser makes of other tests' networks, which come and go on the same machine: it ends its requests."""


@dataclass
class Seen:
    """What a page did that it should not do.

    Attributes:
        errors: Messages of its console that are errors or warnings, and exceptions.
        requests: Addresses it asked for, other than that of the page itself.
    """

    errors: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])

    def note(self, message: ConsoleMessage) -> None:
        """Keep a message of the console, if it is one to worry about."""
        if message.type in ("error", "warning") and _OTHER_TESTS not in message.text:
            self.errors.append(message.text)


def find_browser() -> str | None:
    """Where the browser is; None if there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def browser_path() -> str:
    """Where the browser is; skips the test where there is none, and fails it in CI."""
    path = find_browser()
    if path is not None:
        return path
    if os.environ.get("CI"):
        pytest.fail(_MISSING)
    pytest.skip(_MISSING)


def loaded(load: Callable[[], object]) -> None:
    """Load a page, again and again as long as other tests' networks end its requests."""
    from playwright.sync_api import Error

    def is_loaded() -> bool:
        try:
            load()
        except Error as error:
            if _OTHER_TESTS not in error.message:
                raise
            return False
        return True

    until(is_loaded)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser, to be shared by the tests of a module: it takes a second to start."""
    path = browser_path()
    from playwright.sync_api import sync_playwright

    # Without a user namespace, as in most containers, Chromium's sandbox cannot be set up.
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"], chromium_sandbox=False
        )
        try:
            yield Browser(chromium)
        finally:
            chromium.close()


class Browser:
    """Opens pages, each with a profile of its own."""

    def __init__(self, chromium: PlaywrightBrowser) -> None:
        self._chromium = chromium

    @contextmanager
    def quiet_page(self, address: str | Path, **options: Any) -> Iterator[Page]:
        """Open a page that must have no errors in the end, and that asks for nothing if it is a file; see `page`."""
        with self.page(address, **options) as (page, seen):
            yield page
            assert seen.errors == []
            assert not (isinstance(address, Path) and seen.requests)

    @contextmanager
    def page(
        self, address: str | Path, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> Iterator[tuple[Page, Seen]]:
        """Open a file or an address.

        Args:
            address: A file, or an address of a server.
            width: Of the window, in CSS pixels.
            height: Of the window, in CSS pixels.
            dark: What the system prefers.
        """
        where = address.resolve().as_uri() if isinstance(address, Path) else address
        context = self._chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", locale="en-GB"
        )
        try:
            page, seen = context.new_page(), Seen()
            page.on("console", seen.note)
            page.on("pageerror", lambda error: seen.errors.append(str(error)))
            page.on("request", lambda request: seen.requests.append(request.url))
            loaded(lambda: page.goto(where))
            seen.requests = [request for request in seen.requests if request != where]
            yield page, seen
        finally:
            context.close()
