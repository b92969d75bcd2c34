"""Remote procedure calls of `torch.distributed.rpc`."""
