"""This node: the jobs on it with their files, their processes, and the symptoms of the machine."""
