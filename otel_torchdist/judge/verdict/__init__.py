"""The verdict on a stall. Pure: frozen snapshots of the ranks in, verdicts out; nothing is requested or written."""
