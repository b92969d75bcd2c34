"""The picture of the live page: a real job that stalls, its agent, and Debian's chromium."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Route, sync_playwright

from deploy.native.live_page import address_of
from deploy.native.servers import DEPLOY
from deploy.native.training import running, training_command, training_environment

WIDTH: Final = 1280
HEIGHT: Final = 1240
STALL_S: Final = 14
"""How far into the stall the picture is taken."""


def photograph_page(tapes: Path, picture: Path, deadline_s: float) -> None:
    """Take the picture some seconds into a stall.

    Args:
        tapes: An empty base directory.
        picture: The file to write, a PNG.
        deadline_s: How long to wait for the stall.

    Raises:
        TimeoutError: The stall does not show.
    """
    deadline = time.monotonic() + deadline_s
    environment = training_environment("", tapes, 5.0) | {"OTEL_TRACES_EXPORTER": "none"}
    with running(training_command(4, 60, 40.0), environment, tapes / "training.log"):
        while (address := address_of(tapes)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError("no agent serves a page")
            time.sleep(0.2)
        with sync_playwright() as playwright:
            path = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS, chromium_sandbox=False)
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.route("**/live.json*", _without_our_paths)
            page.goto(address)
            page.wait_for_selector(".banner.bad pre", timeout=max(deadline - time.monotonic(), 1) * 1000)
            page.wait_for_timeout((STALL_S - 6) * 1000)
            page.screenshot(path=picture)
            browser.close()


def _without_our_paths(route: Route) -> None:
    """Show the repository as if it were a user's folder: a picture should not depend on where it was taken."""
    answer = route.fetch()
    route.fulfill(response=answer, body=answer.text().replace(str(DEPLOY.parent), "/srv/train"))


# Without a user namespace, as in most containers, chromium's sandbox cannot be set up.
_ARGUMENTS: Final = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
