"""The timeline that all pages share, in a real browser: what it draws, and how it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from otel_torchdist.show.pages.page import Page, html_of
from tests.support.browser import Browser
from tests.support.waiting import until

_BARS: Final = [
    {"begin": 0, "end": 40_000_000, "waited": 30_000_000, "tone": "--series-0", "label": "all_reduce"},
    {"begin": 50_000_000, "end": 60_000_000, "waited": None, "tone": "--series-1", "label": "all_gather"},
    {"begin": 70_000_000, "end": None, "waited": None, "tone": "--series-0", "label": "<img src=x onerror=alert(1)>"},
]
_MODEL: Final[dict[str, Any]] = {
    "from": 0,
    "until": 100_000_000,
    "lanes": [
        {"title": f"rank {rank}", "note": "default_pg", "isFirst": True, "bars": _BARS[: rank + 1]} for rank in range(3)
    ],
    "marks": [{"at": 45_000_000, "label": "step 3"}],
    "path": [{"lane": 0, "begin": 0, "end": 30_000_000}, {"lane": 1, "begin": 30_000_000, "end": 60_000_000}],
}
_SCRIPT: Final = """
const describe = (bar, lane) => [
  ["rank", lane.title], ["operation", bar.label], ["duration", duration(bar.end === null ? null : bar.end - bar.begin)],
];
const shown = new Timeline({...MODEL, describe}, "Calls");
document.querySelector("main").append(theme.button(), shown.element);
"""
_IS_IN_PLACE: Final = (
    "document.querySelector('.lanes canvas').drawn().width === document.querySelector('.frame').clientWidth"
)
"""It is drawn at a usual width before it has a place on the page, and again when it has."""
_CORNER: Final = """(() => {
  const context = document.querySelector('.frame canvas').getContext('2d');
  return [...context.getImageData(4, 4, 1, 1).data].slice(0, 3);
})()"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a timeline."""
    path = tmp_path_factory.mktemp("pages") / "timeline.html"
    path.write_text(html_of(Page("A timeline", "<main></main>", (_SCRIPT.replace("MODEL", json.dumps(_MODEL)),))))
    return path


def _drawn(page: Any) -> dict[str, Any]:
    until(lambda: page.evaluate(_IS_IN_PLACE))  # the page's policy forbids Playwright's own way to wait
    return page.evaluate("document.querySelector('.lanes canvas').drawn()")


def test_bars_are_drawn_where_their_times_are(browser: Browser, address: Path) -> None:
    """Each bar begins and ends at its share of the view, and an open one ends at the right edge."""
    with browser.page(address) as (page, seen):
        drawn = _drawn(page)
        assert [(bar["lane"], bar["place"]) for bar in drawn["bars"]] == [
            (0, 0),
            (1, 0),
            (1, 1),
            (2, 0),
            (2, 1),
            (2, 2),
        ]
        for bar in drawn["bars"]:
            end = 100_000_000 if bar["end"] is None else bar["end"]
            assert bar["x"] == pytest.approx(drawn["left"] + bar["begin"] / 1e8 * drawn["plotWidth"], abs=0.5)
            assert bar["x"] + bar["width"] == pytest.approx(drawn["left"] + end / 1e8 * drawn["plotWidth"], abs=0.5)
        assert drawn["path"] == 2
        assert (seen.errors, seen.requests) == ([], [])


def test_the_keyboard_selects_zooms_and_pans(browser: Browser, address: Path) -> None:
    """Arrows go from bar to bar and from lane to lane; + zooms around the selected bar; 0 shows everything again."""
    with browser.page(address) as (page, _):
        page.locator(".lanes canvas").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert _drawn(page)["selected"] == {"lane": 1, "place": 1}
        assert page.locator(".readout").inner_text().split("\n") == [
            "rank",
            "rank 1",
            "operation",
            "all_gather",
            "duration",
            "10.0 ms",
        ]
        page.keyboard.press("+")
        zoomed = _drawn(page)
        assert (zoomed["from"], zoomed["until"]) == (25_000_000, 75_000_000)
        page.keyboard.press("d")
        assert _drawn(page)["from"] == 37_500_000
        page.keyboard.press("0")
        assert (_drawn(page)["from"], _drawn(page)["until"]) == (0, 100_000_000)
        page.keyboard.press("Escape")
        assert _drawn(page)["selected"] is None


def test_the_mouse_drags_zooms_and_selects(browser: Browser, address: Path) -> None:
    """A drag moves the time under the mouse along, Ctrl and the wheel zoom around it, a click selects a bar."""
    with browser.page(address) as (page, _):
        drawn = _drawn(page)
        box = page.locator(".lanes canvas").bounding_box()
        assert box is not None
        middle = box["x"] + drawn["left"] + drawn["plotWidth"] / 2
        page.mouse.move(middle, box["y"] + 5)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -400)
        page.keyboard.up("Control")
        until(lambda: page.evaluate("document.querySelector('.lanes canvas').drawn().from > 0"))
        zoomed = _drawn(page)
        assert (zoomed["from"] + zoomed["until"]) / 2 == pytest.approx(50_000_000, rel=0.01)
        page.mouse.down()
        page.mouse.move(middle + 100, box["y"] + 5, steps=4)
        page.mouse.up()
        moved = (zoomed["until"] - zoomed["from"]) * 100 / zoomed["plotWidth"]
        assert _drawn(page)["from"] == pytest.approx(zoomed["from"] - moved, rel=0.02)
        page.keyboard.press("Tab")
        page.locator(".lanes canvas").focus()
        page.keyboard.press("0")
        page.mouse.click(box["x"] + drawn["left"] + 10, box["y"] + 5)
        assert _drawn(page)["selected"] == {"lane": 0, "place": 0}


def test_the_table_has_what_is_drawn(browser: Browser, address: Path) -> None:
    """Those who cannot see the canvas find the same operations in a table, and a hostile name is text in it."""
    with browser.page(address) as (page, seen):
        page.get_by_text("Operations in view, as a table").click()
        rows = page.locator(".timeline tbody tr")
        rows.first.wait_for()
        assert rows.count() == 6
        assert rows.last.inner_text().split("\t")[:2] == ["rank 2", "<img src=x onerror=alert(1)>"]
        assert page.locator("img").count() == 0
        assert (seen.errors, seen.requests) == ([], [])


def test_dark_and_light_repaint_the_canvas(browser: Browser, address: Path) -> None:
    """The switch changes the colours of the page and of the canvas, whatever the system prefers."""
    with browser.page(address, dark=True) as (page, _):
        dark = page.evaluate(_CORNER)
        page.get_by_role("button", name="Switch to light colors").click()
        light = page.evaluate(_CORNER)
        assert max(dark) < 60 < 200 < min(light)
