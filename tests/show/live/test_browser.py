"""The live page in a real browser, on simulated worlds: what is drawn is what the document says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from deploy.native.ports import free_port
from otel_torchdist.config import PageAccess
from otel_torchdist.judge.stall.events import JudgingAgent, RunSeen
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.telemetry.metrics.snapshots import RunFindings, ShownVerdict
from tests.support.browser import Browser, loaded
from tests.support.waiting import until
from tests.support.worlds.fake_world import SECOND
from tests.support.worlds.live_pages import Served, seen_in, served, snapshot_of, stalled_world, with_stack

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.process
ATTACK: Final = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def site() -> Iterator[Served]:
    """A page whose contents each test chooses."""
    with served(None, PageAccess.ON, trace_url="http://jaeger.example/trace/{trace_id}") as site:
        yield site


def stalled(size: int = 4, missing: int = 2) -> RunSeen:
    """A run in which one rank, which has written its stack, has not come."""
    frames = CallSiteName("load", "/home/ada/data.py", 7), CallSiteName("train", "/home/ada/train.py", 42)
    return seen_in(with_stack(stalled_world(size, (missing,), 14), missing, *frames))


def calm(size: int) -> RunSeen:
    """A run in which no operation is open."""
    seen = seen_in(stalled_world(size, (), 0.5))
    return with_ranks(seen, open=())


def with_ranks(seen: RunSeen, **changes: object) -> RunSeen:
    """The same run, with all of its ranks changed."""
    views = {rank: dataclasses.replace(view, **changes) for rank, view in seen.world.ranks.items()}  # type: ignore[arg-type]
    return dataclasses.replace(seen, world=dataclasses.replace(seen.world, ranks=views))


def later(seen: RunSeen, seconds: float) -> RunSeen:
    """The same, some time later."""
    world = dataclasses.replace(seen.world, taken_ns=seen.world.taken_ns + round(seconds * SECOND))
    return dataclasses.replace(seen, world=world)


def cells(page: Page, heading: str) -> list[list[str]]:
    """The text of a table's cells, by row."""
    rows = page.locator(f"section[aria-labelledby={heading}] tbody tr")
    return [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in rows.all()]


def drawn(page: Page) -> dict[str, Any]:
    """What the timeline has drawn."""
    return page.evaluate("document.querySelector('.lanes canvas').drawn()")


@contextmanager
def shown(browser: Browser, site: Served, *seen: RunSeen, **options: Any) -> Iterator[Page]:
    """Open a page that shows some runs, and must have no errors in the end."""
    site.snapshot = snapshot_of(*seen)
    with browser.quiet_page(site.address, **options) as page:
        yield page


def test_a_stall(browser: Browser, site: Served) -> None:
    """The banner has sentence, stack and a link to the trace; the tables have each rank; ages grow by themselves."""
    seen = stalled()
    site.snapshot = snapshot_of(seen)
    with browser.page(site.address) as (page, noted):
        page.wait_for_selector(".banner.bad pre")
        assert page.locator("#verdict").inner_text() == "Stalled for 17.0 s (rank 2: absent)"
        assert page.title() == "absent 2 · 00000000 · otel_torchdist"
        assert page.locator(".banner .sentence").first.is_hidden()  # that of a lost connection
        sentence = page.locator(".banner.bad .sentence").inner_text()
        assert sentence.startswith(
            "Rank 2 has not entered all_reduce (sequence 21, default_pg) for 17.0 s; it is in load at"
        )
        next_step = page.locator(".banner.bad .next")
        assert next_step.inner_text().startswith("Next: find out why rank 2 did not go on from load at data.py:7")
        assert next_step.locator("code").all_inner_texts() == ["otel-torchdist profile --rank 2"]
        assert page.locator(".banner pre").inner_text().splitlines() == [
            '  File "/home/ada/train.py", line 42, in train',
            '  File "/home/ada/data.py", line 7, in load',
        ]
        [what_it_means, link] = page.locator(".banner.bad a").all()
        assert (what_it_means.inner_text(), what_it_means.get_attribute("href")) == ("absent", "docs/verdicts/absent")
        assert link.get_attribute("href") == f"http://jaeger.example/trace/{link.inner_text()}"
        [first, second, *_] = cells(page, "each")
        assert first[:7] == ["2", "absent", "17.0 s", "not in all_reduce #21", "default_pg", "data.py:7 load", "20"]
        assert second[:6] == ["0", "stalled", "17.0 s", "all_reduce #21", "default_pg", "train.py:42 train"]
        assert cells(page, "groups") == [["default_pg", "0-3", "4", "gloo", "20", "21", "20", "rank 2, 1 call"]]
        bars = [(bar["lane"], bar["end"]) for bar in drawn(page)["bars"]]
        assert [lane for lane, end in bars if end is None] == [0, 1, 3]
        site.snapshot = snapshot_of(later(seen, 65))
        until(lambda: page.evaluate("document.querySelector('#verdict').textContent.startsWith('Stalled for 82.0 s')"))
        assert cells(page, "each")[0][2] == "82.0 s"
        assert noted.errors == []
        assert {request.removeprefix(site.address) for request in noted.requests} == {"live.json?"}


