"""Symbols of torch with which steps, labels, checkpoints and tensors of a training loop are recorded."""

from __future__ import annotations

from typing import Final

from otel_torchdist.capture.upstream.symbol import Loss, TorchSymbol

_DDP_MODULE: Final = "torch.nn.parallel.distributed"
_DDP: Final = f"{_DDP_MODULE}:DistributedDataParallel"
_SCALER: Final = "torch.amp:GradScaler"
_MESH: Final = "torch.distributed.device_mesh:DeviceMesh"
_STAGE: Final = "torch.distributed.pipelining.stage:_PipelineStageBase"
_FSDP: Final = "torch.distributed.fsdp._fully_shard"
_PARAM_GROUP: Final = f"{_FSDP}._fsdp_param_group:FSDPParamGroup"
_PARAM: Final = f"{_FSDP}._fsdp_param:FSDPParam"
_COLLECTIVES: Final = f"{_FSDP}._fsdp_collectives"
_FSDP1: Final = "torch.distributed.fsdp._runtime_utils"
_FSDP1_IMPORTER: Final = "torch.distributed.fsdp._unshard_param_utils"
_FLAT: Final = "torch.distributed.fsdp._flat_param:FlatParameter"
_LOADER: Final = "torch.utils.data.dataloader"
_FILES: Final = "torch.serialization"
_WRAPPER: Final = "torch.distributed.checkpoint.utils:_DistWrapper"
_NO_BUCKETS: Final = "operations are shown without their DDP buckets"
_NO_UNITS: Final = "operations are shown without their FSDP units"
_NO_STAGES: Final = "operations are shown without their pipeline stages"
_NO_DIMENSIONS: Final = "operations are shown without their dimensions of device meshes"
_NO_PARAMETER: Final = "a NaN in a bucket or unit is reported without its parameter"
_NO_SCALES: Final = "loss scales are not recorded"
_NO_FILES: Final = "files of `torch.save` and `torch.load` are not recorded"
_NO_SIZES: Final = "the sizes of checkpoints are not recorded"
_NO_DATA_WAITS: Final = "data waits are not recorded, except in data_wait()"

# --- steps ------------------------------------------------------------------------------------------------------------

HOOKED_STEP: Final = TorchSymbol(
    "torch.optim.optimizer:Optimizer",
    "profile_hook_step",
    "replaces the `step` of each optimizer class; its code shows whether a step runs inside another",
    "the steps of wrapped optimizers are recorded twice",
)
SCALED_STEP: Final = TorchSymbol(
    _SCALER,
    "_maybe_opt_step",
    "steps or skips an optimizer",
    "steps that a gradient scaler skips do not end a step",
)
INIT_SCALE: Final = TorchSymbol(
    _SCALER, "_lazy_init_scale_growth_tracker", "creates the tensor of the scale", _NO_SCALES
)
SCALE: Final = TorchSymbol(_SCALER, "_scale", "the scale", _NO_SCALES, Loss.NOTHING, of_instances=True)
FIRST_SCALE: Final = TorchSymbol(_SCALER, "_init_scale", "the first scale", _NO_SCALES, of_instances=True)
FIRST_TRACKER: Final = TorchSymbol(
    _SCALER, "_init_growth_tracker", "the first count of steps without overflow", _NO_SCALES, of_instances=True
)
GROWTH: Final = TorchSymbol(_SCALER, "_growth_factor", "how the scale grows", _NO_SCALES, of_instances=True)
BACKOFF: Final = TorchSymbol(_SCALER, "_backoff_factor", "how the scale shrinks", _NO_SCALES, of_instances=True)
GROWTH_INTERVAL: Final = TorchSymbol(_SCALER, "_growth_interval", "when the scale grows", _NO_SCALES, of_instances=True)
SCALER_ENABLED: Final = TorchSymbol(
    _SCALER, "_enabled", "whether a scaler scales", "a disabled scaler shows a scale", Loss.NOTHING, of_instances=True
)
SCALER_STATES: Final = TorchSymbol(
    _SCALER,
    "_per_optimizer_states",
    "the optimizers that were checked for overflow",
    "scales on devices are unknown after a check without a step",
    Loss.NOTHING,
    of_instances=True,
)
LOADER_ITERATOR: Final = TorchSymbol(
    _LOADER, "_BaseDataLoaderIter", "base class of the iterators of data loaders", _NO_DATA_WAITS
)
NEXT_DATA: Final = TorchSymbol(f"{_LOADER}:_BaseDataLoaderIter", "_next_data", "waits for a batch", _NO_DATA_WAITS)
LOADER_DATASET: Final = TorchSymbol(
    f"{_LOADER}:_BaseDataLoaderIter",
    "_dataset",
    "the dataset that a data wait names",
    "data waits do not name the dataset",
    Loss.NOTHING,
    of_instances=True,
)

