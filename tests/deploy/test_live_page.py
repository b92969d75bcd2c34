"""Where `make up` finds the live page of its job."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import Gauge

from deploy.native.live_page import address_of, live_page
from otel_torchdist.config import PageAccess
from otel_torchdist.show.serving.scrape_target import ScrapeTarget
from tests.support.worlds.live_pages import served


def test_the_page_of_a_run(tmp_path: Path) -> None:
    """It is that of the agent whose metrics have the run; an agent without a page has none, nor one that is gone."""
    with served(None) as page, served(None, PageAccess.OFF) as without:
        for nth, one in enumerate((page, without)):
            Gauge("up", "Of a run.", ["run"], registry=one.registry).labels(f"run{nth}").set(1)
            ScrapeTarget(tmp_path / f"job-{nth}").publish("localhost", one.port)
        assert live_page(tmp_path, "run0") == page.address
        assert live_page(tmp_path, "run1") is None
        assert address_of(tmp_path) == page.address
        assert live_page(tmp_path, "run2") is None
    assert live_page(tmp_path, "run0") is None
    assert address_of(tmp_path) is None
    assert live_page(tmp_path / "nothing", "run0") is None
