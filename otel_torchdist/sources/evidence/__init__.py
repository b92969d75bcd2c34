"""Text output of other tools about a job: logs, process stacks, NCCL reports, error files."""