# --- DDP --------------------------------------------------------------------------------------------------------------

DDP_INIT: Final = TorchSymbol(_DDP, "_ddp_init_helper", "wraps a model", "gradient sync is not timed")
DDP_LOGGER: Final = TorchSymbol(
    _DDP, "logger", "the timers of gradient sync", "gradient sync is not timed", of_instances=True
)
DDP_FORWARD: Final = TorchSymbol(_DDP, "_pre_forward", "begins a forward, and rebuilds buckets", _NO_BUCKETS)
DDP_LOGGED: Final = TorchSymbol(_DDP, "_get_ddp_logging_data", "the sizes of buckets", _NO_BUCKETS)
DDP_LOGGED_TIMES: Final = TorchSymbol(
    "torch._C._distributed_c10d:Logger",
    "_get_ddp_logging_data",
    "the times of gradient sync, and the sizes of buckets",
    f"gradient sync is not timed, and {_NO_BUCKETS}",
)
DDP_REBUILT: Final = TorchSymbol(
    _DDP,
    "_has_rebuilt_buckets",
    "whether buckets were rebuilt; DDP logs their sizes a step later",
    "operations of one step are shown without their buckets",
    Loss.NOTHING,
    since="2.13",
    of_instances=True,
)
DDP_PARAMETERS: Final = TorchSymbol(
    _DDP,
    "_module_parameters",
    "the parameters in DDP's order",
    "operations of one step are shown without their buckets",
    Loss.NOTHING,
    of_instances=True,
)
DDP_BUILD: Final = TorchSymbol(
    _DDP, "_build_params_for_reducer", "the parameters in a bucket, after a NaN in it", _NO_PARAMETER
)
FIRST_BUCKET: Final = TorchSymbol(
    "torch.distributed",
    "_DEFAULT_FIRST_BUCKET_BYTES",
    "computes rebuilt buckets before DDP logs them",
    "operations of one step are shown without their buckets",
)
ASSIGN_BUCKETS: Final = TorchSymbol(
    "torch.distributed",
    "_compute_bucket_assignment_by_size",
    "computes rebuilt buckets before DDP logs them",
    "operations of one step are shown without their buckets",
)
CHECK_SHAPES: Final = TorchSymbol(
    _DDP_MODULE,
    "_verify_param_shape_across_processes",
    "receives the parameters and the group of a wrapped model",
    "parameters of models in DDP are not compared",
)
LOCAL_TENSOR: Final = TorchSymbol(
    "torch.distributed.tensor:DTensor",
    "_local_tensor",
    "this rank's part of a parameter, without recording a gradient",
    "replicated parameters in a DTensor are not compared",
    Loss.NOTHING,
    of_instances=True,
)
TENSOR_VERSION: Final = TorchSymbol(
    "torch:Tensor",
    "_version",
    "the number of in-place changes, to copy a state for `rescue` only if it has changed",
    "each rescue point copies the whole state",
)

# --- FSDP, meshes, pipelines ------------------------------------------------------------------------------------------

