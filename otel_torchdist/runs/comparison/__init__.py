"""The comparison of runs before and after a change."""
