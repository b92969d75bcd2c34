"""All names visible to users: spans, attributes, metrics, events. All of them are experimental until 1.0.

Our own attributes and metrics start with `torchdist`; names that OpenTelemetry already has (`error.type`, `code.*`)
are used as they are. Attribute names contain no units: durations are in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SCOPE_NAME: Final = "otel_torchdist"

# --- spans ---------------------------------------------------------------------------------------------------------
STEP_SPAN: Final = "step (rank {rank})"
"""A segment of a training step of one rank; the parent of its operations. Usually a step is one segment."""
OPTIMIZER_STEP_SPAN: Final = "optimizer step"
"""The step of an optimizer, with all that it calls; of optimizers within optimizers only the outermost, and at most 16
in a training step. Compiled steps have none. On a device it ends when it is enqueued. An error if it was left with an
exception."""
IN_PROGRESS_SPAN: Final = "{operation} (in progress)"
"""An operation that has not ended, from its start to now; an error if it is stalled."""
STALL_SPAN: Final = "stall: {operation} ({verdict})"
"""The root of an incident, in a trace of its own."""
FINDING_SPAN: Final = "finding: {operation} ({verdict})"
"""Something wrong or slow without a stall: the only span of its trace."""
ALL_OPERATIONS: Final = "steps"
"""In the name of a finding, in place of an operation, if it concerns several."""
STALL_RANK_SPAN: Final = "rank {rank}: {state}"
"""A member of the stalled group, and what it has done about the operation: `absent`, `dead`, `waiting` and others."""
STALL_REST_SPAN: Final = "{count} more ranks"
"""The members beyond the 64 that have a span of their own."""
IMPORT_SPAN: Final = "imported {source}"
"""The root of what was imported from files: `imported flight recorder`."""
IMPORT_RANK_SPAN: Final = "calls (rank {rank})"
"""The imported calls of one rank; an error if a verdict names it. Beneath it are its operations."""

# --- attributes of operations and anchors --------------------------------------------------------------------------
RANK: Final = "torchdist.rank"
"""The global rank."""
RUN: Final = "torchdist.run"
"""The first eight hex digits of the run's id: one attempt of a job, the same on all ranks."""
GROUP_DESCRIPTION: Final = "torchdist.group.description"
"""What the process group is for, as the program or torch describes it: `default_pg`, `mesh_dp`."""
MESH_DIMENSIONS: Final = "torchdist.mesh.dimensions"
"""Names of the dimensions of device meshes that the group is for: `dp_shard`. A dimension as large as the world is the
default group."""
GROUP_SIZE: Final = "torchdist.group.size"
"""Number of members of the group."""
GROUP_HASH: Final = "torchdist.group.hash"
"""Identifies the group across ranks: a hash of its members and of how many such groups came before."""
GROUP_RANKS: Final = "torchdist.group.ranks"
"""On anchors only: one string per group used in the segment, `<hash>: 0-7,16`."""
SEQUENCE: Final = "torchdist.sequence"
"""Position of the operation among the group's collectives, from 1; of a send or receive, among those of its peers and
tag."""
SEQUENCE_ALIGNED: Final = "torchdist.sequence.aligned"
"""False if sequence numbers of different ranks cannot be compared, because we were switched on after the group was
used."""
OPERATION: Final = "torchdist.operation"
"""`all_reduce`, `send`, `barrier`, …"""
REDUCE_OP: Final = "torchdist.reduce_op"
"""Read on a call site's first 16 calls, then where the group's sequence is a multiple of 31; on every call once it has
been seen to change."""
PEER: Final = "torchdist.peer"
"""Global rank of the root, or of the other side of a send or receive."""
TAG: Final = "torchdist.tag"
"""Tag of a send or receive."""
TENSOR_SHAPES: Final = "torchdist.tensor.shapes"
"""One string per tensor: `64x128`, or `scalar` for a tensor without dimensions."""
TENSOR_DTYPES: Final = "torchdist.tensor.dtypes"
"""One string per tensor: `float32`."""
TENSOR_DEVICE: Final = "torchdist.tensor.device"
"""Type of the tensors' device: `cpu`, `cuda`."""
TENSOR_COUNT: Final = "torchdist.tensor.count"
"""Number of tensors."""
MESSAGE_SIZE: Final = "torchdist.message.size"
"""Bytes that this rank contributes; of more than 64 tensors, only the first 64 count."""
MESSAGE_RECEIVED: Final = "torchdist.message.received"
"""Bytes that this rank receives in an `all_to_all`, if that is uneven."""
MESSAGE_LARGEST_PART: Final = "torchdist.message.largest_part"
"""Bytes that this rank sends to the member that gets most in an uneven `all_to_all`."""
MESSAGE_SIZE_CLASS: Final = "torchdist.message.size_class"
"""On metrics only: `4KiB`, `64KiB`, `1MiB`, `16MiB`, `256MiB` (upper bounds), `larger`, or `other`."""
PATH_KIND: Final = "torchdist.critical_path.kind"
"""On metrics only: what happens on a critical path, `computing` or `transfer`."""
PATH_CAUSE: Final = "torchdist.critical_path.cause"
"""On metrics only: what makes steps longer, `line`, `rank`, `node`, `stage` or `transfer`."""
CAPTURE_KERNEL: Final = "torchdist.capture.kernel"
"""On metrics only: what records the rank's calls, `native` or `python`."""
TORCH_VERSION: Final = "torchdist.torch.version"
"""On metrics only: version of the rank's torch."""
ASYNC: Final = "torchdist.async"
"""Whether the call returned a `Work` to wait for."""
PHASE: Final = "torchdist.phase"
"""Whether a backward pass of autograd made the call: `backward`, or `outside_backward`, which is forward, the optimizer
and all that a program calls itself. Activations that are computed again belong to the backward pass."""
STEP: Final = "torchdist.step"
"""The step in which the operation or activity was entered; its span is in the trace of the step in which it ended."""
STEP_SEGMENT: Final = "torchdist.step.segment"
"""Number of the segment within its step, from 0."""
STEP_SEGMENT_END: Final = "torchdist.step.segment.end"
"""Why the segment ends: `step`, `stall`, `time`, `size`, `lost` (the step's own end was not recorded) or `close`."""
OPTIMIZER: Final = "torchdist.optimizer"
"""Class of the optimizer, on the spans of its steps."""
WORLD_SIZE: Final = "torchdist.world_size"
"""Number of ranks of the job."""
HOST_NAME: Final = "host.name"
"""Name of the node."""
PROCESS_PID: Final = "process.pid"
"""Process id of the rank."""
SYNC_DURATION: Final = "torchdist.sync.duration"
"""Seconds for which the caller was blocked, in the call and in waits for it."""
INPUT_MIN: Final = "torchdist.input.min"
"""The smallest number in the inputs, if they were looked at (`OTEL_PYTHON_TORCHDIST_NUMERICS`) and are all finite."""
INPUT_MAX: Final = "torchdist.input.max"
"""The largest number in the inputs."""
INPUT_ABSMAX: Final = "torchdist.input.absmax"
"""The largest magnitude in the inputs."""
INPUT_MEAN: Final = "torchdist.input.mean"
"""Mean of the inputs; of halves, that of a sample of 65,536 elements."""
INPUT_NORM: Final = "torchdist.input.norm"
"""L2 norm of the inputs; of float16, extrapolated from that sample."""
INPUT_ZERO_SHARE: Final = "torchdist.input.zero_share"
"""Share of zeros in a sample of 65,536 elements."""
INPUT_SUBNORMAL_SHARE: Final = "torchdist.input.subnormal_share"
"""Share of subnormal numbers in that sample."""
INPUT_NON_FINITE: Final = "torchdist.input.non_finite"
"""True if an input is infinite or not a number, false if the inputs were looked at and are finite."""
INPUT_CHECKSUM: Final = "torchdist.input.checksum"
"""Checksum of the inputs' bits, as twelve hex digits."""
OUTPUT_CHECKSUM: Final = "torchdist.output.checksum"
"""The same of the outputs, where all members must have equal ones; missing where their end is known before they are
read, as in DDP."""
CALLER: Final = "torchdist.caller"
"""What the call is for, in words: the FSDP unit or pipeline stage, or the label that the program gave with
`record_comm`."""
FSDP_UNIT: Final = "torchdist.fsdp.unit"
"""The module whose parameters are gathered or whose gradients are reduced, by FSDP or `fully_shard`: `layers.3`; `root`
for the outermost one."""
DDP_BUCKET: Final = "torchdist.ddp.bucket"
"""Number of the bucket of gradients that DistributedDataParallel reduces, from 0; missing where that is not certain."""
PIPELINE_STAGE: Final = "torchdist.pipeline.stage"
"""The stage of a pipeline that sends or receives."""
PIPELINE_DIRECTION: Final = "torchdist.pipeline.direction"
"""`fwd` for activations, `bwd` for gradients."""
PIPELINE_MICROBATCH: Final = "torchdist.pipeline.microbatch"
"""The microbatch that is sent or received, from 0."""
CALLER_PATH: Final = "torchdist.caller.path"
"""The frames that led to the call, innermost first: `train.py:42 step`, and `… lightning, torch …` for those of
libraries. It is taken where calls of a kind are first seen."""
CALLER_PATH_VARIES: Final = "torchdist.caller.path.varies"
"""True if calls from this line have also been reached in other ways than the one shown."""
COMPLETION: Final = "torchdist.completion"
"""How the end is known: `call`, `wait`, `callback`, `poll`, `event`, `watchdog`, `untracked`, `abandoned`, `failed`, or
`unknown` (still open)."""
COMPLETION_RESOLUTION: Final = "torchdist.completion.resolution"
"""Seconds by which the end may be earlier than shown."""
SYNCHRONIZED: Final = "torchdist.synchronized"
"""True if the host waited for the device before and after the operation (`OTEL_PYTHON_TORCHDIST_SYNCHRONIZE`): then
nothing overlapped, and steps took longer than usual."""
DEVICE_QUEUE_DURATION: Final = "torchdist.device.queue.duration"
"""From the call until the device started the operation: how long it was queued behind the device's earlier work."""
DEVICE_DURATION: Final = "torchdist.device.duration"
"""From the operation's start on the device to its end, including other ranks' lateness."""
DEVICE_START_RESOLUTION: Final = "torchdist.device.start.resolution"
"""Seconds by which the start on the device may be earlier than shown."""
CODE_FUNCTION: Final = "code.function.name"
"""Function of the user's code that made the call."""
CODE_FILE: Final = "code.file.path"
"""File of that function."""
CODE_LINE: Final = "code.line.number"
"""Line of the call."""
CODE_STACKTRACE: Final = "code.stacktrace"
"""Stack of a rank that the verdict names."""
ERROR_TYPE: Final = "error.type"
"""Type of the exception with which the operation failed."""