def test_page_on_a_verdict(browser: Browser, site: Served) -> None:
    """The page that the verdict links to is styled, asks for nothing and breaks no rule of its own policy."""
    with browser.page(f"{site.address}docs/verdicts/absent") as (page, noted):
        assert page.locator("h1").inner_text() == "Why do the others wait for a rank that is alive? (absent)"
        assert page.evaluate("getComputedStyle(document.querySelector('main')).display") == "grid"
        assert (noted.errors, noted.requests) == ([], [])


def test_no_stall_and_the_end(browser: Browser, site: Served) -> None:
    """Without a stall the page says so, and when the job has ended it says that, with how its ranks ended."""
    seen = calm(2)
    with shown(browser, site, seen) as page:
        page.wait_for_selector(".banner.good")
        assert page.locator("#verdict").inner_text() == "No stall"
        assert "Of 2 ranks, 2 are running." in page.locator(".banner.good").inner_text()
        site.snapshot = snapshot_of(with_ranks(seen, alive=False, state=TapeState.FINISHED))
        until(lambda: page.evaluate("document.querySelector('#verdict').textContent === 'The job has ended'"))
        assert "2 have finished" in page.locator(".banner.calm .sentence").all_inner_texts()[-1]


def test_the_verdict_after_the_end(browser: Browser, site: Served) -> None:
    """A job that has ended in a stall has its verdict on the page, and the named rank stands first."""
    world = stalled_world(4, (2,), 14)
    views = {
        rank: dataclasses.replace(view, alive=False, gone_since_ns=world.taken_ns, open=())
        for rank, view in world.ranks.items()
    }
    with shown(browser, site, seen_in(world, dataclasses.replace(world, ranks=views))) as page:
        page.wait_for_selector(".banner.bad")
        assert page.locator("#verdict").inner_text() == "The job has ended (rank 2: absent)"
        assert "Rank 2 has not entered all_reduce" in page.locator(".banner.bad .sentence").inner_text()
        assert [row[:2] for row in cells(page, "each")] == [
            ["2", "dead"],
            ["0", "followed"],
            ["1", "followed"],
            ["3", "followed"],
        ]


def test_a_phone_shows_who_is_in_which_state_for_how_long(browser: Browser, site: Served) -> None:
    """On a phone the first columns are rank, state, age and operation; the rank stays while the others scroll."""
    with shown(browser, site, stalled(), width=390) as page:
        page.wait_for_selector(".banner.bad pre")
        table = page.locator("section[aria-labelledby=each] .scroll")
        heads = table.locator("th")
        assert heads.all_inner_texts()[:4] == ["rank", "state", "age", "operation"]
        right = [head.bounding_box() for head in heads.all()[:4]]
        assert all(box is not None and box["x"] + box["width"] <= 390 for box in right)
        before = heads.first.bounding_box()
        table.evaluate("element => { element.scrollLeft = 200; }")
        assert heads.first.bounding_box() == before


