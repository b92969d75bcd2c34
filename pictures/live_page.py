"""The live page of a job that stalls, as a browser shows it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Route

from deploy.native.live_page import address_of
from deploy.native.servers import DEPLOY
from deploy.native.training import running, training_command, training_environment
from tests.support.browser import running_browser

WIDTH: Final = 1280
HEIGHT: Final = 1135
INTO_THE_STALL_MS: Final = 8_000


def draw_live_page(path: Path, tapes: Path, deadline_s: float) -> None:
    """Let a job stall, and take a picture of its page meanwhile.

    Args:
        path: The PNG to write.
        tapes: An empty base directory.
        deadline_s: How long to wait for the stall.

    Raises:
        TimeoutError: No agent serves a page.
    """
    deadline = time.monotonic() + deadline_s
    environment = training_environment("", tapes, 5.0) | {"OTEL_TRACES_EXPORTER": "none"}
    with running(training_command(4, 60, 40.0), environment, tapes / "training.log"):
        while (address := address_of(tapes)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError("no agent serves a page")
            time.sleep(0.2)
        with running_browser() as browser, browser.page(address, width=WIDTH, height=HEIGHT) as (page, _):
            page.route("**/live.json*", _without_our_paths)
            page.wait_for_selector(".banner.bad pre", timeout=max(deadline - time.monotonic(), 1) * 1000)
            page.wait_for_timeout(INTO_THE_STALL_MS)
            page.screenshot(path=path)
            page.unroute_all(behavior="ignoreErrors")  # a poll may be under way


def _without_our_paths(route: Route) -> None:
    """Show the repository as if it were a user's folder: a picture should not depend on where it was taken."""
    answer = route.fetch()
    route.fulfill(response=answer, body=answer.text().replace(str(DEPLOY.parent), "/srv/train"))
