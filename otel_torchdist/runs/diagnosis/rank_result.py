"""The result of `diagnose` on a rank: structs that are encoded as JSON."""

from __future__ import annotations

import msgspec

from otel_torchdist.analysis.statistics.result import CallSite, GroupRef
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.remote_calls import WorkerView
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.runs.diagnosis.diagnosis import Diagnosis, RankAccount
from otel_torchdist.runs.diagnosis.leftovers import JudgedDumps
from otel_torchdist.runs.diagnosis.moment import ReportedMoment, rounded
from otel_torchdist.runs.diagnosis.verdict_result import call_site, group_ref


class DeathResult(msgspec.Struct, frozen=True):
    """The end of a process, as observed by an agent.

    Attributes:
        time: Time of the end.
        signal: The signal that ended it.
        exit_code: Its exit code.
        error: Type and first line of the exception, from torchelastic's error file.
        out_of_memory: Counter of OOM kills that increased at that moment: `cgroup` or `node`.
        exact: False if the time was derived from the tape's lock.
    """

    time: str
    signal: str | None
    exit_code: int | None
    error: str | None
    out_of_memory: str | None
    exact: bool


class OperationResult(msgspec.Struct, frozen=True):
    """An operation of a rank.

    Attributes:
        operation: Name of the operation.
        sequence: Its sequence.
        group: Its group.
        label: The program's name for the operation.
        peers: Ranks that take part in it.
        tag: The tag of a send or receive.
        entered: When the rank entered it.
        age_s: Time since the rank began to wait for it, or entered it.
        waits: Whether the rank waits for it.
        ended: When it ended.
        exception: Type of the exception that ended it.
        call_site: The line that called it.
        call_path: The frames that led to the call, innermost first. Consecutive frames of libraries are merged.
    """

    operation: str
    sequence: int
    group: GroupRef | None
    label: str | None
    peers: tuple[int, ...] | None
    tag: int | None
    entered: str
    age_s: float
    waits: bool
    ended: str | None
    exception: str | None
    call_site: CallSite | None
    call_path: tuple[str, ...]


class StackResult(msgspec.Struct, frozen=True):
    """The line of code at which a rank is, from its stacks.

    Attributes:
        written: When the stacks were requested.
        source: `thread` for the rank's own thread, `signal` for a signal while the GIL was held.
        call_site: The innermost line of the program.
    """

    written: str
    source: str
    call_site: CallSite | None


class RemoteCallResult(msgspec.Struct, frozen=True):
    """A remote procedure call.

    Attributes:
        function: The called function.
        peer: The other worker.
        served: Whether this rank runs it.
        age_s: Time since it began.
        call_site: The line that called it.
    """

    function: str
    peer: str | None
    served: bool
    age_s: float | None
    call_site: CallSite | None


class WorkerResult(msgspec.Struct, frozen=True):
    """A rank as a worker of RPC.

    Attributes:
        name: Name of the worker.
        joining_s: Time that it has waited in `init_rpc`; null if it is in no such call.
        leaving_s: Time that it has waited in `rpc.shutdown`; null if it is in no such call.
        calls: Its open calls.
    """

    name: str
    joining_s: float | None
    leaving_s: float | None
    calls: tuple[RemoteCallResult, ...]


class RankResult(msgspec.Struct, frozen=True):
    """A rank.

    Attributes:
        rank: Global rank.
        life: `running`, `finished`, `failed` or `dead`. For a dump, null like most of the following.
        exception: Type of the exception with which it failed.
        pid: Its process id.
        tape: Path of its tape.
        dump: Path of its dump.
        step: Its step.
        death: The end of its process; null unless an agent saw it.
        last_sign_of_life: Time of its last sign of life.
        silent_s: Time since then.
        open: Its open operations, first those in which it waits.
        last_finished: The operation that it finished last.
        stack: The line of code at which it is.
        worker: Its state as a worker of RPC.
    """

    rank: int
    life: str | None
    exception: str | None
    pid: int | None
    tape: str | None
    dump: str | None
    step: int | None
    death: DeathResult | None
    last_sign_of_life: str | None
    silent_s: float | None
    open: tuple[OperationResult, ...]
    last_finished: OperationResult | None
    stack: StackResult | None
    worker: WorkerResult | None


