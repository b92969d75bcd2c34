"""The start and the end of ranks and of launchers: when recording is switched on, and what a failed launch leaves."""
