"""Expectations of the families of operations, steps, checkpoints and of the recording itself."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from otel_torchdist import semconv
from tests.figures.expectations import (
    DDP,
    GROUPS,
    Check,
    absent,
    by_operation,
    by_rank,
    entered,
    if_saving,
    most_seconds,
    nothing,
    of_sizes,
    shown,
    shown_finally,
    shown_live,
    step_bounds_s,
    waited_for,
    within,
    zero,
)
from tests.figures.running import Run, Series
from tests.figures.witness import DEFAULT, TEAM, Witness

WINDOW: Final = 64
"""Calls of a group whose arrivals are compared together."""
POLLED_S: Final = 0.06
"""How late a poll may see an end, as the README says."""
ROUNDED_S: Final = 1e-9
"""Rounding error of seconds that are kept in nanoseconds."""


def sizes(witness: Witness, group: str, operation: str) -> float:
    """Return the bytes that a rank contributed to an operation."""
    return witness.sizes[group, operation]


def slept(run: Run) -> Series:
    """Return the least time that operations have taken: rank 0 has waited for rank 1."""
    return {("0", TEAM, "all_reduce"): lateness_s(run)}


def lateness_s(run: Run) -> float:
    """Return half of what rank 1 sleeps while rank 0 waits: on a busy machine rank 0 may come late itself."""
    return run.witnesses[1].report["late_s"] / 2


def collectives(witness: Witness, group: str) -> int:
    """Return how many collectives of a group gloo has numbered."""
    return max(call.sequence for call in witness.calls if call.group == group)


def by_group(value: Callable[[Witness, str], float]) -> Callable[[Run], Series]:
    """Make series by rank and group."""
    return lambda run: {
        (str(witness.rank), group): value(witness, group) for witness in run.witnesses for group in GROUPS
    }


def of_groups(value: float) -> Callable[[Run], Series]:
    """Make series by group."""
    return lambda run: {(group,): value for group in GROUPS}


def span_s(run: Run) -> float:
    """Return the time from the first call of any rank to the last one."""
    begun, ended = zip(*(witness.report["during"] for witness in run.witnesses), strict=True)
    return (max(ended) - min(begun)) / 1e9


def arrivals(run: Run) -> None:
    """Whole windows of the default group are compared, each call has one last rank, and rank 1 is late as it slept."""
    compared = run.final.series(semconv.ARRIVALS)
    [(group, calls)] = compared.items()
    assert group == (DEFAULT,)
    assert calls in range(WINDOW, collectives(run.witnesses[0], DEFAULT) + 1, WINDOW)
    last = run.final.series(semconv.LAST_ARRIVALS)
    assert {key[1] for key in last} == {DEFAULT}
    assert sum(last.values()) == calls
    most_s = span_s(run)
    lateness = run.final.series(semconv.LATENESS)
    assert lateness_s(run) <= lateness["1", DEFAULT] <= most_s
    assert sum(lateness.values()) <= most_s
    # Of two ranks one has waited, so on average half of that.
    assert abs(run.final.series(semconv.WAITED_SECONDS)[DEFAULT,] - sum(lateness.values()) / 2) <= 1e-6 * calls


def path(run: Run) -> None:
    """The path is as long as a step, ranks compute on it as long as it says, and it can gain no more than that."""
    kinds, ranks = run.final.series(semconv.PATH_SECONDS), run.final.series(semconv.PATH_RANK_SECONDS)
    gains = run.final.series(semconv.PATH_GAIN_SECONDS)
    least, most = step_bounds_s(run)
    assert kinds.keys() <= {("computing",), ("transfer",)}
    assert least <= sum(kinds.values()) <= most
    assert abs(sum(ranks.values()) - kinds["computing",]) < ROUNDED_S * (1 + len(ranks))
    assert {cause for cause, _, _ in gains} <= {"line", "rank", "transfer"}, "it has no nodes and no stages"
    assert all(0 <= gain <= sum(kinds.values()) for gain in gains.values())


def saved(what: str) -> Callable[[Run], Series]:
    """Make series of the checkpoints that ranks have noted, by rank and operation."""
    return lambda run: {
        (str(witness.rank), operation): noted.get(what, 1)
        for witness in run.witnesses
        for operation, noted in witness.report["saved"].items()
    }


def checkpoint_seconds(run: Run) -> None:
    """A checkpoint takes no longer than the program saw, all together half of that; stages lie within it."""
    found = run.final.series(semconv.CHECKPOINT_SECONDS)
    whole = {key[:2]: value for key, value in found.items() if key[2] == "whole"}
    assert whole.keys() == saved("files")(run).keys()
    own = {key: run.witnesses[int(key[0])].seconds(key[1]) for key in whole}
    assert {key: (value, own[key]) for key, value in whole.items() if not 0 < value <= own[key]} == {}
    assert sum(whole.values()) >= sum(own.values()) / 2
    for (rank, operation, stage), seconds in found.items():
        assert seconds <= whole[rank, operation], (rank, operation, stage)
    for rank in ("0", "1"):
        for operation, last in (("save", "write"), ("load", "read")):
            parts = found[rank, operation, "plan"] + found[rank, operation, last]
            assert parts <= whole[rank, operation]


def saved_age(run: Run) -> None:
    """The age counts from the last save, and ends with the ranks."""
    [(_, age_s)] = run.live.series(semconv.CHECKPOINT_AGE).items()
    newest = max(witness.report["saved_at"] for witness in run.witnesses)
    assert run.live.at - newest - 5 <= age_s <= run.live.at - newest + 1
    assert run.final.series(semconv.CHECKPOINT_AGE) == {}


def idle(run: Run) -> None:
    """While the program runs, no rank has been without a call since before its last one; nothing is idle in the end."""
    found = run.live.series(semconv.IDLE_SECONDS)
    newest = {str(one.rank): max(call.created_ns for call in one.calls) / 1e9 for one in run.witnesses}
    assert found.keys() == {(rank,) for rank in newest}
    assert all(0 <= seconds <= max(run.live.at - newest[rank], 0) + 5 for (rank,), seconds in found.items())
    assert run.final.series(semconv.IDLE_SECONDS) == {}


def step_seconds(run: Run, bound: int) -> Series:
    """Return bounds of the sum of all steps but the first, whose begin is not known."""
    return by_rank(lambda witness: witness.step_bounds_s(witness.steps - 1, 0)[bound])(run)


def histogram(name: str, counts: Callable[[Run], Series], sums: str) -> Check:
    """Expect the histogram to have as many as there are, and the sum that ranks have."""

    def check(run: Run) -> None:
        count, buckets = run.final.series(name, "_count"), run.final.series(name, "_bucket")
        assert count == {key: value for key, value in counts(run).items() if value}
        assert {key[:-1]: value for key, value in buckets.items() if key[-1] == "+Inf"} == count
        total = sum(run.final.series(name, "_sum").values())
        assert abs(total - sum(run.final.series(sums).values())) < ROUNDED_S * len(run.witnesses[0].calls)

    return check


def timed_by_size(run: Run) -> Series:
    """Return how many operations have a duration by size, which the ranks' own counts must add up to."""
    found = run.final.series(semconv.OPERATION_DURATION, "_count")
    least, most = of_sizes(run, True, lambda _: 1), of_sizes(run, False, lambda _: 1)
    assert all(least.get(key, 0) <= value <= most[key] for key, value in found.items())
    by_operation: Counter[tuple[str, str]] = Counter()
    for (group, operation, _), value in found.items():
        by_operation[group, operation] += int(value)
    ranks: Counter[tuple[str, str]] = Counter()
    for (_, group, operation), value in run.final.series(semconv.TIMED_OPERATIONS).items():
        ranks[group, operation] += int(value)
    assert +by_operation == +ranks
    return found


