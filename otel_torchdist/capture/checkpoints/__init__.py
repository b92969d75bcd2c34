"""Records checkpoints: `torch.distributed.checkpoint` with its stages, `torch.save` and `torch.load`."""
