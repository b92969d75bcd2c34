"""The report in a real browser: what it shows is what was recorded, and nothing of a job is ever markup."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from otel_torchdist.model.names import CallSiteName
from tests.support.browser import Browser
from tests.support.commands.asking import ask
from tests.support.tapes.directories import memory_directory
from tests.support.tapes.written_world import WrittenWorld

pytestmark = pytest.mark.process
HOSTILE: Final = "</script><img src=x onerror=alert(1)>&lt;\u202egnp.exe"
SHOWN: Final = "</script><img src=x onerror=alert(1)>&lt;\\u202egnp.exe"
DUMPS: Final = Path(__file__).parents[2] / "sources" / "flight" / "data" / "lock_gil_1st"
_DRAWN: Final = "document.querySelector('#timeline .lanes canvas').drawn()"


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Writes a world and a report on it."""
    with memory_directory() as base:

        def write(world: WrittenWorld, *options: str, capacity: int = 256) -> Path:
            world.write(base / "job-0", capacity)
            out = tmp_path / "report.html"
            answer = ask(base, "--html", out, base / "job-0", *options, command="analyze")
            assert answer.code == 0, answer
            return out

        yield write


@contextmanager
def opened(browser: Browser, out: Path, **options: Any) -> Iterator[Any]:
    """Open a report, and wait until it is drawn."""
    with browser.quiet_page(out, **options) as page:
        page.locator("#main:not([aria-busy])").wait_for()
        yield page


def _cells(table: Any) -> list[list[str]]:
    rows = table.locator("tbody tr").all()
    return [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in rows]


def _rows(page: Any, section: str) -> list[list[str]]:
    """Cells of the last table of a section."""
    table = page.locator(f"#{section} table").last
    return _cells(table)


def test_figures_are_those_of_the_run(browser: Browser, written: Callable[..., Path]) -> None:
    """The late rank, the shape of the world, bytes, waits and step times are in the page as they were recorded."""
    world = WrittenWorld(steps=6, slow=3, late_ms=5, stall_step=4, stall_ms=4_000)
    with opened(browser, written(world)) as page:
        incident = page.locator("#incidents .sentence").inner_text()
        assert incident == (
            "Rank 3 kept 7 ranks waiting for 4.00 s in all_reduce (sequence 9, mesh_tp) of step 4, which it calls in "
            "forward at model.py:88."
        )
        assert page.locator("#world .sentence").inner_text() == "8 ranks = TP 2 \N{MULTIPLICATION SIGN} DP 4"
        assert page.locator(".rank-cell").count() == 8
        assert page.locator(".rank-cell.named").get_attribute("data-rank") == "3"
        ranks = {row[0]: row for row in _rows(page, "ranks")}
        # In each of six steps it comes last to the first of two calls with its neighbor, and to that of its replicas.
        assert ranks["3"][3] == "12 of 18"
        assert ranks["2"][2] == "4.03 s"  # five times 5 ms, and the 4 s
        assert page.locator("#steps dd").all_inner_texts() == [
            "20.0 ms",
            "4.01 s, step 4, on all ranks alike",
            "1 to 5",
        ]
        # Four steady steps of eight ranks: 2 MiB in two layers, and six quarters of 24 MiB.
        assert page.locator("#traffic dd").first.inner_text() == "1.19 GiB"


def test_bars_are_the_calls(browser: Browser, written: Callable[..., Path]) -> None:
    """The timeline has a bar for each call of the newest steps, at its time, with its wait; options choose which."""
    out = written(WrittenWorld(steps=6, slow=3), "--steps", "3-4", "--ranks", "2-3")
    with opened(browser, out) as page:
        drawn = page.evaluate(_DRAWN)
        # Two steps of two calls in one group and one in the other, of two ranks.
        assert len(drawn["bars"]) == 12
        page.locator("#timeline canvas").last.focus()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        facts = dict(
            zip(
                page.locator("#timeline .readout dt").all_inner_texts(),
                page.locator("#timeline .readout dd").all_inner_texts(),
                strict=True,
            )
        )
        assert facts["rank"] == "2"
        assert facts["operation"] == "all_reduce #8"
        assert facts["duration"] == "1.00 ms"
        page.keyboard.press("ArrowLeft")
        assert page.locator("#timeline .readout dd").all_inner_texts()[4:7] == ["6.00 ms", "5.00 ms, 83%", "1.00 ms"]
        page.get_by_text("Operations in view, as a table").click()
        rows = page.locator("#timeline tbody tr")
        rows.first.wait_for()  # the table is filled when it is opened
        assert rows.count() == 12


