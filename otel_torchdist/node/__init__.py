"""The node: its jobs and their files, the ranks' processes, and the symptoms of the machine."""
