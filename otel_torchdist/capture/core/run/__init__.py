"""The run of this process: its tape, its id, its parts."""
