"""Facts about our names that their constants do not hold: types of attributes, their values, and their spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.kinds import How
from otel_torchdist.model.reports.finding import FindingKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.semconv.attributes import *

INTEGERS: Final = frozenset(
    {
        RANK, GROUP_SIZE, SEQUENCE, PEER, TAG, TENSOR_COUNT, MESSAGE_SIZE, MESSAGE_RECEIVED, MESSAGE_LARGEST_PART, STEP,
        STEP_SEGMENT, CHECKPOINT_SIZE, CHECKPOINT_FILES, WORLD_SIZE, DDP_BUCKET, PIPELINE_STAGE, PIPELINE_MICROBATCH,
        MISMATCH_SEQUENCE, STALL_EPOCH, IMPORT_FILES, IMPORT_CALLS, IMPORT_OMITTED, IMPORT_OVERWRITTEN,
        SLURM_RESTART_COUNT, ELASTIC_RESTART_COUNT,
    }
)  # fmt: skip
DOUBLES: Final = frozenset(
    {
        SYNC_DURATION, INPUT_MIN, INPUT_MAX, INPUT_ABSMAX, INPUT_HEADROOM, INPUT_MEAN, INPUT_NORM, INPUT_ZERO_SHARE,
        INPUT_SUBNORMAL_SHARE, INPUT_SATURATED_SHARE, COMPLETION_RESOLUTION, DEVICE_QUEUE_DURATION, DEVICE_DURATION,
        DEVICE_START_RESOLUTION, STALL_AGE, DEATH_LEAD, STRAGGLER_SHARE, STRAGGLER_LATENESS, SLOW_EXCESS, SLOW_GAIN,
        SLOW_GAIN_SHARE,
    }
)  # fmt: skip
BOOLEANS: Final = frozenset(
    {SEQUENCE_ALIGNED, ASYNC, INPUT_NON_FINITE, CALLER_PATH_VARIES, SYNCHRONIZED, STALLED, STALL_RESOLVED}
)
LISTS: Final = frozenset(
    {
        MESH_DIMENSIONS, GROUP_RANKS, TENSOR_SHAPES, TENSOR_DTYPES, CALLER_PATH, MISMATCH_VALUES, CIRCLE,
        IMPORT_FORMATS, IMPORT_LIBRARIES, MACHINE_HOSTS,
    }
)  # fmt: skip
"""Lists of strings."""

VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    VERDICT: tuple(dict.fromkeys(kind.value for kind in (*VerdictKind, *FindingKind))),
    COMPLETION: (*(how.name.lower() for how in How), "unknown"),
    PHASE: ("backward", "outside_backward"),
    STEP_SEGMENT_END: ("step", "stall", "time", "size", "lost", "close"),
    RPC_MODE: ("sync", "async", "remote"),
    PIPELINE_DIRECTION: ("fwd", "bwd"),
    CAPTURE_KERNEL: ("native", "python"),
    PATH_KIND: ("computing", "transfer"),
    PATH_CAUSE: ("line", "rank", "node", "stage", "transfer"),
    DIVERGENCE_OF: ("output", "parameters"),
    DEATH_ORDER: ("seen", "inferred"),
    DEATH_OUT_OF_MEMORY: ("cgroup", "node"),
    STACK_SOURCE: ("thread", "signal"),
}
"""The values of attributes with a fixed set of values."""

EXAMPLES: Final[Mapping[str, str]] = {
    RUN: "0af76519",
    MACHINE_HOSTS: "gpu17",
    MACHINE_REASON: "gpu17: GPU of rank 136: Xid 79 (it has fallen off the bus)",
    GROUP_HASH: "5c1f0e7a9b3d2c44",
    GROUP_RANKS: "5c1f0e7a9b3d2c44: 0-7,16",
    REDUCE_OP: "sum",
    CHECKPOINT_ID: "/checkpoints/step_1000",
    OPTIMIZER: "AdamW",
    DATASET: "ImageFolder",
    TORCH_VERSION: "2.15.0",
    RPC_PEER: "worker1",
    RPC_WORKER: "worker0",
    INPUT_CHECKSUM: "00f1d2c3b4a5",
    OUTPUT_CHECKSUM: "00f1d2c3b4a5",
    CALLER_PATH: "train.py:42 step",
    SLURM_JOB_ID: "4711",
    SLURM_JOB_NAME: "pretrain",
    SLURM_ARRAY_JOB_ID: "4700",
    SLURM_ARRAY_TASK_ID: "3",
    SLURM_PARTITION: "gpu",
    SLURM_CLUSTER: "main",
    SLURM_NODE_ID: "0",
    RAY_JOB_ID: "02000000",
    RAY_SUBMISSION_ID: "raysubmit_Ffhd8cQ9Yy2r1mRA",
    RAY_TRAIN_RUN: "pretrain",
    RAY_TRAIN_RUN_ID: "40c360b1e28442fa8f3c0c873c494eff",
    ELASTIC_RUN_ID: "none",
    MLFLOW_RUN_ID: "0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    WANDB_RUN_ID: "1x2y3z4a",
    RESTART_COUNT: "1",
    NON_FINITE_PARAMETERS: "layers.3.weight",
    DIVERGENCE_PARAMETERS: "layers.3.weight",
    MISMATCH_FIELD: "dtype",
    STALL_TRACE_ID: "0af7651916cd43dd8448eb211c80319c",
    IMPORT_LIBRARIES: "2.27.3",
    IMPORT_MISSING_RANKS: "5",
}
"""An example for each string attribute whose description has none."""


@dataclass(frozen=True, slots=True)
class SpanKindRow:
    """A kind of span.

    Attributes:
        id: Its id in the registry, after `span.torchdist.`.
        name: The span's name, with placeholders.
        brief: One sentence, if no constant describes the name; otherwise ''.
        required: Attributes of every span of this kind.
        others: Attributes of some spans of this kind.
        kind: OpenTelemetry's kind of span.
    """

    id: str
    name: str
    required: tuple[str, ...]
    others: tuple[str, ...] = ()
    brief: str = ""
    kind: str = "internal"


_CODE: Final = (CODE_FUNCTION, CODE_FILE, CODE_LINE)
_GROUP: Final = (GROUP_HASH, GROUP_SIZE, GROUP_DESCRIPTION, MESH_DIMENSIONS, SEQUENCE_ALIGNED)
_JOB: Final = (
    SLURM_JOB_ID, SLURM_JOB_NAME, SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID, SLURM_PARTITION, SLURM_CLUSTER,
    SLURM_NODE_ID, SLURM_RESTART_COUNT, RAY_JOB_ID, RAY_SUBMISSION_ID, RAY_TRAIN_RUN, RAY_TRAIN_RUN_ID, ELASTIC_RUN_ID,
    ELASTIC_RESTART_COUNT, MLFLOW_RUN_ID, WANDB_RUN_ID, VCS_REVISION, PROCESS_COMMAND_ARGS, K8S_CLUSTER_NAME,
    K8S_NAMESPACE_NAME, K8S_POD_NAME, K8S_POD_UID, K8S_NODE_NAME, K8S_CONTAINER_NAME, K8S_JOB_NAME,
)  # fmt: skip
_CALL: Final = (
    *_GROUP, *_CODE, REDUCE_OP, PEER, TAG, TENSOR_SHAPES, TENSOR_DTYPES, TENSOR_DEVICE, TENSOR_COUNT, CALLER,
    CALLER_PATH, CALLER_PATH_VARIES, MESSAGE_SIZE,
)  # fmt: skip
_ACTIVITY: Final = (RANK, RUN, STEP, COMPLETION)
_VERDICT: Final = (
    VERDICT_RANKS, MISMATCH_FIELD, MISMATCH_VALUES, MISMATCH_SEQUENCE, CIRCLE, DEATH_SIGNAL, DEATH_OUT_OF_MEMORY,
    DEATH_LEAD, DEATH_ORDER, PROCESS_EXIT_CODE, MACHINE_EVIDENCE, MACHINE_FAULT,
    MACHINE_HOSTS, MACHINE_REASON, TAG,
)  # fmt: skip
_FINDING: Final = (
    VERDICT_RANKS, OPERATION, SEQUENCE, STEP, *_GROUP, *_CODE, MISMATCH_FIELD, MISMATCH_VALUES, MISMATCH_SEQUENCE, TAG,
    NON_FINITE_PARAMETERS, DIVERGENCE_OF, DIVERGENCE_PARAMETERS, STRAGGLER_SHARE, STRAGGLER_LATENESS, SLOW_EXCESS,
    SLOW_GAIN, SLOW_GAIN_SHARE, STALL_AGE, VERDICT_COVERAGE, ERROR_TYPE, CHECKPOINT_ID, CHECKPOINT_OPERATION,
    CHECKPOINT_STAGE, RPC_METHOD, MACHINE_EVIDENCE, CALLER,
)  # fmt: skip
_STALL: Final = (STALLED, RUN, VERDICT, VERDICT_COVERAGE, STALL_AGE, OPERATION, SEQUENCE)
_RPC: Final = (ERROR_TYPE, RPC_PEER, RPC_MODE, *_CODE)

SPAN_KINDS: Final = (
    SpanKindRow(
        "step",
        semconv.STEP_SPAN,
        (RANK, WORLD_SIZE, RUN, STEP, STEP_SEGMENT, STEP_SEGMENT_END, HOST_NAME, PROCESS_PID),
        (GROUP_RANKS, STALLED, *_JOB),
    ),
    SpanKindRow(
        "operation",
        "{operation}",
        (RANK, RUN, OPERATION, SEQUENCE, MESSAGE_SIZE, COMPLETION, STEP, ASYNC, SYNC_DURATION),
        (
            *(name for name in _CALL if name != MESSAGE_SIZE), COMPLETION_RESOLUTION, DEVICE_QUEUE_DURATION,
            DEVICE_DURATION, DEVICE_START_RESOLUTION, PHASE, MESSAGE_RECEIVED, MESSAGE_LARGEST_PART, INPUT_MIN,
            INPUT_MAX, INPUT_ABSMAX, INPUT_HEADROOM, INPUT_MEAN, INPUT_NORM, INPUT_ZERO_SHARE, INPUT_SUBNORMAL_SHARE,
            INPUT_SATURATED_SHARE, INPUT_NON_FINITE, UNSEEN_REASON, INPUT_CHECKSUM, OUTPUT_CHECKSUM, FSDP_UNIT,
            DDP_BUCKET, PIPELINE_STAGE, PIPELINE_DIRECTION, PIPELINE_MICROBATCH, STALLED, SYNCHRONIZED, ERROR_TYPE,
        ),
        "A collective, send or receive of one rank, from the call to its end.",
    ),
    SpanKindRow(
        "operation.in_progress",
        semconv.IN_PROGRESS_SPAN,
        (*_STALL, RANK, STEP, MESSAGE_SIZE),
        (*(name for name in _CALL if name != MESSAGE_SIZE), *(name for name in _VERDICT if name != TAG)),
    ),
    SpanKindRow("optimizer_step", semconv.OPTIMIZER_STEP_SPAN, _ACTIVITY, (OPTIMIZER, ERROR_TYPE)),
    SpanKindRow(
        "checkpoint",
        semconv.CHECKPOINT_SPAN,
        _ACTIVITY,
        (
            CHECKPOINT_ID, CHECKPOINT_OPERATION, CHECKPOINT_STAGE, CHECKPOINT_SIZE, CHECKPOINT_FILES,
            CHECKPOINT_STORAGE, ERROR_TYPE,
        ),
    ),
    SpanKindRow("data_wait", semconv.DATA_WAIT_SPAN, _ACTIVITY, (DATASET, ERROR_TYPE)),
    SpanKindRow("backward", semconv.BACKWARD_SPAN, _ACTIVITY, (ERROR_TYPE,)),
    SpanKindRow(
        "rpc.client",
        "{function}",
        (*_ACTIVITY, RPC_SYSTEM, RPC_METHOD),
        _RPC,
        "A remote procedure call of torch, on the caller's side.",
        "client",
    ),
    SpanKindRow(
        "rpc.server",
        "{function}",
        (*_ACTIVITY, RPC_SYSTEM, RPC_METHOD),
        _RPC,
        "A remote procedure call of torch, on the side of the worker that runs the function.",
        "server",
    ),
    SpanKindRow("rpc.init", semconv.RPC_JOIN_SPAN, _ACTIVITY, (RPC_WORKER, ERROR_TYPE)),
    SpanKindRow("rpc.shutdown", semconv.RPC_SHUTDOWN_SPAN, _ACTIVITY, (RPC_WORKER, ERROR_TYPE)),
    SpanKindRow("stall", semconv.STALL_SPAN, (*_STALL, STALL_EPOCH), (STALL_RESOLVED, *_GROUP, *_VERDICT)),
    SpanKindRow(
        "stall.rank",
        semconv.STALL_RANK_SPAN,
        (STALLED, RANK, STEP),
        (OPERATION, SEQUENCE, *_CALL, CODE_STACKTRACE, STACK_SOURCE, ERROR_TYPE),
    ),
    SpanKindRow("stall.rest", semconv.STALL_REST_SPAN, (STALLED,)),
    SpanKindRow("finding", semconv.FINDING_SPAN, (RUN, VERDICT), _FINDING),
    SpanKindRow(
        "import",
        semconv.IMPORT_SPAN,
        (IMPORT_FILES, IMPORT_RANKS, IMPORT_CALLS, IMPORT_OMITTED, IMPORT_CLOCK),
        (IMPORT_FORMATS, IMPORT_LIBRARIES, IMPORT_MISSING_RANKS),
    ),
    SpanKindRow("import.rank", semconv.IMPORT_RANK_SPAN, (IMPORT_CALLS, IMPORT_OMITTED), (RANK, IMPORT_OVERWRITTEN)),
)  # fmt: skip

EVENT_ATTRIBUTES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    STALL_EVENT: ((*_STALL, STALL_EPOCH, STALL_TRACE_ID), (*_GROUP, *_CODE, *_VERDICT, CODE_STACKTRACE, STACK_SOURCE)),
    STALL_RESOLVED_EVENT: ((*_STALL, STALL_RESOLVED, STALL_TRACE_ID), (STALL_EPOCH, *_GROUP, *_VERDICT)),
    FINDING_EVENT: ((RUN, VERDICT, STALL_TRACE_ID), _FINDING),
}
"""Attributes of every event, and of some events, by the event's name."""
