"""What the records of a tape hold: frozen data, all times in nanoseconds of the writer's monotonic clock."""
