"""The table of tools: their names, the texts that an assistant reads, their arguments and answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from otel_torchdist.cli.mcp import answers, questions
from otel_torchdist.cli.mcp.bounds import MAX_CHARACTERS, bounded
from otel_torchdist.cli.mcp.reading import analyze, diagnose, list_runs, report
from otel_torchdist.cli.mcp.stacks import stacks
from otel_torchdist.cli.mcp.targets import RunTargets
from otel_torchdist.errors import RunError


@dataclass(frozen=True, slots=True)
class AssistantTool:
    """A tool.

    Attributes:
        name: Its name in the protocol.
        title: Its name for people.
        description: When to call it, and what the answer means.
        question: Struct of its arguments.
        answer: Struct of its answer.
        function: Answers a question.
        narrowing: How to get what an answer left out.
        is_read_only: Whether it changes nothing, and asks no process for anything.
    """

    name: str
    title: str
    description: str
    question: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    function: Callable[[Any], msgspec.Struct]
    narrowing: str
    is_read_only: bool = True

    def call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the answer as plain values, shortened if necessary.

        Raises:
            RunError: The question cannot be answered; the message gives the reason in a line.
        """
        try:
            question = msgspec.convert(arguments, self.question)
        except msgspec.ValidationError as error:
            raise RunError(f"{self.name}: wrong arguments: {error}") from error
        try:
            answer = self.function(question)
        except ValueError as error:
            raise RunError(f"{self.name}: wrong arguments: {error}") from error
        return bounded(answer, self.narrowing)


_BOUND: Final = f"The answer has at most {MAX_CHARACTERS:,} characters; `left_out` says what is missing."


def tools_for(targets: RunTargets, may_ask: bool) -> dict[str, AssistantTool]:
    """Return all tools by name.

    Args:
        targets: Finds what they read.
        may_ask: Whether ranks may be asked for stacks.
    """
    asking = (
        "With ask=true, running ranks write new stacks, which takes up to 5 s and does not stop them."
        if may_ask
        else "This server was started without --allow-stacks, so ask=true is refused."
    )
    tools = (
        AssistantTool(
            "list_runs",
            "List training runs",
            "List the runs of PyTorch distributed training that were recorded on this machine, running or ended, the "
            "newest first, with id, state, ranks and start time. Call this first, to get the id or path that the other "
            f"tools need. Reading a list takes a second at most. {_BOUND}",
            questions.ListRunsQuestion,
            answers.ListRunsAnswer,
            partial(list_runs, targets),
            "name one directory with `path`",
        ),
        AssistantTool(
            "diagnose",
            "Diagnose a hang or crash",
            "Find out why a distributed training job hangs or has crashed: which rank holds the others up, since when, "
            "in which collective operation, and at which line of its code; or which rank died first, and how. Works "
            "while the job hangs and after it has ended. `summary` is the result in sentences; the next step follows "
            "`next:`. `diagnosis.verdict` is null if nobody holds the others up. Ages are seconds. Call it again for "
            f"the current state of a running job. {_BOUND} Name `ranks` for the state of particular ranks.",
            questions.DiagnoseQuestion,
            answers.DiagnoseAnswer,
            partial(diagnose, targets),
            "name the ranks to show with `ranks`, at most 8 at a time",
        ),
        AssistantTool(
            "analyze",
            "Analyze where the time goes",
            "Find out why a distributed training job is slow: which rank is late, what the critical path of a step is, "
            "how long operations take and how long ranks wait for each other, how the job is parallelized, and what "
            "would gain most. Begin with section `advice`, then look at `path` or `calls`. Fields ending in _ns are "
            "nanoseconds, in _bytes bytes. Large runs take a minute. An empty `advice` means that nothing is worth "
            f"changing. {_BOUND}",
            questions.AnalyzeQuestion,
            answers.AnalyzeAnswer,
            partial(analyze, targets),
            "group `calls` by fewer properties with `by`, or name `ranks`",
        ),
        AssistantTool(
            "stacks",
            "Show stacks of ranks",
            "Show the Python stacks of up to 8 ranks of a run on this node, all threads, innermost frame first. Use it "
            "after diagnose, for the named ranks, to see what led to their line of code. Without ask=true, the stacks "
            f"are those that ranks wrote last: `written` says when. {asking} {_BOUND}",
            questions.StacksQuestion,
            answers.StacksAnswer,
            partial(stacks, targets, may_ask=may_ask),
            "name fewer `ranks`",
            is_read_only=not may_ask,
        ),
        AssistantTool(
            "read_report",
            "Read a report",
            "Read the conclusions of a report that `otel-torchdist analyze --html` has written: verdict, long waits "
            "that have ended, advice. Use it when someone refers to such a file; its run may no longer exist. The "
            f"figures and the timeline are left out. {_BOUND}",
            questions.ReportQuestion,
            answers.ReportAnswer,
            partial(report, targets),
            "open the file in a browser for the rest",
        ),
    )
    return {tool.name: tool for tool in tools}
