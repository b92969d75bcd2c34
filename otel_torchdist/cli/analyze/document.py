"""An analysis as one JSON document, for programs.

Keys are only ever added within a schema. Numbers are raw, with the unit in the key; unknown values are null. What was
not asked for is null.

- `schema`: 2.
- `source`: `run` (32 hex digits, or null), `place`, `world_size` (null if it is not known), `unknown_ranks`: ranks of
  the job whose calls are not known.
- `calls`: see `statistics.model`; `graph`: see `parallelism.graph`; `path`: see `path_document`.
- `advice`: `topic`, `text`, `check`, `page` of the documentation, and the figures: `ranks`, `host`, `role`, `groups`,
  `path_share`, `gain_ns`, `step_bytes`, `step_operations`, `operation_bytes`, `ratio`, null where they do not apply.
- `warnings`: what could not be read, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from otel_torchdist.advice.model import Advice
from otel_torchdist.advice.wording import PAGES, check, finding
from otel_torchdist.analysis.analyzer import Analysis, Section
from otel_torchdist.cli.analyze.advice import group_names
from otel_torchdist.cli.analyze.path_document import path_document
from otel_torchdist.cli.histories import Source

SCHEMA: Final = 2


def document_of(found: Analysis, source: Source) -> dict[str, Any]:
    """Build the document."""
    graph, path, names = found.graph, found.path, group_names(found.path)
    return {
        "schema": SCHEMA,
        "source": {
            "run": source.run_id,
            "place": source.place,
            "world_size": found.world_size or None,
            "unknown_ranks": found.unknown,
        },
        "calls": msgspec.to_builtins(found.statistics, str_keys=True) if Section.CALLS in found.sections else None,
        "graph": msgspec.to_builtins(graph, str_keys=True)
        if graph is not None and Section.GRAPH in found.sections
        else None,
        "path": path_document(path) if path is not None and Section.PATH in found.sections else None,
        "advice": [_advice(one, names) for one in found.advice] if Section.ADVICE in found.sections else None,
        "warnings": list(source.warnings),
    }


def _advice(one: Advice, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "topic": one.topic.value,
        "text": finding(one, names),
        "check": check(one),
        "page": PAGES[one.topic],
        "ranks": list(one.ranks),
        "host": one.host or None,
        "role": one.role or None,
        "groups": one.groups or None,
        "path_share": round(one.share, 4) or None,
        "gain_ns": one.gain_ns,
        "step_bytes": one.step_bytes or None,
        "step_operations": one.step_operations or None,
        "operation_bytes": one.operation_bytes or None,
        "ratio": one.ratio or None,
    }