# --- attributes of a stall -----------------------------------------------------------------------------------------
STALLED: Final = "torchdist.stalled"
"""True on spans of operations that belong to a stall."""
VERDICT: Final = "torchdist.verdict"
"""`absent`, `dead`, `frozen` and others; see [verdicts](verdicts.md)."""
VERDICT_RANKS: Final = "torchdist.ranks"
"""The ranks that the verdict names: `0-7,16`."""
VERDICT_COVERAGE: Final = "torchdist.coverage"
"""How many of the group's ranks report: `4/4`."""
MISMATCH_FIELD: Final = "torchdist.mismatch.field"
"""What ranks disagree about: operation, dtype, shape, reduce op or root."""
MISMATCH_VALUES: Final = "torchdist.mismatch.values"
"""One string per value with the ranks that have it, the largest party first: `0-1,3: float32`."""
MISMATCH_SEQUENCE: Final = "torchdist.mismatch.sequence"
"""The position in the group at which ranks made different calls."""
CIRCLE: Final = "torchdist.circle"
"""Where each rank waits, each for the next one: `rank 0: all_reduce (sequence 4, mesh_dp)`."""
MISMATCHED: Final = "mismatched"
"""The verdict of a finding: ranks have made different calls, and nothing stalls."""
NON_FINITE: Final = "non_finite"
"""The verdict of a finding: the ranks that were the first with an input that is infinite or not a number."""
DIVERGED: Final = "diverged"
"""The verdict of a finding: ranks have different results or parameters where all must have the same."""
DIVERGENCE_OF: Final = "torchdist.divergence.of"
"""What differs between ranks: `output`, the result of an operation, or `parameters` of replicas."""
STRAGGLER: Final = "straggler"
"""The verdict of a finding: a rank repeatedly comes last."""
STRAGGLER_SHARE: Final = "torchdist.straggler.share"
"""The share of their time that the other ranks lose to the straggler, from 0 to 1."""
STRAGGLER_LATENESS: Final = "torchdist.straggler.lateness"
"""Seconds by which the straggler comes after the last rank before it, on average."""
SLOW_EXCESS: Final = "torchdist.slow.excess"
"""Seconds for which a slow rank, node or stage computes longer than its peers in each step."""
SLOW_GAIN: Final = "torchdist.slow.gain"
"""Seconds by which a step would be shorter at most without that."""
SLOW_GAIN_SHARE: Final = "torchdist.slow.gain_share"
"""The same as a share of a step, from 0 to 1."""
DEATH_SIGNAL: Final = "torchdist.death.signal"
"""The signal that killed the first rank named by a verdict `dead`, if known: `SIGKILL`."""
DEATH_OUT_OF_MEMORY: Final = "torchdist.death.out_of_memory"
"""Which counter recorded an out-of-memory kill at that rank's death: the one of its `cgroup`, or of the `node`."""
DEATH_LEAD: Final = "torchdist.death.lead"
"""Seconds from the death of that rank to the next death."""
DEATH_ORDER: Final = "torchdist.death.order"
"""Whether the order of the deaths was `seen`, or is `inferred` from other evidence."""
PROCESS_EXIT_CODE: Final = "process.exit.code"
"""Exit code of the first rank that a verdict `dead` names, if it is known."""
STALL_AGE: Final = "torchdist.stall.age"
"""Seconds since the first rank began to wait."""
STALL_EPOCH: Final = "torchdist.stall.epoch"
"""Number of the verdict within the incident: it grows when the verdict changes, and when the age has doubled."""
STALL_RESOLVED: Final = "torchdist.stall.resolved"
"""Whether the stalled operation completed in the end."""
STALL_TRACE_ID: Final = "torchdist.stall.trace_id"
"""Trace of the incident, on log events."""
STACK_SOURCE: Final = "torchdist.stack.source"
"""How `code.stacktrace` was taken: by our `thread` in the rank, or by a `signal`, because the GIL was held."""

