"""Symbols that torch itself calls in every training: without them torch fails, whether or not we record."""

_C10D = "torch.distributed.distributed_c10d"
_GROUP = "torch._C._distributed_c10d.ProcessGroup"
_OVERLOAD = "torch.ops.aten.relu.default"
_RPC = "torch.distributed.rpc"
_DDP = "torch.nn.parallel.distributed.DistributedDataParallel"
_SCALER = "torch.amp.GradScaler"
_STAGE = "torch.distributed.pipelining.stage._PipelineStageBase"
_FSDP = "torch.distributed.fsdp"
_UNIT = f"{_FSDP}._fully_shard._fsdp_param_group.FSDPParamGroup"
_CHECKPOINT = "torch.distributed.checkpoint"

NEEDED_BY_TORCH: dict[str, str] = {
    "torch._C.DispatchKey": "torch.library registers kernels for it",
    "torch._C.DispatchKeySet": "modules that torch imports late annotate arguments with it",
    f"{_OVERLOAD}._handle": "torch computes it for each operation",
    f"{_OVERLOAD}._schema": "torch computes it for each operation",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "torch.library calls it",
    "torch.ops._c10d_functional": "torch.ops makes it anew whenever it is missing",
    "torch.ops.symm_mem._rendezvous": "torch.ops makes it anew whenever it is missing",
    "torch._dynamo.trace_rules.get_torch_obj_rule_map": "Dynamo calls it",
    f"{_C10D}._world": "init_process_group reads it",
    f"{_C10D}._new_process_group_helper": "init_process_group calls it",
    f"{_C10D}._update_default_pg": "init_process_group calls it",
    f"{_C10D}.rendezvous": "init_process_group calls it",
    f"{_C10D}._register_pg_in_world": "init_process_group calls it",
    f"{_GROUP}._device_types": "object collectives read it",
    f"{_GROUP}.set_timeout": "set_timeout calls it",
    "torch.optim.optimizer.Optimizer.profile_hook_step": "the constructor of optimizers calls it",
    f"{_SCALER}._maybe_opt_step": "GradScaler.step calls it",
    f"{_SCALER}._lazy_init_scale_growth_tracker": "GradScaler.scale calls it",
    f"{_DDP}._ddp_init_helper": "the constructor of DDP calls it",
    f"{_DDP}._pre_forward": "DDP.forward calls it",
    f"{_DDP}._build_params_for_reducer": "the constructor of DDP calls it",
    "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES": "the constructor of DDP reads it",
    "torch.distributed._compute_bucket_assignment_by_size": "the constructor of DDP calls it",
    "torch.nn.parallel.distributed._verify_param_shape_across_processes": "the constructor of DDP calls it",
    "torch.Tensor._version": "a property of a class in C++, which cannot be deleted",
    f"{_UNIT}.unshard": "fully_shard's hooks call it",
    f"{_UNIT}.post_backward": "fully_shard's hooks call it",
    f"{_FSDP}._runtime_utils._unshard": "FullyShardedDataParallel.forward calls it",
    f"{_FSDP}._runtime_utils._reduce_grad": "the backward pass of FullyShardedDataParallel calls it",
    f"{_FSDP}._runtime_utils._reduce_grad_no_shard": "the backward pass of FullyShardedDataParallel calls it",
    "torch.distributed.device_mesh.DeviceMesh._init_process_groups": "init_device_mesh calls it",
    f"{_STAGE}.get_fwd_send_ops": "schedules call it",
    f"{_STAGE}.get_fwd_recv_ops": "schedules call it",
    f"{_STAGE}.get_bwd_send_ops": "schedules call it",
    f"{_STAGE}.get_bwd_recv_ops": "schedules call it",
    f"{_STAGE}._prepare_backward_infra": "schedules call it",
    "torch.distributed.pipelining.stage.PipelineStage._prepare_forward_infra": "schedules call it",
    "torch.distributed.pipelining.schedules._batch_p2p": "schedules call it",
    "torch.serialization._open_zipfile_writer": "torch.save calls it",
    "torch.serialization._open_zipfile_reader": "torch.load calls it",
    f"{_CHECKPOINT}.utils._DistWrapper.reduce_scatter": "checkpoint.save calls it",
    f"{_CHECKPOINT}.utils._DistWrapper.all_reduce": "checkpoint.save calls it",
    f"{_CHECKPOINT}.logger._dcp_logger": "checkpoint.save logs to it",
    **{
        f"{_RPC}.api.{name}": "calls and shutdown use it"
        for name in (
            *("_invoke_rpc_python_udf", "_invoke_remote_python_udf", "_invoke_rpc_builtin", "_invoke_remote_builtin"),
            *("_invoke_rpc_torchscript", "_invoke_remote_torchscript", "_enable_rpc_profiler", "_wait_all_workers"),
            *("_finalize_shutdown", "_get_current_rpc_agent", "_is_current_rpc_agent_set"),
        )
    },
    f"{_RPC}.internal._internal_rpc_pickler": "C++ calls it for each request",
    f"{_RPC}.internal.PythonUDF": "calls use it",
    f"{_RPC}.internal.RPCExecMode": "calls use it",
    f"{_RPC}._utils": "shutdown uses it",
    f"{_RPC}._init_rpc_backend": "init_rpc calls it",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError": "torchrun raises it",
    "torch.multiprocessing.spawn.ProcessContext": "start_processes calls it",
}
