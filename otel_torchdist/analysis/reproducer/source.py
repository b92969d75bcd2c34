"""Writes a script as Python source. It needs only torch, and the job's names occur only in comments and strings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from otel_torchdist.analysis.reproducer.calls import (
    WIDTH,
    comment,
    group_variable,
    literal,
    plain,
    statement,
    work_variable,
)
from otel_torchdist.analysis.reproducer.endings import FOREVER_S, SUDDEN, statements_of
from otel_torchdist.analysis.reproducer.script import (
    DEFAULT_GROUP,
    Create,
    CreateExtra,
    End,
    Ending,
    Script,
    ScriptCall,
    ScriptWait,
    Step,
)

_INDENT: Final = "    "
MAX_REMARKS: Final = 4
"""Upper bound on the different remarks about one party of ranks."""


def source_of(script: Script, file_name: str) -> str:
    """Write a script.

    Args:
        script: The plan of the script.
        file_name: The file name in the command that runs the script.
    """
    return "\n".join([*_header(script, file_name), "", *_imports(script), "", *_body(script), ""])


def _header(script: Script, file_name: str) -> Iterator[str]:
    # The first two lines are fixed text: Python would read an encoding from them.
    yield "# A reproducer for a hang in torch.distributed. It needs only torch, and no GPU:"
    yield "#"
    yield from comment(f"    torchrun --nproc-per-node {len(script.steps)} {file_name}")
    for fact in (script.title, *script.facts):
        yield "#"
        yield from comment(fact)


def _imports(script: Script) -> Iterator[str]:
    endings = {step.ending for steps in script.steps for step in steps if isinstance(step, End)}
    yield "import os"
    if endings & {Ending.STOPS, Ending.KILLS_ITSELF}:
        yield "import signal"
    if endings & {Ending.STAYS_AWAY, *SUDDEN} or script.outlives_errors:
        yield "import time"
    yield ""
    if any(isinstance(step, ScriptCall) for steps in script.steps for step in steps):
        yield "import torch"
    yield "import torch.distributed as dist"
    yield ""
    yield 'rank = int(os.environ["RANK"])'


def _body(script: Script) -> Iterator[str]:
    common = _common(script.steps)
    if common:
        yield from _lines(script.steps[0][:common], "")
    parties: dict[tuple[Step, ...], list[int]] = {}
    for rank, steps in enumerate(script.steps):
        parties.setdefault(steps[common:], []).append(rank)
    if common:
        yield ""
    if not script.outlives_errors:
        yield from _branches(script, parties, "")
        return
    yield "try:"
    yield from _branches(script, parties, _INDENT)
    yield "except RuntimeError as error:  # from gloo; other backends hang"
    yield f"{_INDENT}print(error, flush=True)"
    yield f"{_INDENT}time.sleep({FOREVER_S})"


def _branches(script: Script, parties: Mapping[tuple[Step, ...], Sequence[int]], indent: str) -> Iterator[str]:
    """Yield one branch per party of ranks that do the same. Parties that the verdict names come first."""
    ordered = sorted(parties.items(), key=lambda party: (not {*party[1]} & {*script.named}, party[1]))
    for place, (steps, ranks) in enumerate(ordered):
        remarks = _remarks(script.steps[rank] for rank in ranks)
        if len(ordered) == 1:
            yield from _lines(steps, indent, remarks)
        else:
            yield indent + _branch(ranks, place, len(ordered))
            yield from _lines(steps, indent + _INDENT, remarks)


def _branch(ranks: Sequence[int], place: int, count: int) -> str:
    condition = f"rank == {ranks[0]}" if len(ranks) == 1 else f"rank in {tuple(ranks)}"
    if place == count - 1:
        return f"else:  # {condition}"
    return f"{'elif' if place else 'if'} {condition}:"


def _common(ranks: Sequence[Sequence[Step]]) -> int:
    """Return the number of leading steps that all ranks share. An end is never shared."""
    count = 0
    for steps in zip(*ranks, strict=False):
        if len(set(steps)) > 1 or isinstance(steps[0], End):
            break
        count += 1
    return count


def _remarks(ranks: Iterable[Sequence[Step]]) -> list[str]:
    """Return the distinct remarks on ranks that do the same in the script."""
    ends = [step for steps in ranks for step in steps[-1:] if isinstance(step, End)]
    distinct = list(dict.fromkeys(end.remarks for end in ends))
    return [remark for remarks in distinct[:MAX_REMARKS] for remark in remarks]


def _lines(steps: Sequence[Step], indent: str, remarks: Sequence[str] = ()) -> Iterator[str]:
    written = False
    for step, repeated in itertools.groupby(steps):
        count = len(list(repeated))
        for line in _step(step, count, remarks):
            yield indent + line if line else ""
            written = True
    if not written:
        yield f"{indent}pass"


def _step(step: Step, count: int, remarks: Sequence[str]) -> Iterator[str]:
    match step:
        case Create():
            yield from _remarked([_creation(step)], step.hangs, step.site)
        case CreateExtra():
            yield "# Groups that other ranks do not create."
            yield from _repeated(["dist.new_group([rank])"], step.count)
        case ScriptCall():
            yield from _repeated(_remarked(statement(step), step.hangs, step.site), count)
        case ScriptWait():
            yield from _remarked([f"{work_variable(step.work)}.wait()"], step.hangs, "")
        case End():
            for remark in remarks:
                yield from comment(remark, hanging="    ")
            yield from statements_of(step)


def _remarked(lines: list[str], hangs: bool, site: str) -> list[str]:
    """Add the job's call site as a comment after a statement, or above it if the line would be too long."""
    remark = plain("hangs" + (f": {site}" if site else "") if hangs else site)
    if not remark:
        return lines
    *before, last = lines
    remarked = f"{last}  # {remark}"
    return [*before, remarked] if len(remarked) <= WIDTH else [*comment(remark), *lines]


def _repeated(lines: Sequence[str], count: int) -> Iterator[str]:
    if count == 1:
        yield from lines
        return
    yield f"for _ in range({count}):"
    yield from (_INDENT + line for line in lines)


def _creation(step: Create) -> str:
    group = step.group
    if group.number == DEFAULT_GROUP:
        return 'dist.init_process_group("gloo")'
    description = f", group_desc={literal(group.description)}" if group.description else ""
    return f"{group_variable(group.number)} = dist.new_group({list(group.ranks)}{description})"