# --- attributes of an import ---------------------------------------------------------------------------------------
IMPORT_FILES: Final = "torchdist.import.files"
"""How many files were read."""
IMPORT_FORMATS: Final = "torchdist.import.formats"
"""Versions of the files' format: `2.10`."""
IMPORT_LIBRARIES: Final = "torchdist.import.libraries"
"""Versions of the communication library (NCCL), if the files name it."""
IMPORT_RANKS: Final = "torchdist.import.ranks"
"""Ranks that have a file: `0-7,16`."""
IMPORT_MISSING_RANKS: Final = "torchdist.import.missing_ranks"
"""Ranks of the job that have none."""
IMPORT_CALLS: Final = "torchdist.import.calls"
"""Calls that the files hold, of this rank or of all."""
IMPORT_OMITTED: Final = "torchdist.import.omitted"
"""How many of them have no span here, because they are older or of other ranks than those that were chosen."""
IMPORT_OVERWRITTEN: Final = "torchdist.import.overwritten"
"""Calls that the rank had made before, and that its recorder has overwritten."""
IMPORT_CLOCK: Final = "torchdist.import.clock"
"""Whose clock the times are: `each host's own`, as they were recorded. Nothing is corrected, so compare times of
different hosts with care."""

# --- events (OpenTelemetry log records) ----------------------------------------------------------------------------
STALL_EVENT: Final = "torchdist.stall"
"""A verdict on a stall."""
FINDING_EVENT: Final = "torchdist.finding"
"""A finding without a stall."""
STALL_RESOLVED_EVENT: Final = "torchdist.stall.resolved"
"""The end of an incident."""

