"""Findings without a stall: mismatched calls, stragglers, bad values, failed checkpoints, idle jobs."""
