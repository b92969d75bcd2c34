"""Prints the diagnosis from texts of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from otel_torchdist.cli.diagnose.report import with_next_step
from otel_torchdist.judge.verdict.wording.calls import describe_frame
from otel_torchdist.model.text import have, name_ranks
from otel_torchdist.runs.diagnosis.texts import TextFindings
from otel_torchdist.sources.evidence.findings import ToolFinding

MAX_SHOWN: Final = 200
"""Upper bound on the findings in a report."""
_RANKS_WIDTH: Final = 12


def lines_of_texts(texts: TextFindings) -> Iterator[Text]:
    """Yield the report."""
    if texts.verdict is not None:
        yield from with_next_step(Text.assemble(("verdict", "bold white on red"), "  "), texts.sentence)
        yield Text("  and    from the lines of the ranks' watchdogs")
    if texts.silent:
        yield Text(f"  and    {name_ranks(texts.silent)} {have(texts.silent)} written nothing about it", style="yellow")
    if texts.outside:
        verb = "is" if len(texts.outside) == 1 else "are"
        others = f"{name_ranks(texts.inside)} {'is' if len(texts.inside) == 1 else 'are'}"
        yield Text.assemble(
            ("stacks", "bold"), f"  {name_ranks(texts.outside)} {verb} in no operation of torch.distributed; {others}"
        )
    for finding in texts.findings[:MAX_SHOWN]:
        yield _line(finding)
    if len(texts.findings) > MAX_SHOWN:
        yield Text(f"and {len(texts.findings) - MAX_SHOWN} more; --json shows all")


def _line(finding: ToolFinding) -> Text:
    ranks_text = ", ".join([*([name_ranks(finding.ranks)] if finding.ranks else []), *finding.unidentified[:4]]) or "-"
    how = "called in" if finding.is_call else "in"
    frame = f", {how} {describe_frame(finding.frame)}" if finding.frame is not None else ""
    first = ", the first failure that the launcher saw" if finding.is_first else ""
    times = f", {finding.count} times" if finding.count > len(finding.ranks) + len(finding.unidentified) else ""
    return Text.assemble(
        (f"{ranks_text:{_RANKS_WIDTH}}", "bold"),
        f"  {finding.text}{frame}{first}{times}",
        (f"  [{finding.source.text}]", "dim"),
    )
