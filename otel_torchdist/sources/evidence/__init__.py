"""Texts of other tools about a job: logs, stacks of processes, reports of NCCL, error files."""