# --- metrics: their Prometheus names -------------------------------------------------------------------------------
OPERATIONS_IN_FLIGHT: Final = "torchdist_operations_in_flight"
OPERATION_OLDEST_AGE: Final = "torchdist_operation_oldest_age_seconds"
OPERATIONS: Final = "torchdist_operations_total"
OPERATION_DURATION: Final = "torchdist_operation_duration_seconds"
TIMED_OPERATIONS: Final = "torchdist_timed_operations_total"
TIMED_OPERATION_SECONDS: Final = "torchdist_timed_operation_seconds_total"
MESSAGE_BYTES: Final = "torchdist_message_bytes_total"
TIMED_MESSAGE_BYTES: Final = "torchdist_timed_message_bytes_total"
BLOCKED_SECONDS: Final = "torchdist_blocked_seconds_total"
COMMUNICATION_SECONDS: Final = "torchdist_communication_seconds_total"
LAST_STARTED_SEQUENCE: Final = "torchdist_last_started_sequence"
LAST_COMPLETED_SEQUENCE: Final = "torchdist_last_completed_sequence"
STEP_DURATION: Final = "torchdist_step_duration_seconds"
TIMED_STEPS: Final = "torchdist_timed_steps_total"
TIMED_STEP_SECONDS: Final = "torchdist_timed_step_seconds_total"
STALLED_METRIC: Final = "torchdist_stalled"
STALL_INFO: Final = "torchdist_stall_info"
FINDING_INFO: Final = "torchdist_finding_info"
ARRIVALS: Final = "torchdist_arrivals_compared_total"
LAST_ARRIVALS: Final = "torchdist_last_arrivals_total"
LATENESS: Final = "torchdist_lateness_seconds_total"
WAITED_SECONDS: Final = "torchdist_waited_seconds_total"
GROUP_INFO: Final = "torchdist_group_info"
GROUP_MEMBERS: Final = "torchdist_group_members"
GROUPS_FOLDED: Final = "torchdist_groups_folded_total"
CAPTURE_INFO: Final = "torchdist_capture_info"
OVERHEAD: Final = "torchdist_overhead_seconds_total"
RECORDS_LOST: Final = "torchdist_records_lost_total"
NAMES_DROPPED: Final = "torchdist_names_dropped_total"
OPERATIONS_UNTRACKED: Final = "torchdist_operations_untracked_total"
OPERATIONS_FAILED: Final = "torchdist_operations_failed_total"
SAMPLED_OPERATIONS: Final = "torchdist_sampled_operations_total"
NON_FINITE_OPERATIONS: Final = "torchdist_non_finite_operations_total"
AMP_SKIPPED_STEPS: Final = "torchdist_amp_skipped_steps_total"
INPUT_NORM_METRIC: Final = "torchdist_input_norm"
INPUT_ABSMAX_METRIC: Final = "torchdist_input_absmax"
SPANS_DROPPED: Final = "torchdist_spans_dropped_total"
ARCHIVE_DROPPED: Final = "torchdist_archive_operations_dropped_total"
PATH_SECONDS: Final = "torchdist_critical_path_seconds"
PATH_RANK_SECONDS: Final = "torchdist_critical_path_rank_seconds"
PATH_GAIN_SECONDS: Final = "torchdist_critical_path_gain_seconds"
UP: Final = "torchdist_up"

