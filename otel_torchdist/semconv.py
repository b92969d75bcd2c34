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
CHECKPOINT_SPAN: Final = "checkpoint {operation}"
"""A checkpoint on one rank: `checkpoint save`, `load`, `async_save` (until that returns; the save itself is a `save` of
another thread or process), `torch.save`, `torch.load`; at most 16 of each in a training step. Children are its stages,
named after them: `plan`, `write` and `read` with the collectives in which ranks wait for each other, in them
`write_data`, `read_data` and others. An error if it raised."""
DATA_WAIT_SPAN: Final = "data wait"
"""The training thread waited for a batch of a `DataLoader`, or in `data_wait()`, for a millisecond or longer; at most
16 in a training step. Metrics count the others, too."""
BACKWARD_SPAN: Final = "backward"
"""A backward pass of autograd that took a millisecond or longer, or raised; at most 16 in a training step. On a device
it ends when it is enqueued."""
RPC_JOIN_SPAN: Final = "init_rpc"
"""A worker's `init_rpc`, which waits for all workers."""
RPC_SHUTDOWN_SPAN: Final = "rpc.shutdown"
"""A worker's `rpc.shutdown`, which waits for all workers and their calls."""
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
CHECKPOINT_ID: Final = "torchdist.checkpoint.id"
"""The checkpoint: a path, or what the program calls it. After 256 of them, digits of new ones become `#`."""
CHECKPOINT_OPERATION: Final = "torchdist.checkpoint.operation"
"""`save`, `load` or `async_save` of `torch.distributed.checkpoint`, `torch.save` or `torch.load`."""
CHECKPOINT_STAGE: Final = "torchdist.checkpoint.stage"
"""What a rank does within one, as torch calls it: `write_data`, `read_data`, `local_step` (planning), …; `plan`,
`write` and `read` are these together with the collectives in which ranks wait for each other."""
CHECKPOINT_SIZE: Final = "torchdist.checkpoint.size"
"""Bytes that this rank has written or read."""
CHECKPOINT_FILES: Final = "torchdist.checkpoint.files"
"""Files that this rank has written or read."""
CHECKPOINT_STORAGE: Final = "torchdist.checkpoint.storage"
"""Class of the writer or reader, with the scheme of its path: `FileSystemWriter`, `FsspecWriter (s3)`; or `file`."""
OPTIMIZER: Final = "torchdist.optimizer"
"""Class of the optimizer, on the spans of its steps."""
DATASET: Final = "torchdist.dataset"
"""Class of the dataset, on the spans of waits for its data."""
RPC_SYSTEM: Final = "rpc.system.name"
"""`torch`, on both spans of a remote procedure call."""
RPC_METHOD: Final = "rpc.method"
"""The function that is called; `RRef.step` for a method of a remote object."""
RPC_PEER: Final = "torchdist.rpc.peer"
"""Name of the worker on the other side; on the side that runs the function only if the caller is recorded."""
RPC_MODE: Final = "torchdist.rpc.mode"
"""How the caller called it: `sync`, `async` or `remote`."""
RPC_WORKER: Final = "torchdist.rpc.worker"
"""Name of this worker, on the spans of `init_rpc` and `rpc.shutdown`, which wait for all workers."""
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
INPUT_HEADROOM: Final = "torchdist.input.headroom"
"""How often that could be doubled before it overflowed its type: log2 of the type's largest number divided by it."""
INPUT_MEAN: Final = "torchdist.input.mean"
"""Mean of the inputs; of halves, that of a sample of 65,536 elements."""
INPUT_NORM: Final = "torchdist.input.norm"
"""L2 norm of the inputs; of float16, extrapolated from that sample."""
INPUT_ZERO_SHARE: Final = "torchdist.input.zero_share"
"""Share of zeros in a sample of 65,536 elements."""
INPUT_SUBNORMAL_SHARE: Final = "torchdist.input.subnormal_share"
"""Share of subnormal numbers in that sample."""
INPUT_SATURATED_SHARE: Final = "torchdist.input.saturated_share"
"""Share of numbers in that sample that are the largest of their type, to which casts clip; only of float8."""
INPUT_NON_FINITE: Final = "torchdist.input.non_finite"
"""True if an input is infinite or not a number, false if the inputs were looked at and are finite."""
UNSEEN_REASON: Final = "torchdist.input.unseen"
"""Why inputs were not looked at, all or some: `type`, `layout`, `device`, `graph`, `full` or `failed`."""
INPUT_CHECKSUM: Final = "torchdist.input.checksum"
"""Checksum of the inputs' bits, as twelve hex digits."""
OUTPUT_CHECKSUM: Final = "torchdist.output.checksum"
"""The same of the outputs, where all members must have equal ones; missing where their end is known before they are
read, as in DDP."""
CALLER: Final = "torchdist.caller"
"""What the call is for, in words (`FSDP layers.3`), or the label that the program gave with `record_comm`."""
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
"""Type of the exception with which the operation or activity failed."""