def recorded_rank(diagnosis: Diagnosis, account: RankAccount) -> RankResult:
    """Return the result on a rank with a tape."""
    view = account.view
    return RankResult(
        rank=view.rank,
        life=account.life.value,
        exception=view.failure or None,
        pid=account.pid,
        tape=account.tape,
        dump=None,
        step=view.step,
        death=_death(diagnosis, view.death) if view.death is not None else None,
        last_sign_of_life=diagnosis.time_of(account.sign_ns),
        silent_s=rounded(diagnosis.seconds_since(account.sign_ns)),
        open=tuple(_operation(diagnosis, operation) for operation in account.open),
        last_finished=_operation(diagnosis, view.last) if view.last is not None else None,
        stack=_stack(diagnosis, account),
        worker=_worker(diagnosis, view.worker) if view.worker is not None else None,
    )


def dumped_rank(dumps: JudgedDumps, view: RankView, path: str) -> RankResult:
    """Return the result on a rank with a dump, which does not record the rank's fate."""
    return RankResult(
        rank=view.rank,
        life=None,
        exception=None,
        pid=None,
        tape=None,
        dump=path,
        step=None,
        death=None,
        last_sign_of_life=None,
        silent_s=None,
        open=tuple(_operation(dumps, operation) for operation in view.open),
        last_finished=_operation(dumps, view.last) if view.last is not None else None,
        stack=None,
        worker=None,
    )


def _death(moment: ReportedMoment, death: Death) -> DeathResult:
    return DeathResult(
        time=moment.time_of(death.at_ns),
        signal=death.signal_name or None,
        exit_code=death.exit_code,
        error=death.error or None,
        out_of_memory=death.oom or None,
        exact=death.is_exact,
    )


def _stack(moment: ReportedMoment, account: RankAccount) -> StackResult | None:
    position, stacks = account.stack, account.view.stacks
    if position is None or stacks is None:
        return None
    source = "signal" if stacks.by_signal else "thread"
    return StackResult(moment.time_of(stacks.asked_ns), source, call_site(position.frame))


def _operation(moment: ReportedMoment, operation: OperationView) -> OperationResult:
    record, channel = operation.record, operation.operation_id.channel
    since_ns = operation.waiting_since_ns or record.entered_ns
    peers = (
        {channel.source, channel.destination}
        if channel.is_point_to_point
        else operation.group and operation.group.members
    )
    return OperationResult(
        operation=operation.name,
        sequence=operation.operation_id.sequence,
        group=group_ref(operation.group),
        label=operation.label or None,
        peers=tuple(sorted(rank for rank in peers if rank >= 0)) if peers is not None else None,
        tag=channel.tag if channel.is_point_to_point and channel.tag >= 0 else None,
        entered=moment.time_of(record.entered_ns),
        age_s=rounded(moment.seconds_since(since_ns)),
        waits=operation.waiting_since_ns is not None,
        ended=moment.time_of(record.completed_ns) if record.completed_ns is not None else None,
        exception=operation.failure or None,
        call_site=call_site(operation.call_site),
        call_path=tuple(operation.path),
    )


def _worker(moment: ReportedMoment, worker: WorkerView) -> WorkerResult:
    calls = tuple(
        RemoteCallResult(
            function=call.function,
            peer=call.peer or None,
            served=call.is_served,
            age_s=rounded(moment.seconds_since(call.since_ns)),
            call_site=call_site(call.call_site),
        )
        for call in worker.calls
    )
    joining, leaving = worker.joins_since_ns, worker.leaves_since_ns
    return WorkerResult(worker.name, _age_s(moment, joining), _age_s(moment, leaving), calls)


def _age_s(moment: ReportedMoment, since_ns: int | None) -> float | None:
    return None if since_ns is None else rounded(moment.seconds_since(since_ns))
