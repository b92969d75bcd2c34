"""Decodes the records of a tape into frozen data. Times are nanoseconds of the writer's monotonic clock."""
