"""The report on a demo, as a browser shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.browser import running_browser

WIDTH = 1280
HEIGHT = 1165


def draw_report(path: Path, scratch: Path) -> None:
    """Run a demo, and take a picture of its report around the stall.

    Args:
        path: The PNG to write.
        scratch: An empty directory.
    """
    report = scratch / "report.html"
    command = [str(Path(sys.executable).parent / "otel-torchdist"), "demo", "--plain"]
    command += ["--output", str(scratch / "demo.jsonl"), "--report", str(report)]
    subprocess.run(command, env=dict(os.environ), stdout=subprocess.DEVNULL, check=True)
    with running_browser() as browser, browser.page(report, width=WIDTH, height=HEIGHT) as (page, _):
        page.locator("#incidents").get_by_role("button", name="Timeline").first.click()
        # The heading has paths of this machine.
        page.evaluate("document.getElementById('heading').remove(); document.activeElement.blur(); scrollTo(0, 0)")
        page.wait_for_timeout(500)
        page.screenshot(path=path)