OTEL_METRIC_NAMES: Final[Mapping[str, str]] = {
    OPERATIONS_IN_FLIGHT: "torchdist.operations.in_flight",
    OPERATION_OLDEST_AGE: "torchdist.operation.oldest_age",
    OPERATIONS: "torchdist.operations",
    OPERATION_DURATION: "torchdist.operation.duration",
    TIMED_OPERATIONS: "torchdist.timed_operations",
    TIMED_OPERATION_SECONDS: "torchdist.timed_operation",
    MESSAGE_BYTES: "torchdist.message",
    TIMED_MESSAGE_BYTES: "torchdist.timed_message",
    BLOCKED_SECONDS: "torchdist.blocked",
    COMMUNICATION_SECONDS: "torchdist.communication",
    LAST_STARTED_SEQUENCE: "torchdist.last_started_sequence",
    LAST_COMPLETED_SEQUENCE: "torchdist.last_completed_sequence",
    STEP_DURATION: "torchdist.step.duration",
    TIMED_STEPS: "torchdist.timed_steps",
    TIMED_STEP_SECONDS: "torchdist.timed_step",
    STALLED_METRIC: "torchdist.stalled",
    STALL_INFO: "torchdist.stall.info",
    FINDING_INFO: "torchdist.finding.info",
    ARRIVALS: "torchdist.arrivals_compared",
    LAST_ARRIVALS: "torchdist.last_arrivals",
    LATENESS: "torchdist.lateness",
    WAITED_SECONDS: "torchdist.waited",
    GROUP_INFO: "torchdist.group.info",
    GROUP_MEMBERS: "torchdist.group.members",
    GROUPS_FOLDED: "torchdist.groups.folded",
    CAPTURE_INFO: "torchdist.capture.info",
    OVERHEAD: "torchdist.overhead",
    RECORDS_LOST: "torchdist.records.lost",
    NAMES_DROPPED: "torchdist.names.dropped",
    OPERATIONS_UNTRACKED: "torchdist.operations.untracked",
    OPERATIONS_FAILED: "torchdist.operations.failed",
    SAMPLED_OPERATIONS: "torchdist.sampled_operations",
    NON_FINITE_OPERATIONS: "torchdist.non_finite_operations",
    AMP_SKIPPED_STEPS: "torchdist.amp.skipped_steps",
    INPUT_NORM_METRIC: "torchdist.input.norm",
    INPUT_ABSMAX_METRIC: "torchdist.input.absmax",
    SPANS_DROPPED: "torchdist.spans.dropped",
    ARCHIVE_DROPPED: "torchdist.archive.operations.dropped",
    PATH_SECONDS: "torchdist.critical_path",
    PATH_RANK_SECONDS: "torchdist.critical_path.rank",
    PATH_GAIN_SECONDS: "torchdist.critical_path.gain",
    UP: "torchdist.up",
}
"""Without unit and `_total`: OpenTelemetry's rules for Prometheus turn these into the names above."""

