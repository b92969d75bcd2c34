"""Communication outside c10d's collectives: symmetric memory, and windows of a process group."""
