"""The diagnosis of a run or of the leftovers of a job, and its structs."""
