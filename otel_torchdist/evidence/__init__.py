"""What other tools have written about a job: logs, stacks of processes, reports of NCCL, error files."""
