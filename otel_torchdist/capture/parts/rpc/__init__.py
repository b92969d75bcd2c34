"""Records remote procedure calls (`torch.distributed.rpc`)."""