# --- attributes of the resource ------------------------------------------------------------------------------------
SLURM_JOB_ID: Final = "torchdist.slurm.job.id"
"""Slurm's number of the job."""
SLURM_JOB_NAME: Final = "torchdist.slurm.job.name"
"""Its name."""
SLURM_ARRAY_JOB_ID: Final = "torchdist.slurm.array.job.id"
"""Slurm's number of the job array that it belongs to."""
SLURM_ARRAY_TASK_ID: Final = "torchdist.slurm.array.task.id"
"""Its number in that array."""
SLURM_PARTITION: Final = "torchdist.slurm.partition"
"""The partition that it runs in."""
SLURM_CLUSTER: Final = "torchdist.slurm.cluster"
"""Name of the cluster."""
SLURM_NODE_ID: Final = "torchdist.slurm.node.id"
"""Number of the node in the job."""
SLURM_RESTART_COUNT: Final = "torchdist.slurm.restart_count"
"""How often Slurm has started the job again; on the spans of steps, because an agent may outlive an attempt."""
K8S_CLUSTER_NAME: Final = "k8s.cluster.name"
"""Kubernetes, like those below: as far as the downward API or the pod's variables say it."""
K8S_NAMESPACE_NAME: Final = "k8s.namespace.name"
"""Namespace of the pod."""
K8S_POD_NAME: Final = "k8s.pod.name"
"""Name of the pod."""
K8S_POD_UID: Final = "k8s.pod.uid"
"""UID of the pod."""
K8S_NODE_NAME: Final = "k8s.node.name"
"""Name of the node."""
K8S_CONTAINER_NAME: Final = "k8s.container.name"
"""Name of the container in the pod."""
K8S_JOB_NAME: Final = "k8s.job.name"
"""Name of the Job that the pod belongs to."""
RAY_JOB_ID: Final = "torchdist.ray.job.id"
"""Ray's id of the job."""
ELASTIC_RUN_ID: Final = "torchdist.torchelastic.run.id"
"""The id of the run that torchrun was given (`--rdzv-id`)."""
ELASTIC_RESTART_COUNT: Final = "torchdist.torchelastic.restart_count"
"""How often torchrun has started the ranks again; on the spans of steps, like that of Slurm."""
MLFLOW_RUN_ID: Final = "torchdist.mlflow.run.id"
"""MLflow's id of the run, if `MLFLOW_RUN_ID` is set."""
WANDB_RUN_ID: Final = "torchdist.wandb.run.id"
"""The id of the run in Weights & Biases, if `WANDB_RUN_ID` is set."""
VCS_REVISION: Final = "vcs.ref.head.revision"
"""The git commit of the program (`OTEL_PYTHON_TORCHDIST_DESCRIBE_LAUNCH`)."""
PROCESS_COMMAND_ARGS: Final = "process.command_args"
"""The command line of a rank, likewise; what looks like a secret is `***`."""

