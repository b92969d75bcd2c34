"""Reads recorded runs in a program or notebook: tables, diagnosis, analyses, and comparisons.

    from otel_torchdist.runs import open_run

    run = open_run("/shared/archive", "1234abcd")
    run.calls                # a table that pandas, polars, DuckDB and pyarrow take as it is
    run.critical_path()      # the struct that `otel-torchdist analyze --json` prints

The page `docs/python-api.md` lists everything that this module exports, and what is promised about it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_torchdist.errors import RunError
    from otel_torchdist.runs.comparing import compare
    from otel_torchdist.runs.comparison.comparison import Comparison
    from otel_torchdist.runs.listing import ListedRun
    from otel_torchdist.runs.opening import find_runs, open_run
    from otel_torchdist.runs.recorded_run import RecordedRun, RunKind
    from otel_torchdist.runs.tables.table import Table, as_table

__all__ = [
    "Comparison",
    "ListedRun",
    "RecordedRun",
    "RunError",
    "RunKind",
    "Table",
    "as_table",
    "compare",
    "find_runs",
    "open_run",
]

# Imported at their first use: commands import modules of this package, and must not become slower.
_MODULES = {
    "Comparison": "otel_torchdist.runs.comparison.comparison",
    "ListedRun": "otel_torchdist.runs.listing",
    "RecordedRun": "otel_torchdist.runs.recorded_run",
    "RunError": "otel_torchdist.errors",
    "RunKind": "otel_torchdist.runs.recorded_run",
    "Table": "otel_torchdist.runs.tables.table",
    "as_table": "otel_torchdist.runs.tables.table",
    "compare": "otel_torchdist.runs.comparing",
    "find_runs": "otel_torchdist.runs.opening",
    "open_run": "otel_torchdist.runs.opening",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
