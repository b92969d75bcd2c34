"""The contents of a tape's records: frozen data, all times in nanoseconds of the writer's monotonic clock."""
