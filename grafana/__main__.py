"""Command line: `python -m grafana [--check]`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from grafana import collective_detail, job_overview, links, numeric_health, stall_investigation, step_parts, variables
from grafana.dashboard import dashboard_json
from grafana.version2 import resource_json

DASHBOARDS: Final = Path(__file__).parent / "dashboards"
RESOURCES: Final = Path(__file__).parent / "resources"
"""Version 2 of the schema. Not below the other folder, from which Grafana would read each dashboard twice."""


def main() -> None:
    """Write the dashboards, or with `--check` report files that are out of date."""
    parser = argparse.ArgumentParser(prog="python -m grafana", description="Generate the Grafana dashboards from code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    if parser.parse_args().check:
        _check()
    else:
        _write()


def files() -> dict[Path, str]:
    """Return the JSON text of every dashboard in both versions of the schema, by path."""
    dashboards = _dashboards()
    resources = {RESOURCES / path.name: resource_json(json.loads(text)) for path, text in dashboards.items()}
    return dashboards | resources


def _dashboards() -> dict[Path, str]:
    return {
        DASHBOARDS / "job-overview.json": dashboard_json(
            links.JOB,
            "Is the job alive, is it fast, what does communication cost, and can the numbers be trusted.",
            job_overview.sections(),
        ),
        DASHBOARDS / "collective-detail.json": dashboard_json(
            links.COLLECTIVE,
            "How long collectives take, how much of that is waiting, and for whom.",
            collective_detail.sections(),
            [variables.operation()],
        ),
        DASHBOARDS / "stall-investigation.json": dashboard_json(
            links.STALL,
            "Which rank holds the job up, in which collective, and since when.",
            stall_investigation.sections(),
        ),
        DASHBOARDS / "where-the-step-goes.json": dashboard_json(
            links.PARTS,
            "What a step's time is spent on: data, forward, backward, optimizer, communication; and the throughput.",
            step_parts.sections(),
        ),
        DASHBOARDS / "numeric-health.json": dashboard_json(
            links.NUMERIC,
            "Which rank has the first non-finite values, which results differ, and how large values are.",
            numeric_health.sections(),
            [variables.operation()],
        ),
    }


def _write() -> None:
    for folder in (DASHBOARDS, RESOURCES):
        folder.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


def _check() -> None:
    expected = files()
    wrong = [path for path, text in expected.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    found = [path for folder in (DASHBOARDS, RESOURCES) for path in folder.glob("*.json")]
    wrong += sorted(path for path in found if path not in expected)
    if wrong:
        sys.exit("\n".join(f"{path} is out of date: run `make dashboards`" for path in wrong))


if __name__ == "__main__":
    main()
