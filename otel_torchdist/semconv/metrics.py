"""Names of metrics: in Prometheus, and in OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
IDLE_SECONDS: Final = "torchdist_idle_seconds"
TIMED_STEPS: Final = "torchdist_timed_steps_total"
TIMED_STEP_SECONDS: Final = "torchdist_timed_step_seconds_total"
DATA_WAIT_SECONDS: Final = "torchdist_data_wait_seconds_total"
BATCHES: Final = "torchdist_batches_total"
BACKWARD_SECONDS: Final = "torchdist_backward_seconds_total"
OPTIMIZER_SECONDS: Final = "torchdist_optimizer_seconds_total"
SAMPLES: Final = "torchdist_samples_total"
TOKENS: Final = "torchdist_tokens_total"
FLOPS: Final = "torchdist_flops_total"
GRADIENT_SYNC_SECONDS: Final = "torchdist_gradient_sync_seconds"
GRADIENT_SYNC_EXPOSED_SECONDS: Final = "torchdist_gradient_sync_exposed_seconds"
STALLED_METRIC: Final = "torchdist_stalled"
STALL_INFO: Final = "torchdist_stall_info"
ATTEMPT_ENDED: Final = "torchdist_attempt_ended_info"
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
UNSEEN_OPERATIONS: Final = "torchdist_unseen_operations_total"
AMP_SKIPPED_STEPS: Final = "torchdist_amp_skipped_steps_total"
AMP_SCALE: Final = "torchdist_amp_scale"
PARAMETERS_COMPARED: Final = "torchdist_parameter_checksums_total"
REPLICAS_LEFT_OUT: Final = "torchdist_replicas_left_out"
INPUT_NORM_METRIC: Final = "torchdist_input_norm"
INPUT_ABSMAX_METRIC: Final = "torchdist_input_absmax"
INPUT_HEADROOM_METRIC: Final = "torchdist_input_headroom"
CHECKPOINTS: Final = "torchdist_checkpoints_total"
CHECKPOINT_SECONDS: Final = "torchdist_checkpoint_seconds_total"
CHECKPOINT_BYTES: Final = "torchdist_checkpoint_size_bytes_total"
CHECKPOINT_FILE_COUNT: Final = "torchdist_checkpoint_files_total"
CHECKPOINT_FAILURES: Final = "torchdist_checkpoint_failures_total"
CHECKPOINT_AGE: Final = "torchdist_checkpoint_age_seconds"
CHECKPOINT_INTERVAL: Final = "torchdist_checkpoint_interval_seconds"
SPANS_DROPPED: Final = "torchdist_spans_dropped_total"
ARCHIVE_DROPPED: Final = "torchdist_archive_operations_dropped_total"
PATH_SECONDS: Final = "torchdist_critical_path_seconds"
PATH_RANK_SECONDS: Final = "torchdist_critical_path_rank_seconds"
PATH_GAIN_SECONDS: Final = "torchdist_critical_path_gain_seconds"
RPC_CLIENT_DURATION: Final = "rpc_client_call_duration_seconds"
RPC_SERVER_DURATION: Final = "rpc_server_call_duration_seconds"
UP: Final = "torchdist_up"
RANK_INFO: Final = "torchdist_rank_info"
JOB_INFO: Final = "torchdist_job_info"
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
    IDLE_SECONDS: "torchdist.idle",
    TIMED_STEPS: "torchdist.timed_steps",
    TIMED_STEP_SECONDS: "torchdist.timed_step",
    DATA_WAIT_SECONDS: "torchdist.data_wait",
    BATCHES: "torchdist.batches",
    BACKWARD_SECONDS: "torchdist.backward",
    OPTIMIZER_SECONDS: "torchdist.optimizer",
    SAMPLES: "torchdist.samples",
    TOKENS: "torchdist.tokens",
    FLOPS: "torchdist.flops",
    GRADIENT_SYNC_SECONDS: "torchdist.gradient_sync",
    GRADIENT_SYNC_EXPOSED_SECONDS: "torchdist.gradient_sync.exposed",
    STALLED_METRIC: "torchdist.stalled",
    STALL_INFO: "torchdist.stall.info",
    ATTEMPT_ENDED: "torchdist.attempt_ended.info",
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
    UNSEEN_OPERATIONS: "torchdist.unseen_operations",
    AMP_SKIPPED_STEPS: "torchdist.amp.skipped_steps",
    AMP_SCALE: "torchdist.amp.scale",
    PARAMETERS_COMPARED: "torchdist.parameter_checksums",
    REPLICAS_LEFT_OUT: "torchdist.replicas.left_out",
    INPUT_NORM_METRIC: "torchdist.input.norm",
    INPUT_ABSMAX_METRIC: "torchdist.input.absmax",
    INPUT_HEADROOM_METRIC: "torchdist.input.headroom",
    CHECKPOINTS: "torchdist.checkpoints",
    CHECKPOINT_SECONDS: "torchdist.checkpoint",
    CHECKPOINT_BYTES: "torchdist.checkpoint.size",
    CHECKPOINT_FILE_COUNT: "torchdist.checkpoint.files",
    CHECKPOINT_FAILURES: "torchdist.checkpoint.failures",
    CHECKPOINT_AGE: "torchdist.checkpoint.age",
    CHECKPOINT_INTERVAL: "torchdist.checkpoint.interval",
    SPANS_DROPPED: "torchdist.spans.dropped",
    ARCHIVE_DROPPED: "torchdist.archive.operations.dropped",
    PATH_SECONDS: "torchdist.critical_path",
    PATH_RANK_SECONDS: "torchdist.critical_path.rank",
    PATH_GAIN_SECONDS: "torchdist.critical_path.gain",
    RPC_CLIENT_DURATION: "rpc.client.call.duration",
    RPC_SERVER_DURATION: "rpc.server.call.duration",
    UP: "torchdist.up",
    RANK_INFO: "torchdist.rank.info",
    JOB_INFO: "torchdist.job.info",
}
"""Without unit and `_total`: OpenTelemetry's rules for Prometheus turn these into the names above."""