def test_critical_path(browser: Browser, written: Callable[..., Path]) -> None:
    """The 5 ms that one rank is late in each step are the greatest gain, on its line, and the path is drawn."""
    with opened(browser, written(WrittenWorld(layers=3, steps=16, slow=3, late_ms=5))) as page:
        gains, parts, ranks = page.locator("#critical-path table").all()
        sentence = (
            "rank 3 computes 5.00 ms longer than its peers before all_reduce in mesh_tp (2-3) at forward (model.py:88)"
        )
        assert _cells(gains)[0] == ["5.00 ms, 21%", sentence]
        # Of 24 ms: those 5, 3 of usual computing, and in all steps but the first 2 since its last call.
        assert _cells(parts)[0][:2] == ["41%, 9.86 ms", "3"]
        shares = {row[0]: float(row[1].strip("< %")) for row in _cells(ranks)}
        assert max(shares, key=shares.__getitem__) == "3"
        assert shares["3"] >= 41
        assert "rank 3" in page.locator("#advice").inner_text().lower()
        assert page.evaluate(_DRAWN)["path"] > 12


def test_waits_across_nodes_are_not_known(browser: Browser, written: Callable[..., Path]) -> None:
    """On one node time is waiting or transfer; a rank that meets others with another clock may have waited for them."""
    for world, text in ((WrittenWorld(), "transfer"), (WrittenWorld(ranks_a_host=4), "waiting or transfer")):
        with opened(browser, written(world)) as page:
            gauges = page.locator("#ranks td.gauge .small").all_inner_texts()
            assert len(gauges) == 8 and all(gauge.endswith(f"% {text}") for gauge in gauges), gauges
            assert page.get_by_text("the share of waiting is unknown").count() == (text != "transfer")


def test_hostile_names_are_text(browser: Browser, written: Callable[..., Path]) -> None:
    """Names of hosts, groups, functions and files end no script, make no element, and turn no text around."""
    site = CallSiteName(HOSTILE, f"/home/{HOSTILE}.py", 7)
    world = WrittenWorld(hosts=HOSTILE[:40], ranks_a_host=4, site=site, name=HOSTILE, stall_step=3, stall_ms=12_000)
    with opened(browser, written(world)) as page:
        page.get_by_text("What each rank was doing last").click()
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 2
        text = page.locator("body").inner_text()
        assert SHOWN in text
        assert "\u202e" not in text


def test_dark_light_narrow_and_wide(browser: Browser, written: Callable[..., Path]) -> None:
    """Colours follow the system and the switch; nothing is wider than the window, from a phone to a wall."""
    out = written(WrittenWorld())
    for width, dark in ((390, True), (1280, False), (3840, True)):
        with opened(browser, out, width=width, dark=dark) as page:
            background = "getComputedStyle(document.body).backgroundColor"
            before = page.evaluate(background)
            assert (before == "rgb(13, 17, 23)") is dark
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            captions = page.locator("caption > span:visible").all()
            assert len(captions) > 5
            for caption in captions:
                box = caption.bounding_box()
                assert box is not None and box["x"] + box["width"] <= width, "a caption is read without scrolling"
            page.locator(".bar-top button").click()
            assert page.evaluate(background) != before


def test_print(browser: Browser, written: Callable[..., Path]) -> None:
    """It prints, in light colours, however dark the screen was."""
    with opened(browser, written(WrittenWorld()), dark=True) as page:
        assert page.pdf().startswith(b"%PDF")
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_every_control_is_reached_by_keyboard(browser: Browser, written: Callable[..., Path]) -> None:
    """Tab reaches links, the switch, tables and drawings, and everything it reaches has a name."""
    with opened(browser, written(WrittenWorld())) as page:
        reached: set[str] = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            name = page.evaluate(
                "(() => { const e = document.activeElement; return [e.tagName, e.getAttribute('aria-label') ?? "
                "e.innerText ?? e.value ?? ''].join(' ').trim() })()"
            )
            if name.startswith("BODY"):
                break
            assert " " in name, name
            reached.add(name.split()[0])
        assert {"A", "BUTTON", "CANVAS", "SUMMARY"} <= reached