def test_findings(browser: Browser, site: Served) -> None:
    """What was found without a stall stands above the ranks, each with its trace, until it holds no longer."""
    snapshot = snapshot_of(calm(4))
    text = f"rank 3 computes 5.00 ms longer than its peers before all_reduce at {ATTACK} (train.py:12)"
    findings = RunFindings((ShownVerdict("other", "all_reduce", "slow_rank", "3", "ab" * 16, text),))
    site.snapshot = dataclasses.replace(snapshot, runs=(dataclasses.replace(snapshot.runs[0], findings=findings),))
    with browser.quiet_page(site.address) as page:
        page.wait_for_selector("section[aria-labelledby=findings] li")
        assert page.locator("section[aria-labelledby=findings] li").all_inner_texts() == [
            f"R{text[1:]} trace {'ab' * 16}, what to do"
        ]
        [link, what_to_do] = page.locator("section[aria-labelledby=findings] a").all()
        assert what_to_do.get_attribute("href") == "docs/findings#slow_rank"
        assert link.get_attribute("href") == f"http://jaeger.example/trace/{'ab' * 16}"
        headings = page.locator("main h2:visible").all_inner_texts()
        assert headings.index("Findings") < headings.index("Ranks")
        site.snapshot = snapshot
        until(lambda: page.locator("section[aria-labelledby=findings]").is_hidden())


