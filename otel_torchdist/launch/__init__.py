"""The start and the end of ranks and launchers: switching recording on, and reporting failed launches."""
