"""What determines how long a step takes, across all ranks. Pure."""
