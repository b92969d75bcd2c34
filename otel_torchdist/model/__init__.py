"""The domain model: calls, activities and states of a job's ranks, independent of files, formats and processes."""