def test_one_rank(browser: Browser, site: Served) -> None:
    """A job of one rank is readable, on a phone and in the dark, and the page has the switch for colors."""
    with shown(browser, site, calm(1), width=400, dark=True) as page:
        page.wait_for_selector("section[aria-labelledby=each] tbody tr")
        assert cells(page, "each")[0][:2] == ["0", "running"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, "it fits a phone"
        background = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(background)
        page.get_by_role("button", name="Switch to light colors").click()
        assert page.evaluate(background) != dark


def test_many_ranks(browser: Browser, site: Served) -> None:
    """Of 512 ranks there are a cell each, crowds, strips, and the rows that matter; a click shows operations."""
    with shown(browser, site, stalled(512, 170)) as page:
        page.wait_for_selector(".map .cell")
        assert page.locator(".map .cell").count() == 512
        assert page.locator(".map .node").count() == 64
        assert page.locator(".map .cell.absent.named").get_attribute("title") == "rank 170: absent"
        assert [row[:3] for row in cells(page, "ranks")] == [
            ["170", "1", "absent"],
            ["0-169,171-511", "511", "stalled"],
        ]
        assert len(cells(page, "each")) == 16
        assert cells(page, "each")[0][0] == "170"
        assert page.evaluate("document.querySelector('.strips canvas').drawn().strips") == 512
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        lanes = page.locator("[aria-labelledby=minute] p").first
        page.locator(".map .cell").nth(300).click()
        until(lambda: "292-307" in lanes.inner_text())
        assert [row[0] for row in cells(page, "each")] == ["300"]
        loaded(page.reload)
        until(lambda: "292-307" in lanes.inner_text())


def test_hostile_names(browser: Browser, site: Served) -> None:
    """Markup in the names of hosts, groups, functions and files is text on the page, and runs nothing."""
    world = with_stack(
        stalled_world(4, (2,), 14, group_name=f"pg{ATTACK}"), 2, CallSiteName(ATTACK, f"/{ATTACK}.py", 1)
    )
    views = {rank: dataclasses.replace(view, host=ATTACK) for rank, view in world.ranks.items()}
    seen = seen_in(dataclasses.replace(world, ranks=views))
    seen = dataclasses.replace(seen, judge=JudgingAgent(ATTACK, "javascript:alert(1)"))
    site.snapshot = snapshot_of(seen)
    with browser.page(site.address) as (page, noted):
        page.on("dialog", lambda dialog: noted.errors.append(dialog.message))
        page.wait_for_selector(".banner.bad pre")
        page.evaluate("document.querySelector('details').open = true")
        with page.expect_response("**/live.json*"):  # it is drawn again
            pass
        assert page.locator("main img").count() == 0
        assert ATTACK in page.locator(".banner.bad").inner_text()
        assert page.locator("a[href^=javascript]").count() == 0
        assert cells(page, "each")[0][4] == f"pg{ATTACK}"
        assert cells(page, "each")[0][-1] == ATTACK
        assert noted.errors == []


def test_several_jobs(browser: Browser, site: Served) -> None:
    """Several jobs are a list, the one that needs attention is shown first, and the choice outlives a reload."""
    with shown(browser, site, calm(2), stalled()) as page:
        page.wait_for_selector(".banner.bad")
        jobs = page.locator("#bar select")
        assert [text.split(" · ")[1] for text in jobs.locator("option").all_inner_texts()] == ["4 ranks", "2 ranks"]
        jobs.select_option(index=1)
        page.wait_for_selector(".banner.good")
        loaded(page.reload)
        page.wait_for_selector(".banner.good")


def test_another_agent_judges(browser: Browser, site: Served) -> None:
    """The page names the agent that judges, and links to its page only if that can be reached from elsewhere."""
    seen = dataclasses.replace(stalled(), judge=JudgingAgent("node-7", "http://node-7:9464/"))
    with shown(browser, site, seen) as page:
        link = page.get_by_role("link", name="Open its page")
        link.wait_for()
        assert link.get_attribute("href") == "http://node-7:9464/"
        local = JudgingAgent("node-7", "http://localhost:9464/")
        site.snapshot = snapshot_of(dataclasses.replace(seen, judge=local))
        page.get_by_text("Open http://localhost:9464/ there.").wait_for()
        assert link.count() == 0


@pytest.mark.thorough
def test_the_agent_goes_and_comes_back(browser: Browser) -> None:
    """When the agent is gone the page says since when, keeps what it has, and goes on when one answers again."""
    from otel_torchdist.show.serving.metrics_page import MetricsServer

    serving = served(snapshot_of(stalled()), PageAccess.ON, port=free_port())
    with serving as site, browser.page(site.address) as (page, _):
        page.wait_for_selector(".banner.bad")
        site.server.stop()
        page.wait_for_selector(".connection-lost:not([hidden])", timeout=20_000)
        opacity = "element => getComputedStyle(element).opacity"
        pale = [page.locator(part).evaluate(opacity) for part in ("main", ".connection-lost", ".banner.bad")]
        assert pale == ["1", "1", "0.55"], "only the old data are pale"
        assert "The agent has ended, or cannot be reached" in page.locator(".connection-lost").inner_text()
        assert page.locator("#verdict").inner_text() == "Stalled for 17.0 s (rank 2: absent)"
        again = MetricsServer("127.0.0.1", site.port, site.registry, site=site.site)
        assert again.start()
        assert again.port == site.port
        page.wait_for_selector(".connection-lost", state="hidden", timeout=20_000)
        assert page.locator(".connection.good").count() == 1
        again.stop()


def test_a_hidden_page_asks_nothing(browser: Browser, site: Served) -> None:
    """In the background the page is silent; in front again it asks at once."""
    site.snapshot = snapshot_of(stalled())
    with browser.page(site.address) as (page, noted):
        page.wait_for_selector(".banner.bad")
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        page.wait_for_timeout(1100)  # a request may have been on its way
        before = len(noted.requests)
        page.wait_for_timeout(1600)  # in front it asks once a second
        assert len(noted.requests) == before
        page.evaluate("Object.defineProperty(document, 'hidden', {value: false})")
        with page.expect_request("**/live.json*"):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


@pytest.mark.thorough
def test_it_does_not_grow(browser: Browser, site: Served) -> None:
    """After an hour of polls, one every few milliseconds here, there are as many elements and listeners as before."""
    seen = stalled(8, 4)
    site.snapshot = snapshot_of(seen)
    with browser.page(site.address) as (page, noted):
        page.wait_for_selector(".banner.bad")
        page.evaluate("() => { const slow = window.setTimeout; window.setTimeout = (act) => slow(act, 0); }")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")

        def measure() -> dict[str, float]:
            session.send("HeapProfiler.collectGarbage")
            found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
            return {name: found[name] for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize")}

        def poll(count: int) -> None:
            until = len(noted.requests) + count
            for second in range(1, 10_000):
                site.snapshot = snapshot_of(later(seen, second))
                if len(noted.requests) >= until:
                    return
                page.wait_for_timeout(30)

        poll(30)
        before = measure()
        poll(200)
        after = measure()
        assert after["Nodes"] <= before["Nodes"] * 1.1
        assert after["JSEventListeners"] <= before["JSEventListeners"] * 1.1
        assert after["JSHeapUsedSize"] < before["JSHeapUsedSize"] * 1.3 + 1_000_000
        assert noted.errors == []