@pytest.mark.parametrize(
    ("world", "text"),
    [
        pytest.param(WrittenWorld(ranks=1, tensor=1, slow=0), "1 rank, no groups", id="one rank, groups of one"),
        pytest.param(WrittenWorld(ranks=4, tensor=1, slow=2), "4 ranks = DP 4", id="groups of one"),
        pytest.param(WrittenWorld(ranks=4, steps=1), "No step was recorded", id="no whole step"),
        pytest.param(WrittenWorld(ranks=4, steps=2), "there are no steps after the second", id="no steady steps"),
    ],
)
def test_small_worlds(browser: Browser, written: Callable[..., Path], world: WrittenWorld, text: str) -> None:
    """What is missing is reported, and what remains is drawn."""
    with opened(browser, written(world)) as page:
        assert text in page.locator("#main").inner_text()
        assert page.evaluate(_DRAWN)["bars"]


def test_open_operations(browser: Browser, written: Callable[..., Path]) -> None:
    """What has not ended is drawn to the right edge, and its ranks are those of the verdict's details."""
    with opened(browser, written(WrittenWorld(leaves_open=True))) as page:
        still_open = [bar for bar in page.evaluate(_DRAWN)["bars"] if bar["end"] is None]
        assert len({bar["lane"] for bar in still_open}) == 8


def test_dumps_without_times(browser: Browser, tmp_path: Path) -> None:
    """Dumps of NCCL's recorder without durations: the verdict names both ranks, and no time is made up."""
    out = tmp_path / "report.html"
    assert ask(tmp_path, "--html", out, DUMPS, command="analyze").code == 0
    with opened(browser, out) as page:
        assert page.locator("#verdict .sentence").inner_text().startswith("Ranks 9,14 have not entered all_to_all")
        named = page.locator(".rank-cell.named").all()
        assert {cell.get_attribute("data-rank") for cell in named} == {"9", "14"}
        assert {row[1] for row in _rows(page, "ranks")} == {"not known"}
        assert page.evaluate(_DRAWN)["bars"]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_thousands_of_ranks(browser: Browser, written: Callable[..., Path]) -> None:
    """2,048 ranks fit in a few megabytes, and each of them can be found."""
    world = WrittenWorld(ranks=2048, tensor=8, layers=1, steps=5, slow=1234, ranks_a_host=8)
    out = written(world, capacity=16)
    assert out.stat().st_size < 4 << 20
    with opened(browser, out) as page:
        assert page.locator("#heading dd").first.inner_text() == "2,048 of 2,048"
        assert page.locator("#ranks tbody tr td").first.inner_text() != ""
        field = page.locator("#ranks input[type=search]")
        field.fill("rank 2047 ")
        assert [row[0] for row in _rows(page, "ranks")] == ["2047"]
        assert page.evaluate("document.querySelector('#traffic canvas').drawn()")["names"] == 256


def test_steps_that_do_not_exist(tmp_path: Path) -> None:
    """Steps that nothing recorded give a warning."""
    answer = ask(tmp_path, "--html", tmp_path / "a.html", DUMPS, "--steps", "7-9", command="analyze")
    assert answer.code == 0
    assert "--steps: no rank has recorded the steps 7-9 to their ends" in answer.err


@pytest.mark.parametrize("name", ["evil\n\u202e\a.tape", os.fsdecode(b"evil\xff.tape")])
@pytest.mark.parametrize("options", [("--html", "report.html"), (), ("--only", "calls"), ("--only", "path")])
def test_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: tuple[str, ...]) -> None:
    """A file with a name that forges lines, or that is no text, is reported in one line, and the others are read."""
    monkeypatch.chdir(tmp_path)
    with memory_directory() as base:
        job = base / "job-0"
        WrittenWorld(steps=3).write(job)
        (job / name).write_text("junk")
        answer = ask(base, *options, job, command="analyze")
    assert answer.code == 0
    [line] = answer.err.split("\n")[:-1]
    shown = name.encode("unicode_escape").decode()
    assert line.startswith(f"otel-torchdist: warning: {job}/{shown}: truncated")
