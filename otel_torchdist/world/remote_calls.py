"""Remote procedure calls that a rank has open.

That a call is open is no evidence of anything: one that has a trainer run lasts as long as the training. So these are
no operations, no rank waits in them as far as verdicts go, and only what shows that they cannot go on is a finding.
"""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.activity_kinds import SIDES
from otel_torchdist.model.kinds import ActivityKind
from otel_torchdist.model.remote_calls import CallView, Side, WorkerView
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus

MAX_CALLS: Final = 512
"""Calls shown of each side, the oldest ones."""
UNKNOWN_FUNCTION: Final = "a function"


def worker_of(tape: TapeReader, status: TapeStatus) -> WorkerView | None:
    """What a tape shows of its rank as a worker, at its last poll; None if it is none."""
    if not status.rpc_worker:
        return None
    names = tape.names
    made: list[CallView] = []
    served: list[CallView] = []
    joins: int | None = None
    leaves: int | None = None
    for activity in tape.open_activities():
        call, side = activity.call, SIDES.get(activity.kind)
        if activity.kind is ActivityKind.RPC_JOIN:
            joins = activity.entered_ns
        if activity.kind is ActivityKind.RPC_SHUTDOWN:
            leaves = activity.entered_ns
        if call is None or side is None:
            continue
        is_served = side is Side.CALLEE
        holds = call.returned_ns is None if is_served else call.is_waited_for
        function, peer = names.text(activity.detail) or UNKNOWN_FUNCTION, names.text(call.worker_name) or ""
        site = names.call_site(call.call_site)
        origin = (call.caller_nonce, call.caller_number) if is_served else (tape.identity.nonce, activity.number)
        view = CallView(is_served, function, peer, activity.entered_ns, activity.thread, holds, site, *origin)
        (served if is_served else made).append(view)
    calls = (*made[:MAX_CALLS], *served[:MAX_CALLS])
    return WorkerView(names.text(status.rpc_worker) or "", status.rpc_threads, calls, joins, leaves)