def steps_of_node(run: Run) -> Series:
    """Return how many steps of the node have a duration."""
    return {(): sum(witness.steps - 1 for witness in run.witnesses)}


def job(run: Run) -> Series:
    """Return the one series that torchrun's environment makes."""
    torchelastic, restarts = run.witnesses[0].report["job"]
    return {("", "", "", "", "", torchelastic, restarts, "", ""): 1}


def communicating(run: Run) -> Series:
    """Return the most time with an operation in flight: until a poll has seen the last one's end."""
    return by_rank(lambda witness: witness.took_s + 2 * POLLED_S)(run)


def most_timed(run: Run) -> Series:
    """Return how many operations can have a duration: in Python those that the call has waited for, natively all."""
    return by_operation(entered if run.kernel == "native" else waited_for)(run)


def calling(witness: Witness) -> float:
    """Return the time of all parts that call collectives, by the program's clock."""
    return witness.seconds(*DDP, "objects", "save", "load", *witness.report["calls"])


def blocked(run: Run) -> Series:
    """Return the least time in calls: what rank 0 waits for rank 1 outside of steps."""
    return {("0",): lateness_s(run)}


def waiting(run: Run) -> Series:
    """Return the least time in flight: rank 0 waits for rank 1 in a step (DDP does, in C++), and outside."""
    return {("0",): 2 * lateness_s(run)}


