"""Expectations of the families of operations, steps, checkpoints and of the recording itself."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

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
    compared = run.final.series("torchdist_arrivals_compared_total")
    [(group, calls)] = compared.items()
    assert group == (DEFAULT,)
    assert calls in range(WINDOW, collectives(run.witnesses[0], DEFAULT) + 1, WINDOW)
    last = run.final.series("torchdist_last_arrivals_total")
    assert {key[1] for key in last} == {DEFAULT}
    assert sum(last.values()) == calls
    most_s = span_s(run)
    lateness = run.final.series("torchdist_lateness_seconds_total")
    assert lateness_s(run) <= lateness["1", DEFAULT] <= most_s
    assert sum(lateness.values()) <= most_s
    # Of two ranks one has waited, so on average half of that.
    assert (
        abs(run.final.series("torchdist_waited_seconds_total")[DEFAULT,] - sum(lateness.values()) / 2) <= 1e-6 * calls
    )


def path(run: Run) -> None:
    """The path is as long as a step, ranks compute on it as long as it says, and it can gain no more than that."""
    kinds, ranks = (
        run.final.series("torchdist_critical_path_seconds"),
        run.final.series("torchdist_critical_path_rank_seconds"),
    )
    gains = run.final.series("torchdist_critical_path_gain_seconds")
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
    found = run.final.series("torchdist_checkpoint_seconds_total")
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
    [(_, age_s)] = run.live.series("torchdist_checkpoint_age_seconds").items()
    newest = max(witness.report["saved_at"] for witness in run.witnesses)
    assert run.live.at - newest - 5 <= age_s <= run.live.at - newest + 1
    assert run.final.series("torchdist_checkpoint_age_seconds") == {}


def idle(run: Run) -> None:
    """While the program runs, no rank has been without a call since before its last one; nothing is idle in the end."""
    found = run.live.series("torchdist_idle_seconds")
    newest = {str(one.rank): max(call.created_ns for call in one.calls) / 1e9 for one in run.witnesses}
    assert found.keys() == {(rank,) for rank in newest}
    assert all(0 <= seconds <= max(run.live.at - newest[rank], 0) + 5 for (rank,), seconds in found.items())
    assert run.final.series("torchdist_idle_seconds") == {}


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
    found = run.final.series("torchdist_operation_duration_seconds", "_count")
    least, most = of_sizes(run, True, lambda _: 1), of_sizes(run, False, lambda _: 1)
    assert all(least.get(key, 0) <= value <= most[key] for key, value in found.items())
    by_operation: Counter[tuple[str, str]] = Counter()
    for (group, operation, _), value in found.items():
        by_operation[group, operation] += int(value)
    ranks: Counter[tuple[str, str]] = Counter()
    for (_, group, operation), value in run.final.series("torchdist_timed_operations_total").items():
        ranks[group, operation] += int(value)
    assert +by_operation == +ranks
    return found


def steps_of_node(run: Run) -> Series:
    """Return how many steps of the node have a duration."""
    return {(): sum(witness.steps - 1 for witness in run.witnesses)}


def job(run: Run) -> Series:
    """Return the one series that torchrun's environment makes."""
    torchelastic, restarts = run.witnesses[0].report["job"]
    return {("", "", "", "", "", "", "", torchelastic, restarts, "", ""): 1}


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
    "torchdist_up": shown_live("torchdist_up", by_rank(lambda _: 1)),
    "torchdist_stalled": shown("torchdist_stalled", of_groups(0)),
    "torchdist_stall_info": absent("torchdist_stall_info"),
    "torchdist_attempt_ended_info": shown_finally(
        "torchdist_attempt_ended_info", lambda _: {("", "", "finished", "", ""): 1}
    ),
    "torchdist_finding_info": absent("torchdist_finding_info"),
    **dict.fromkeys(
        (
            "torchdist_arrivals_compared_total",
            "torchdist_last_arrivals_total",
            "torchdist_lateness_seconds_total",
            "torchdist_waited_seconds_total",
        ),
        arrivals,
    ),
    "torchdist_operations_in_flight": shown("torchdist_operations_in_flight", by_operation(zero)),
    "torchdist_operation_oldest_age_seconds": shown("torchdist_operation_oldest_age_seconds", by_operation(zero)),
    "torchdist_operations_total": shown("torchdist_operations_total", by_operation(entered)),
    "torchdist_message_bytes_total": shown("torchdist_message_bytes_total", by_operation(sizes)),
    "torchdist_timed_operations_total": within(
        "torchdist_timed_operations_total", by_operation(waited_for), most_timed
    ),
    "torchdist_timed_operation_seconds_total": within(
        "torchdist_timed_operation_seconds_total", slept, by_operation(most_seconds)
    ),
    "torchdist_timed_message_bytes_total": within(
        "torchdist_timed_message_bytes_total",
        lambda run: of_sizes(run, True, float),
        lambda run: {key: of_sizes(run, False, float)[key] for key in timed_by_size(run)},
    ),
    "torchdist_blocked_seconds_total": within("torchdist_blocked_seconds_total", blocked, by_rank(calling)),
    "torchdist_communication_seconds_total": within("torchdist_communication_seconds_total", waiting, communicating),
    "torchdist_last_started_sequence": shown("torchdist_last_started_sequence", by_group(collectives)),
    "torchdist_last_completed_sequence": shown("torchdist_last_completed_sequence", by_group(collectives)),
    "torchdist_operations_untracked_total": shown("torchdist_operations_untracked_total", NUMBERS),
    "torchdist_operations_failed_total": shown("torchdist_operations_failed_total", NUMBERS),
    **dict.fromkeys(
        (
            "torchdist_critical_path_seconds",
            "torchdist_critical_path_rank_seconds",
            "torchdist_critical_path_gain_seconds",
        ),
        path,
    ),
    "torchdist_checkpoints_total": shown("torchdist_checkpoints_total", saved("")),
    "torchdist_checkpoint_seconds_total": if_saving(checkpoint_seconds, absent("torchdist_checkpoint_seconds_total")),
    "torchdist_checkpoint_size_bytes_total": shown("torchdist_checkpoint_size_bytes_total", saved("bytes")),
    "torchdist_checkpoint_files_total": shown("torchdist_checkpoint_files_total", saved("files")),
    "torchdist_checkpoint_failures_total": absent("torchdist_checkpoint_failures_total"),
    "torchdist_checkpoint_age_seconds": if_saving(saved_age, absent("torchdist_checkpoint_age_seconds")),
    "torchdist_checkpoint_interval_seconds": absent("torchdist_checkpoint_interval_seconds"),
    "torchdist_idle_seconds": idle,
    "torchdist_timed_steps_total": shown("torchdist_timed_steps_total", by_rank(lambda witness: witness.steps - 1)),
    "torchdist_timed_step_seconds_total": within(
        "torchdist_timed_step_seconds_total", lambda run: step_seconds(run, 0), lambda run: step_seconds(run, 1)
    ),
    "torchdist_data_wait_seconds_total": within(
        "torchdist_data_wait_seconds_total", slept_in("data"), clock_of("data")
    ),
    "torchdist_batches_total": shown("torchdist_batches_total", by_rank(lambda one: one.report["counts"]["batches"])),
    "torchdist_backward_seconds_total": within(
        "torchdist_backward_seconds_total", slept_in("backward"), clock_of("backward")
    ),
    "torchdist_optimizer_seconds_total": within(
        "torchdist_optimizer_seconds_total", slept_in("optimizer"), clock_of("optimizer")
    ),
    "torchdist_samples_total": shown(
        "torchdist_samples_total", by_rank(lambda one: one.report["counts"].get("samples"))
    ),
    "torchdist_tokens_total": shown("torchdist_tokens_total", by_rank(lambda one: one.report["counts"].get("tokens"))),
    "torchdist_flops_total": shown("torchdist_flops_total", by_rank(lambda one: one.report["counts"].get("flops"))),
    "torchdist_gradient_sync_seconds": shown(
        "torchdist_gradient_sync_seconds", by_rank(lambda one: one.report["sync_ns"] / 1e9)
    ),
    "torchdist_gradient_sync_exposed_seconds": shown(
        "torchdist_gradient_sync_exposed_seconds",
        by_rank(lambda one: (one.report["sync_ns"] - one.report["overlap_ns"]) / 1e9),
    ),
    "torchdist_group_info": shown("torchdist_group_info", lambda _: {(group, group, "2"): 1 for group in GROUPS}),
    "torchdist_group_members": shown("torchdist_group_members", of_groups(2)),
    "torchdist_groups_folded_total": shown("torchdist_groups_folded_total", NUMBERS),
    "torchdist_capture_info": shown(
        "torchdist_capture_info",
        lambda run: {(str(one.rank), run.kernel, one.report["torch"]): 1 for one in run.witnesses},
    ),
    "torchdist_overhead_seconds_total": within(
        "torchdist_overhead_seconds_total", nothing, by_rank(lambda one: one.took_s / 5)
    ),
    "torchdist_recording_state": shown("torchdist_recording_state", by_rank(lambda _: 1)),
    "torchdist_recording_level": shown("torchdist_recording_level", NUMBERS),
    "torchdist_records_lost_total": shown("torchdist_records_lost_total", NUMBERS),
    "torchdist_names_dropped_total": shown("torchdist_names_dropped_total", NUMBERS),
    "torchdist_spans_dropped_total": shown("torchdist_spans_dropped_total", lambda _: {(): 0}),
    "torchdist_archive_operations_dropped_total": shown(
        "torchdist_archive_operations_dropped_total", lambda _: {(): 0}
    ),
    **{
        name: absent(name)
        for name in (
            "torchdist_sampled_operations_total",
            "torchdist_non_finite_operations_total",
            "torchdist_unseen_operations_total",
            "torchdist_amp_skipped_steps_total",
            "torchdist_amp_scale",
            "torchdist_parameter_checksums_total",
            "torchdist_replicas_left_out",
            "torchdist_input_norm",
            "torchdist_input_absmax",
            "torchdist_input_headroom",
            "rpc_client_call_duration_seconds",
            "rpc_server_call_duration_seconds",
        )
    },
    "torchdist_rank_info": within("torchdist_rank_info", on_host, on_host, lives=True),
    "torchdist_job_info": shown("torchdist_job_info", job),
    "torchdist_operation_duration_seconds": histogram(
        "torchdist_operation_duration_seconds", timed_by_size, "torchdist_timed_operation_seconds_total"
    ),
    "torchdist_step_duration_seconds": histogram(
        "torchdist_step_duration_seconds", steps_of_node, "torchdist_timed_step_seconds_total"
    ),
}