# --- labels of metrics, and the attributes that represent them in OpenTelemetry ------------------------------------
LABEL_RUN: Final = "run"
LABEL_RANK: Final = "rank"
LABEL_GROUP: Final = "group"
LABEL_OPERATION: Final = "operation"
LABEL_DESCRIPTION: Final = "description"
LABEL_SIZE: Final = "size"
LABEL_MESSAGE_SIZE: Final = "message_size"
"""A class of message sizes, see `size_classes`."""
LABEL_VERDICT: Final = "verdict"
LABEL_RANKS: Final = "ranks"
LABEL_COVERAGE: Final = "coverage"
LABEL_TRACE_ID: Final = "trace_id"
LABEL_KIND: Final = "kind"
"""What happens on a critical path: `computing` or `transfer`."""
LABEL_CAUSE: Final = "cause"
"""What makes a critical path longer: `line`, `rank`, `node`, `stage` or `transfer`."""
LABEL_KERNEL: Final = "kernel"
LABEL_TORCH: Final = "torch"

OTEL_METRIC_ATTRIBUTES: Final[Mapping[str, str]] = {
    LABEL_RUN: RUN,
    LABEL_RANK: RANK,
    LABEL_GROUP: GROUP_HASH,
    LABEL_OPERATION: OPERATION,
    LABEL_DESCRIPTION: GROUP_DESCRIPTION,
    LABEL_SIZE: GROUP_SIZE,
    LABEL_MESSAGE_SIZE: MESSAGE_SIZE_CLASS,
    LABEL_VERDICT: VERDICT,
    LABEL_RANKS: VERDICT_RANKS,
    LABEL_COVERAGE: VERDICT_COVERAGE,
    LABEL_TRACE_ID: STALL_TRACE_ID,
    LABEL_KIND: PATH_KIND,
    LABEL_CAUSE: PATH_CAUSE,
    LABEL_KERNEL: CAPTURE_KERNEL,
    LABEL_TORCH: TORCH_VERSION,
}

OTHER: Final = "other"
"""The label of a group or operation that is unknown, or beyond the limit."""
RENDEZVOUS: Final = "rendezvous"
"""The operation of creating a group."""
