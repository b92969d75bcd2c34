"""Every search of docs/jaeger.md finds in a real Jaeger what the page describes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

from deploy.native.jaeger_api import JaegerSpan
from deploy.native.servers import DEPLOY
from deploy.native.stack import Stack
from deploy.native.training import SERVICE
from tests.servers.jobs import RANKS
from tests.servers.story import ABSENT, STRAGGLER, Story

PAGE: Final = DEPLOY.parent / "docs" / "jaeger.md"
_BLOCK: Final = re.compile(r"```search\n(.*?)```", re.DOTALL)

Trace = list[JaegerSpan]


@dataclass(frozen=True)
class Recipe:
    """A search as it is on the page."""

    tags: dict[str, str]
    operation: str | None
    min_duration: str | None


def recipes() -> list[Recipe]:
    """All searches of the page, in order."""
    found: list[Recipe] = []
    for block in _BLOCK.findall(PAGE.read_text()):
        fields = dict(line.split(": ", 1) for line in block.strip().splitlines())
        found.append(Recipe(json.loads(fields["tags"]), fields.get("operation"), fields.get("min-duration")))
    return found


def stalls(traces: list[Trace]) -> bool:
    """The trace of the stall, and that of the step."""
    roots = {span.name.split(" ")[0] for trace in traces for span in trace if not span.parent_id}
    return {"stall:", "step"} <= roots


def absences(traces: list[Trace]) -> bool:
    """Only spans of the absent rank."""
    return stalls(traces) and all(
        any(span.tags.get("torchdist.verdict") == "absent" for span in trace) for trace in traces
    )


def names_one_rank(traces: list[Trace]) -> bool:
    """The stall of the rank that was absent."""
    return any(span.name == f"rank {ABSENT}: absent" for trace in traces for span in trace)


def slow(traces: list[Trace]) -> bool:
    """An operation of the rank that took so long, though not in every trace."""
    spans = [span for trace in traces for span in trace if span.name == "all_reduce"]
    return any(span.tags["torchdist.rank"] == 0 and span.duration_us >= 100_000 for span in spans)


def at_a_sequence(traces: list[Trace]) -> bool:
    """The same operation of all members."""
    spans = [span for trace in traces for span in trace if span.tags.get("torchdist.sequence") == 41]
    return {span.tags["torchdist.rank"] for span in spans} == set(range(RANKS))


def of_a_step(traces: list[Trace]) -> bool:
    """One trace with the step of each rank."""
    return any(
        sum(span.tags.get("torchdist.step") == 12 for span in trace if not span.parent_id) == RANKS for trace in traces
    )


def late(traces: list[Trace]) -> bool:
    """The finding that names the slow rank."""
    return [trace[0].tags["torchdist.ranks"] for trace in traces] == [str(STRAGGLER)]


WHAT_IS_FOUND: Final[list[Callable[[list[Trace]], bool]]] = [
    stalls, absences, names_one_rank, slow, at_a_sequence, of_a_step, late,
]  # fmt: skip


def test_page_has_these_recipes() -> None:
    """Every recipe has a check of what it finds."""
    assert len(recipes()) == len(WHAT_IS_FOUND)


@pytest.mark.parametrize("number", range(len(WHAT_IS_FOUND)), ids=lambda number: WHAT_IS_FOUND[number].__name__)
def test_search_finds_what_the_page_states(number: int, story: Story, stack: Stack) -> None:
    """Each recipe works with the run and group of a real job, in Jaeger's own API."""
    recipe = recipes()[number]
    world = next(one.labels["group"] for one in story.groups if one.labels["description"] == "default_pg")
    values = {"<run>": story.run, "<group>": world}
    tags = {key: values.get(value, value) for key, value in recipe.tags.items()}
    traces = stack.traces.find(SERVICE, tags, recipe.operation, recipe.min_duration)
    assert WHAT_IS_FOUND[number](traces), [[span.name for span in trace][:5] for trace in traces]
