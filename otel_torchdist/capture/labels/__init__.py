"""What calls of libraries for parallel training are for: FSDP units, DDP buckets, pipeline stages, mesh dimensions."""