def slept_in(part: str) -> Callable[[Run], Series]:
    """Return the time that the program has slept in a part."""
    return by_rank(lambda witness: witness.report["slept"][part])


def clock_of(part: str) -> Callable[[Run], Series]:
    """Return a part's time by the program's clock."""
    return by_rank(lambda witness: witness.seconds(part))


def on_host(run: Run) -> Series:
    """Return where the ranks run, without a GPU."""
    return {(str(one.rank), socket.gethostname(), ""): 1 for one in run.witnesses}


NUMBERS: Final = by_rank(zero)
PROGRAM_FAMILIES: Final[dict[str, Check]] = {
    semconv.UP: shown_live(semconv.UP, by_rank(lambda _: 1)),
    semconv.STALLED_METRIC: shown(semconv.STALLED_METRIC, of_groups(0)),
    semconv.STALL_INFO: absent(semconv.STALL_INFO),
    semconv.ATTEMPT_ENDED: shown_finally(semconv.ATTEMPT_ENDED, lambda _: {("", "", "finished", "", ""): 1}),
    semconv.FINDING_INFO: absent(semconv.FINDING_INFO),
    **dict.fromkeys((semconv.ARRIVALS, semconv.LAST_ARRIVALS, semconv.LATENESS, semconv.WAITED_SECONDS), arrivals),
    semconv.OPERATIONS_IN_FLIGHT: shown(semconv.OPERATIONS_IN_FLIGHT, by_operation(zero)),
    semconv.OPERATION_OLDEST_AGE: shown(semconv.OPERATION_OLDEST_AGE, by_operation(zero)),
    semconv.OPERATIONS: shown(semconv.OPERATIONS, by_operation(entered)),
    semconv.MESSAGE_BYTES: shown(semconv.MESSAGE_BYTES, by_operation(sizes)),
    semconv.TIMED_OPERATIONS: within(semconv.TIMED_OPERATIONS, by_operation(waited_for), most_timed),
    semconv.TIMED_OPERATION_SECONDS: within(semconv.TIMED_OPERATION_SECONDS, slept, by_operation(most_seconds)),
    semconv.TIMED_MESSAGE_BYTES: within(
        semconv.TIMED_MESSAGE_BYTES,
        lambda run: of_sizes(run, True, float),
        lambda run: {key: of_sizes(run, False, float)[key] for key in timed_by_size(run)},
    ),
    semconv.BLOCKED_SECONDS: within(semconv.BLOCKED_SECONDS, blocked, by_rank(calling)),
    semconv.COMMUNICATION_SECONDS: within(semconv.COMMUNICATION_SECONDS, waiting, communicating),
    semconv.LAST_STARTED_SEQUENCE: shown(semconv.LAST_STARTED_SEQUENCE, by_group(collectives)),
    semconv.LAST_COMPLETED_SEQUENCE: shown(semconv.LAST_COMPLETED_SEQUENCE, by_group(collectives)),
    semconv.OPERATIONS_UNTRACKED: shown(semconv.OPERATIONS_UNTRACKED, NUMBERS),
    semconv.OPERATIONS_FAILED: shown(semconv.OPERATIONS_FAILED, NUMBERS),
    **dict.fromkeys((semconv.PATH_SECONDS, semconv.PATH_RANK_SECONDS, semconv.PATH_GAIN_SECONDS), path),
    semconv.CHECKPOINTS: shown(semconv.CHECKPOINTS, saved("")),
    semconv.CHECKPOINT_SECONDS: if_saving(checkpoint_seconds, absent(semconv.CHECKPOINT_SECONDS)),
    semconv.CHECKPOINT_BYTES: shown(semconv.CHECKPOINT_BYTES, saved("bytes")),
    semconv.CHECKPOINT_FILE_COUNT: shown(semconv.CHECKPOINT_FILE_COUNT, saved("files")),
    semconv.CHECKPOINT_FAILURES: absent(semconv.CHECKPOINT_FAILURES),
    semconv.CHECKPOINT_AGE: if_saving(saved_age, absent(semconv.CHECKPOINT_AGE)),
    semconv.CHECKPOINT_INTERVAL: absent(semconv.CHECKPOINT_INTERVAL),
    semconv.IDLE_SECONDS: idle,
    semconv.TIMED_STEPS: shown(semconv.TIMED_STEPS, by_rank(lambda witness: witness.steps - 1)),
    semconv.TIMED_STEP_SECONDS: within(
        semconv.TIMED_STEP_SECONDS, lambda run: step_seconds(run, 0), lambda run: step_seconds(run, 1)
    ),
    semconv.DATA_WAIT_SECONDS: within(semconv.DATA_WAIT_SECONDS, slept_in("data"), clock_of("data")),
    semconv.BATCHES: shown(semconv.BATCHES, by_rank(lambda one: one.report["counts"]["batches"])),
    semconv.BACKWARD_SECONDS: within(semconv.BACKWARD_SECONDS, slept_in("backward"), clock_of("backward")),
    semconv.OPTIMIZER_SECONDS: within(semconv.OPTIMIZER_SECONDS, slept_in("optimizer"), clock_of("optimizer")),
    semconv.SAMPLES: shown(semconv.SAMPLES, by_rank(lambda one: one.report["counts"].get("samples"))),
    semconv.TOKENS: shown(semconv.TOKENS, by_rank(lambda one: one.report["counts"].get("tokens"))),
    semconv.FLOPS: shown(semconv.FLOPS, by_rank(lambda one: one.report["counts"].get("flops"))),
    semconv.GRADIENT_SYNC_SECONDS: shown(
        semconv.GRADIENT_SYNC_SECONDS, by_rank(lambda one: one.report["sync_ns"] / 1e9)
    ),
    semconv.GRADIENT_SYNC_EXPOSED_SECONDS: shown(
        semconv.GRADIENT_SYNC_EXPOSED_SECONDS,
        by_rank(lambda one: (one.report["sync_ns"] - one.report["overlap_ns"]) / 1e9),
    ),
    semconv.GROUP_INFO: shown(semconv.GROUP_INFO, lambda _: {(group, group, "2"): 1 for group in GROUPS}),
    semconv.GROUP_MEMBERS: shown(semconv.GROUP_MEMBERS, of_groups(2)),
    semconv.GROUPS_FOLDED: shown(semconv.GROUPS_FOLDED, NUMBERS),
    semconv.CAPTURE_INFO: shown(
        semconv.CAPTURE_INFO,
        lambda run: {(str(one.rank), run.kernel, one.report["torch"]): 1 for one in run.witnesses},
    ),
    semconv.OVERHEAD: within(semconv.OVERHEAD, nothing, by_rank(lambda one: one.took_s / 5)),
    semconv.RECORDS_LOST: shown(semconv.RECORDS_LOST, NUMBERS),
    semconv.NAMES_DROPPED: shown(semconv.NAMES_DROPPED, NUMBERS),
    semconv.SPANS_DROPPED: shown(semconv.SPANS_DROPPED, lambda _: {(): 0}),
    semconv.ARCHIVE_DROPPED: shown(semconv.ARCHIVE_DROPPED, lambda _: {(): 0}),
    **{
        name: absent(name)
        for name in (
            semconv.SAMPLED_OPERATIONS,
            semconv.NON_FINITE_OPERATIONS,
            semconv.UNSEEN_OPERATIONS,
            semconv.AMP_SKIPPED_STEPS,
            semconv.AMP_SCALE,
            semconv.PARAMETERS_COMPARED,
            semconv.REPLICAS_LEFT_OUT,
            semconv.INPUT_NORM_METRIC,
            semconv.INPUT_ABSMAX_METRIC,
            semconv.INPUT_HEADROOM_METRIC,
            semconv.RPC_CLIENT_DURATION,
            semconv.RPC_SERVER_DURATION,
        )
    },
    semconv.RANK_INFO: within(semconv.RANK_INFO, on_host, on_host, lives=True),
    semconv.JOB_INFO: shown(semconv.JOB_INFO, job),
    semconv.OPERATION_DURATION: histogram(semconv.OPERATION_DURATION, timed_by_size, semconv.TIMED_OPERATION_SECONDS),
    semconv.STEP_DURATION: histogram(semconv.STEP_DURATION, steps_of_node, semconv.TIMED_STEP_SECONDS),
}