UNIT_UNSHARD: Final = TorchSymbol(_PARAM_GROUP, "unshard", "gathers the parameters of a unit", _NO_UNITS)
UNIT_REDUCE: Final = TorchSymbol(_PARAM_GROUP, "post_backward", "reduces the gradients of a unit", _NO_UNITS)
UNIT_NAME: Final = TorchSymbol(_PARAM_GROUP, "_module_fqn", "the name of a unit", _NO_UNITS, of_instances=True)
UNIT_PARAMETER: Final = TorchSymbol(
    _PARAM, "_param_fqn", "the name of a parameter, after a NaN in its unit", _NO_PARAMETER, of_instances=True
)
UNIT_GATHER: Final = TorchSymbol(
    _COLLECTIVES,
    "foreach_all_gather",
    "its frame has the parameters of a unit, after a NaN in it",
    _NO_PARAMETER,
    Loss.NOTHING,
)
UNIT_SCATTER: Final = TorchSymbol(
    _COLLECTIVES,
    "foreach_reduce",
    "its frame has the parameters of a unit, after a NaN in it",
    _NO_PARAMETER,
    Loss.NOTHING,
)
FLAT_UNSHARD: Final = TorchSymbol(_FSDP1, "_unshard", "gathers the parameters of a unit", _NO_UNITS)
FLAT_REDUCE: Final = TorchSymbol(_FSDP1, "_reduce_grad", "reduces the gradients of a unit", _NO_UNITS)
FLAT_REDUCE_WHOLE: Final = TorchSymbol(
    _FSDP1, "_reduce_grad_no_shard", "reduces the gradients of a unit that is not sharded", _NO_UNITS
)
FLAT_UNSHARD_BY_NAME: Final = TorchSymbol(
    _FSDP1_IMPORTER,
    "_unshard",
    "the same function, which this module imports by name",
    "parameters that the program gathers itself are shown without their unit",
    Loss.NOTHING,
)
FLAT_ORDER: Final = TorchSymbol(
    "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel",
    "_exec_order_data",
    "the names of parameters",
    _NO_UNITS,
    of_instances=True,
)
FLAT_PARAMETERS_OF_UNIT: Final = TorchSymbol(_FLAT, "_params", "the parameters in a unit", _NO_UNITS, of_instances=True)
FLAT_NAMES: Final = TorchSymbol(_FLAT, "_fqns", "their names", _NO_UNITS, of_instances=True)
MESH_GROUPS: Final = TorchSymbol(_MESH, "_init_process_groups", "creates the groups of a mesh", _NO_DIMENSIONS)
MESH_FROM_GROUP: Final = TorchSymbol(_MESH, "from_group", "makes a mesh of existing groups", _NO_DIMENSIONS)
MESH_GROUP_NAMES: Final = TorchSymbol(
    _MESH, "_dim_group_names", "the groups of a mesh", _NO_DIMENSIONS, of_instances=True
)
STAGE_FORWARD_SEND: Final = TorchSymbol(_STAGE, "get_fwd_send_ops", "messages of a microbatch", _NO_STAGES)
STAGE_FORWARD_RECV: Final = TorchSymbol(_STAGE, "get_fwd_recv_ops", "messages of a microbatch", _NO_STAGES)
STAGE_BACKWARD_SEND: Final = TorchSymbol(_STAGE, "get_bwd_send_ops", "messages of a microbatch", _NO_STAGES)
STAGE_BACKWARD_RECV: Final = TorchSymbol(_STAGE, "get_bwd_recv_ops", "messages of a microbatch", _NO_STAGES)
BATCH_P2P: Final = TorchSymbol(
    "torch.distributed.pipelining.schedules", "_batch_p2p", "issues the messages of a stage", _NO_STAGES
)
REHEARSE_FORWARD: Final = TorchSymbol(
    "torch.distributed.pipelining.stage:PipelineStage",
    "_prepare_forward_infra",
    "runs a stage on uninitialized memory to infer shapes",
    "values in these messages may be reported as NaN",
    Loss.NOTHING,
)
REHEARSE_BACKWARD: Final = TorchSymbol(
    "torch.distributed.pipelining.stage:_PipelineStageBase",
    "_prepare_backward_infra",
    "the same for the backward pass",
    "values in these messages may be reported as NaN",
    Loss.NOTHING,
)

# --- checkpoints ------------------------------------------------------------------------------------------------------

OPEN_WRITER: Final = TorchSymbol(_FILES, "_open_zipfile_writer", "opens the file of `torch.save`", _NO_FILES)
OPEN_READER: Final = TorchSymbol(_FILES, "_open_zipfile_reader", "opens the file of `torch.load`", _NO_FILES)
DIST_WRAPPER: Final = TorchSymbol(
    "torch.distributed.checkpoint.utils", "_DistWrapper", "runs the stages of a checkpoint on all ranks", _NO_SIZES
)
WRAPPED_SCATTER: Final = TorchSymbol(_WRAPPER, "reduce_scatter", "a stage: plan and result of each rank", _NO_SIZES)
WRAPPED_REDUCE: Final = TorchSymbol(_WRAPPER, "all_reduce", "a stage: plan and result of each rank", _NO_SIZES)
WRAPPED_GATHER: Final = TorchSymbol(_WRAPPER, "all_gather", "a stage: plan and result of each rank", _NO_SIZES)
CHECKPOINT_LOGGER: Final = TorchSymbol(
    "torch.distributed.checkpoint.logger",
    "_dcp_logger",
    "the logger to which torch reports the stages of a checkpoint",
    "checkpoints of `torch.distributed.checkpoint` are recorded if the logger has the name of today's",
)

SYMBOLS: Final = tuple(value for value in vars().values() if isinstance(value, TorchSymbol))
