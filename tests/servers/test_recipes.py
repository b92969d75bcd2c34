"""Every search of docs/jaeger.md finds in a real Jaeger what the page describes, in its old API and in the new one."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

from deploy.native.jaeger_spans import JaegerSpan
from deploy.native.ports import HOST
from deploy.native.servers import DEPLOY
from deploy.native.stack import Stack
from deploy.native.training import SERVICE
from tests.servers import query_service
from tests.servers.jobs import RANKS
from tests.servers.story import ABSENT, STRAGGLER, Story

PAGE: Final = DEPLOY.parent / "docs" / "jaeger.md"
EVERY_TRACE: Final = 5000
"""More traces than the story has: Jaeger up to 2.18 returns those of all runs from `/api/v3/traces`."""
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


@pytest.fixture(params=range(len(WHAT_IS_FOUND)), ids=lambda number: WHAT_IS_FOUND[number].__name__)
def number(request: pytest.FixtureRequest) -> int:
    """The index of a recipe."""
    return request.param


@pytest.fixture
def recipe(number: int, story: Story) -> Recipe:
    """The recipe, with the run and group of the story's job."""
    as_written = recipes()[number]
    world = next(one.labels["group"] for one in story.groups if one.labels["description"] == "default_pg")
    values = {"<run>": story.run, "<group>": world}
    tags = {key: values.get(value, value) for key, value in as_written.tags.items()}
    return Recipe(tags, as_written.operation, as_written.min_duration)


def searched(recipe: Recipe, stack: Stack) -> list[Trace]:
    """The traces that the search page shows."""
    return stack.traces.find(SERVICE, recipe.tags, recipe.operation, recipe.min_duration)


def ids(traces: list[Trace]) -> dict[str, set[str]]:
    """The ids of the spans of each trace."""
    return {trace[0].trace_id: {span.span_id for span in trace} for trace in traces}


def test_search_finds_what_the_page_states(number: int, recipe: Recipe, stack: Stack) -> None:
    """Each recipe works with the run and group of a real job, in the API of the search page."""
    traces = searched(recipe, stack)
    assert WHAT_IS_FOUND[number](traces), [[span.name for span in trace][:5] for trace in traces]


def test_grpc_finds_the_same(recipe: Recipe, stack: Stack) -> None:
    """`jaeger.api_v3.QueryService` returns the same traces, with the same spans, for each recipe."""
    duration = recipe.min_duration and datetime.timedelta(milliseconds=int(recipe.min_duration.removesuffix("ms")))
    address = f"{HOST}:{stack.ports.jaeger_query_grpc_port}"
    traces = query_service.found(address, SERVICE, recipe.tags, recipe.operation, duration or None)
    assert {one: {span.span_id.hex() for span in trace} for one, trace in traces.items()} == ids(
        searched(recipe, stack)
    )


def test_http_v3_finds_the_same(recipe: Recipe, stack: Stack) -> None:
    """`/api/v3/traces` finds at least the same traces, and no more if this Jaeger has attributes there."""
    searches_attributes = stack.traces.finds_attributes_in_otlp()
    limit = 100 if searches_attributes else EVERY_TRACE
    traces = stack.traces.find_in_otlp(SERVICE, recipe.tags, recipe.operation, recipe.min_duration, limit)
    found, expected = ids(traces), ids(searched(recipe, stack))
    assert expected
    assert expected.items() <= found.items()
    assert not searches_attributes or expected == found


def test_both_apis_show_one_trace(story: Story, stack: Stack) -> None:
    """The trace of the stall is the same in `/api/v3`: names, parents, times, links, and each of our attributes."""
    traces = stack.traces.find(SERVICE, {"torchdist.run": story.run, "torchdist.stalled": "true"})
    missing = f"rank {ABSENT}: absent"
    trace_id = next(trace[0].trace_id for trace in traces if any(span.name == missing for span in trace))
    old, new = stack.traces.trace(trace_id), stack.traces.trace_in_otlp(trace_id)
    assert len(old) > RANKS
    assert {span.span_id: compared(span) for span in new} == {span.span_id: compared(span) for span in old}


def compared(span: JaegerSpan) -> JaegerSpan:
    """The span without what differs between the APIs.

    Only Jaeger's own JSON has tags such as `span.kind`. In `/api/v3`, the first link within a trace becomes the parent
    of a span without one (`Span.ParentSpanID` of Jaeger's model, in which Badger stores spans).
    """
    parent = span.parent_id or next((one for trace, one in span.links if trace == span.trace_id), "")
    return dataclasses.replace(
        span,
        parent_id=parent,
        links=tuple(sorted({*span.links} - {(span.trace_id, parent)})),
        tags={key: value for key, value in span.tags.items() if key.startswith(("torchdist.", "code."))},
        resource={key: value for key, value in span.resource.items() if key == "service.name"},
    )