# --- attributes of metrics of the machine --------------------------------------------------------------------------
HW_ID: Final = "hw.id"
"""A GPU's UUID, or an adapter of a network with its port: `mlx5_0/1`."""
NETWORK_INTERFACE: Final = "network.interface.name"
"""A network interface."""
NETWORK_DIRECTION: Final = "network.io.direction"
"""`receive` or `transmit`."""
CPU_MODE: Final = "cpu.mode"
"""What a processor's time went into: `user`, `system`, `iowait` and others."""
MEMORY_STATE: Final = "system.memory.state"
"""What memory is used for: `used`, `free`, `buffers`, `cached`."""
PAGING_STATE: Final = "system.paging.state"
"""`used`."""
PRESSURE_RESOURCE: Final = "torchdist.pressure.resource"
"""What tasks wait for: `cpu`, `memory` or `io`."""
PRESSURE_SEVERITY: Final = "torchdist.pressure.severity"
"""Whether `some` of the tasks wait, or all of them: `full`."""
THROTTLE_REASON: Final = "torchdist.gpu.throttle.reason"
"""Why the clocks of a GPU are held down."""
RESTART_COUNT: Final = "torchdist.restart_count"
"""How often torchrun or Slurm has started the ranks again."""

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
CHECKPOINT_FAILED: Final = "checkpoint_failed"
"""The verdict of a finding: a checkpoint could not be saved; its ranks are those on which an exception was raised."""
SHARED_GROUP: Final = "shared_group"
"""The verdict of a finding: two threads of a rank are in collectives of one group of gloo's at the same time."""
DIVERGENCE_OF: Final = "torchdist.divergence.of"
"""What differs between ranks: `output`, the result of an operation, or `parameters` of replicas."""
DIVERGENCE_PARAMETERS: Final = "torchdist.divergence.parameters"
"""Which parameters of replicas differ: the only one, or the first and the last that may."""
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
MACHINE_EVIDENCE: Final = "torchdist.machine.evidence"
"""What the machine of a named rank has shown: `gpu_lost`, `xid`, `ecc`, `cgroup_memory`, `node_memory`, `link_down`,
`storage` or `throttled`."""
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
PROCESS_MEMORY: Final = "process_memory_usage_bytes"
PROCESS_VIRTUAL: Final = "process_memory_virtual_bytes"
PROCESS_CPU: Final = "process_cpu_time_seconds_total"
PROCESS_THREADS: Final = "process_thread_count"
CONTAINER_MEMORY: Final = "container_memory_usage_bytes"
CGROUP_MEMORY_LIMIT: Final = "torchdist_cgroup_memory_limit_bytes"
CGROUP_PRESSURE: Final = "torchdist_cgroup_pressure_seconds_total"
PRESSURE: Final = "torchdist_pressure_seconds_total"
SYSTEM_MEMORY_LIMIT: Final = "system_memory_limit_bytes"
SYSTEM_MEMORY: Final = "system_memory_usage_bytes"
SYSTEM_MEMORY_AVAILABLE: Final = "system_memory_linux_available_bytes"
SYSTEM_SWAP: Final = "system_paging_usage_bytes"
SYSTEM_CPU: Final = "system_cpu_time_seconds_total"
SYSTEM_NETWORK: Final = "system_network_io_bytes_total"
SYSTEM_NETWORK_ERRORS: Final = "system_network_errors_total"
SYSTEM_NETWORK_DROPPED: Final = "system_network_packet_dropped_total"
HW_NETWORK: Final = "hw_network_io_bytes_total"
HW_NETWORK_LIMIT: Final = "hw_network_bandwidth_limit_bytes_per_second"
HW_ERRORS: Final = "hw_errors_total"
GPU_LOST: Final = "torchdist_gpu_lost"
GPU_MEMORY: Final = "hw_gpu_memory_usage_bytes"
GPU_MEMORY_LIMIT: Final = "hw_gpu_memory_limit_bytes"
GPU_IO: Final = "hw_gpu_io_bytes_total"
HW_POWER: Final = "hw_power_watts"
GPU_THROTTLED: Final = "torchdist_gpu_clocks_throttled"

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
    PROCESS_MEMORY: "process.memory.usage",
    PROCESS_VIRTUAL: "process.memory.virtual",
    PROCESS_CPU: "process.cpu.time",
    PROCESS_THREADS: "process.thread.count",
    CONTAINER_MEMORY: "container.memory.usage",
    CGROUP_MEMORY_LIMIT: "torchdist.cgroup.memory.limit",
    CGROUP_PRESSURE: "torchdist.cgroup.pressure",
    PRESSURE: "torchdist.pressure",
    SYSTEM_MEMORY_LIMIT: "system.memory.limit",
    SYSTEM_MEMORY: "system.memory.usage",
    SYSTEM_MEMORY_AVAILABLE: "system.memory.linux.available",
    SYSTEM_SWAP: "system.paging.usage",
    SYSTEM_CPU: "system.cpu.time",
    SYSTEM_NETWORK: "system.network.io",
    SYSTEM_NETWORK_ERRORS: "system.network.errors",
    SYSTEM_NETWORK_DROPPED: "system.network.packet.dropped",
    HW_NETWORK: "hw.network.io",
    HW_NETWORK_LIMIT: "hw.network.bandwidth.limit",
    HW_ERRORS: "hw.errors",
    GPU_LOST: "torchdist.gpu.lost",
    GPU_MEMORY: "hw.gpu.memory.usage",
    GPU_MEMORY_LIMIT: "hw.gpu.memory.limit",
    GPU_IO: "hw.gpu.io",
    HW_POWER: "hw.power",
    GPU_THROTTLED: "torchdist.gpu.clocks_throttled",
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
LABEL_STAGE: Final = "stage"
"""A stage of a checkpoint, `whole`, or `other`."""
LABEL_UNSEEN: Final = "unseen"
"""Why values were not looked at: `type`, `layout`, `device`, `graph`, `full` or `failed`."""
LABEL_RPC_SYSTEM: Final = "rpc_system_name"
LABEL_RPC_METHOD: Final = "rpc_method"
LABEL_ERROR_TYPE: Final = "error_type"
"""Type of an error; empty if a call went well."""
LABEL_KERNEL: Final = "kernel"
LABEL_TORCH: Final = "torch"
LABEL_HOST: Final = "host_name"
LABEL_DEVICE: Final = "hw_id"
LABEL_INTERFACE: Final = "network_interface_name"
LABEL_DIRECTION: Final = "network_io_direction"
LABEL_CPU_MODE: Final = "cpu_mode"
LABEL_MEMORY_STATE: Final = "system_memory_state"
LABEL_PAGING_STATE: Final = "system_paging_state"
LABEL_RESOURCE: Final = "resource"
LABEL_SEVERITY: Final = "severity"
LABEL_REASON: Final = "reason"
LABEL_SLURM_JOB_ID: Final = "slurm_job_id"
LABEL_SLURM_JOB_NAME: Final = "slurm_job_name"
LABEL_K8S_NAMESPACE: Final = "k8s_namespace_name"
LABEL_K8S_POD: Final = "k8s_pod_name"
LABEL_RAY_JOB_ID: Final = "ray_job_id"
LABEL_ELASTIC_RUN_ID: Final = "torchelastic_run_id"
LABEL_RESTART_COUNT: Final = "restart_count"
LABEL_MLFLOW_RUN_ID: Final = "mlflow_run_id"
LABEL_WANDB_RUN_ID: Final = "wandb_run_id"

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
    LABEL_STAGE: CHECKPOINT_STAGE,
    LABEL_UNSEEN: UNSEEN_REASON,
    LABEL_RPC_SYSTEM: RPC_SYSTEM,
    LABEL_RPC_METHOD: RPC_METHOD,
    LABEL_ERROR_TYPE: ERROR_TYPE,
    LABEL_KERNEL: CAPTURE_KERNEL,
    LABEL_TORCH: TORCH_VERSION,
    LABEL_HOST: HOST_NAME,
    LABEL_DEVICE: HW_ID,
    LABEL_INTERFACE: NETWORK_INTERFACE,
    LABEL_DIRECTION: NETWORK_DIRECTION,
    LABEL_CPU_MODE: CPU_MODE,
    LABEL_MEMORY_STATE: MEMORY_STATE,
    LABEL_PAGING_STATE: PAGING_STATE,
    LABEL_RESOURCE: PRESSURE_RESOURCE,
    LABEL_SEVERITY: PRESSURE_SEVERITY,
    LABEL_REASON: THROTTLE_REASON,
    LABEL_SLURM_JOB_ID: SLURM_JOB_ID,
    LABEL_SLURM_JOB_NAME: SLURM_JOB_NAME,
    LABEL_K8S_NAMESPACE: K8S_NAMESPACE_NAME,
    LABEL_K8S_POD: K8S_POD_NAME,
    LABEL_RAY_JOB_ID: RAY_JOB_ID,
    LABEL_ELASTIC_RUN_ID: ELASTIC_RUN_ID,
    LABEL_RESTART_COUNT: RESTART_COUNT,
    LABEL_MLFLOW_RUN_ID: MLFLOW_RUN_ID,
    LABEL_WANDB_RUN_ID: WANDB_RUN_ID,
}

REMOTE_CALL: Final = "rpc"
"""What stands for an operation in findings about remote procedure calls."""
STARVED: Final = "starved"
"""The verdict of a finding: all threads that serve remote procedure calls wait in calls of their own."""
OTHER_METHOD: Final = "_OTHER"
"""OpenTelemetry's `rpc.method` of a function that is not known, or beyond the limit, and its `error.type` likewise."""
OTHER: Final = "other"
"""The label of a group or operation that is unknown, or beyond the limit."""
RENDEZVOUS: Final = "rendezvous"
"""The operation of creating a group."""
