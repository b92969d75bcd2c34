"""The critical path in the words of `critical-path`, as a report has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from otel_torchdist.advice.model import Advice
from otel_torchdist.advice.wording import PAGES, check, finding
from otel_torchdist.critical_path.model import CriticalPath, PathKind
from otel_torchdist.critical_path.timelines import Label
from otel_torchdist.critical_path.wording import describe_doing, left_out, sentence
from otel_torchdist.naming import compress_ranks
from otel_torchdist.report.model.path import Gain, Hint, Path, PathPart, RankParts
from otel_torchdist.verdict.wording.frames import describe_frame

MOST_PARTS: Final = 100
MOST_GAINS: Final = 20


def path_section(found: CriticalPath) -> Path:
    """Describe the path."""
    steps = [one.step for one in found.steps]
    parts = [
        PathPart(kind.value, rank, *_named(found, label), length_ns, _doing(found, kind, rank, label))
        for (kind, rank, label), length_ns in found.by_label.items()
        if length_ns
    ]
    return Path(
        first_step=steps[0],
        last_step=steps[-1],
        steps=len(steps),
        unsteady=found.unsteady,
        step_ns=found.step_ns,
        path_ns=found.path_ns,
        computing_ns=found.by_kind.get(PathKind.COMPUTING, 0),
        transfer_ns=found.by_kind.get(PathKind.TRANSFER, 0),
        parts=tuple(parts[:MOST_PARTS]),
        parts_left_out=max(0, len(parts) - MOST_PARTS),
        ranks=_ranks(found),
        gains=tuple(
            Gain(sentence(cause, found.group_names), compress_ranks(cause.ranks, 60), cause.gain_ns)
            for cause in found.causes[:MOST_GAINS]
        ),
        notes=(*(left_out(step, found.group_names) for step in found.longest), *found.notes),
    )


def hints_in(found: Iterable[Advice], path: CriticalPath | None) -> Iterator[Hint]:
    """Describe what is worth looking into."""
    names = path.group_names if path is not None else dict[str, str]()
    for one in found:
        yield Hint(one.topic.value, finding(one, names), check(one), PAGES[one.topic])


def _ranks(found: CriticalPath) -> RankParts:
    ranks = found.by_rank
    return RankParts(
        rank=tuple(one.rank for one in ranks),
        on_path_ns=tuple(one.on_path_ns for one in ranks),
        computing_ns=tuple(one.computing_ns for one in ranks),
        waiting_ns=tuple(one.waiting_ns for one in ranks),
        transfer_ns=tuple(one.transfer_ns for one in ranks),
        waits_for=tuple(one.waits_for[0][0] if one.waits_for else -1 for one in ranks),
    )


def _doing(found: CriticalPath, kind: PathKind, rank: int, label: Label | None) -> str:
    """What a rank does in a part; '' in transfers."""
    return describe_doing(found.spent.get((rank, label), {})) if kind is PathKind.COMPUTING else ""


def _named(found: CriticalPath, label: Label | None) -> tuple[str, str, str]:
    """Operation, group and line."""
    if label is None:
        return "", "", ""
    site = describe_frame(label.site) if label.site is not None else ""
    return label.operation, found.group_names.get(label.group, ""), site
