"""The arguments of each tool. Their docstrings become the descriptions that an assistant reads."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from otel_torchdist.tape.layout import MAX_RANKS

MAX_ASKED: int = 8
"""Upper bound on the ranks whose stacks one call returns."""
_Rank = Annotated[int, Meta(ge=0, lt=MAX_RANKS)]


class ListRunsQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `list_runs`.

    Attributes:
        path: An absolute path of an archive or of a directory with tapes, to list only its runs. Leave it out to list
            everything that this server may read.
    """

    path: str | None = None


class DiagnoseQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `diagnose`.

    Attributes:
        run: The first hexadecimal digits of a run's id, from `list_runs`. Leave it out for the newest run.
        path: An absolute path from `list_runs`: a job directory or a bundle; or dumps of PyTorch's flight recorder and
            logs of a job that was not recorded, as files or folders. Leave it out to look for the run everywhere.
        ranks: Ranks whose state to return. Leave it out for the ranks that matter most: named ranks, then ranks that
            have failed or died, then the others.
        threshold_s: Seconds after which an open operation counts as stalled. Leave it out for the job's usual 10.
        world_size: Number of ranks in the job, only for dumps that do not record it, such as gloo's.
    """

    run: str = ""
    path: str | None = None
    ranks: list[_Rank] | None = None
    threshold_s: Annotated[float, Meta(ge=0.1, le=1e6)] | None = None
    world_size: Annotated[int, Meta(ge=0, le=MAX_RANKS)] = 0


class AnalyzeQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `analyze`.

    Attributes:
        run: The first hexadecimal digits of a run's id, from `list_runs`. Leave it out for the newest run.
        path: An absolute path from `list_runs`: a job directory, archive or bundle; or dumps of PyTorch's flight
            recorder or traces of its profiler. Leave it out to look for the run everywhere.
        section: `advice`: what is worth changing, with the upper bound on the gain; begin here. `path`: the critical
            path of an average step, and which rank or operation makes it long. `calls`: statistics of operations.
            `graph`: which groups are data, tensor, pipeline or expert parallel.
        by: For `calls`: properties that distinguish rows, a list of `operation`, `group`, `size`, `site`, `rank`,
            `phase`, separated by commas. Fewer properties give fewer rows.
        ranks: For `calls`: ranks whose calls are counted. Leave it out for all.
    """

    run: str = ""
    path: str | None = None
    section: Literal["advice", "path", "calls", "graph"] = "advice"
    by: str = "operation,group,size"
    ranks: list[_Rank] | None = None


class StacksQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `stacks`.

    Attributes:
        ranks: The ranks, at most 8. They must have tapes on this node.
        run: The first hexadecimal digits of a run's id, from `list_runs`. Leave it out for the newest run.
        path: An absolute path of a job directory or bundle, from `list_runs`. Leave it out to look everywhere.
        ask: Whether to ask the running ranks for new stacks, which takes up to 5 s. False returns the stacks that they
            wrote last, for example when a stall was reported. True needs a server started with `--allow-stacks`.
    """

    ranks: Annotated[list[_Rank], Meta(min_length=1, max_length=MAX_ASKED)]
    run: str = ""
    path: str | None = None
    ask: bool = False


class ReportQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `read_report`.

    Attributes:
        path: An absolute path of an HTML file written by `otel-torchdist analyze --html`, from `list_runs`.
    """

    path: str
