"""Command line: `python -m reference [--check] [--costs FILE]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from reference.compatibility import compatibility_page
from reference.costs import keep, with_figures
from reference.pages import metrics_page, settings_page, spans_page, with_alerts, with_tables
from reference.python_api import with_names
from reference.registry import registry_files
from reference.rendered import assistant_pages, rendered_pages
from reference.results import results_page
from reference.schemas import schema_files
from reference.upstream import upstream_page

ROOT: Final = Path(__file__).parents[1]
SERVED: Final = ROOT / "otel_torchdist" / "show" / "serving" / "assets"
"""Pages as HTML, which the agent serves at `/docs`."""
RUNBOOKS: Final = ROOT / "otel_torchdist" / "cli" / "mcp" / "runbooks"
"""Pages as Markdown, which `otel-torchdist mcp` gives to assistants."""
CHART: Final = ROOT / "deploy" / "helm" / "otel-torchdist" / "files"
"""Copies, because Helm reads only what is inside a chart, and archives and some checkouts have no symbolic links."""


def main() -> None:
    """Write the pages, or with `--check` report the pages that are out of date."""
    parser = argparse.ArgumentParser(prog="python -m reference", description="Generate the reference pages from code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    parser.add_argument(
        "--costs",
        type=Path,
        metavar="FILE",
        help="first update the figures of docs/costs.md from a result file of `make bench`",
    )
    arguments = parser.parse_args()
    check = arguments.check
    if check and arguments.costs:
        parser.error("--check writes nothing: leave out --costs")
    if arguments.costs:
        keep(arguments.costs)
    expected = pages()
    wrong = [path for path, text in expected.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    stale = sorted(path for path in CHART.glob("*/*") if path not in expected)
    if check and (wrong or stale):
        sys.exit("\n".join(f"{path} is out of date: run `make docs`" for path in [*wrong, *stale]))
    for path in wrong:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(expected[path], encoding="utf-8")
    for path in stale:
        path.unlink()


def pages() -> dict[Path, str]:
    """Return the text of every page, by path."""
    docs = ROOT / "docs"
    rules = ROOT / "deploy" / "prometheus" / "rules"
    alerts = with_alerts((docs / "alerts.md").read_text(encoding="utf-8"), rules / "alerts.yaml")
    return {
        docs / "settings.md": settings_page(),
        docs / "compatibility.md": compatibility_page(),
        docs / "metrics.md": metrics_page(),
        docs / "spans.md": spans_page(),
        docs / "archive.md": with_tables((docs / "archive.md").read_text(encoding="utf-8")),
        docs / "costs.md": with_figures((docs / "costs.md").read_text(encoding="utf-8")),
        docs / "json.md": results_page(),
        docs / "python-api.md": with_names((docs / "python-api.md").read_text(encoding="utf-8")),
        docs / "upstream.md": upstream_page(),
        docs / "alerts.md": alerts,
        **registry_files(docs),
        **schema_files(docs, ROOT / "otel_torchdist"),
        **{SERVED / f"{name}.html": text for name, text in rendered_pages(docs, {"alerts": alerts}).items()},
        **{RUNBOOKS / f"{name}.md": text for name, text in assistant_pages(docs, {"alerts": alerts}).items()},
        **_copies(rules, CHART / "rules"),
        **_copies(ROOT / "grafana" / "dashboards", CHART / "dashboards"),
    }


def _copies(source: Path, target: Path) -> dict[Path, str]:
    return {target / path.name: path.read_text(encoding="utf-8") for path in sorted(source.glob("*.*"))}


if __name__ == "__main__":
    main()
